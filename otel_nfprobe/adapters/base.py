# SPDX-License-Identifier: Apache-2.0
"""What an adapter is: it says which functions of a target receive, transmit and drop packets, and where a
call's packets and their headers are. Adapters read the target and never touch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from otel_nfprobe._core import lib
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.numbernames import NumberNames

if TYPE_CHECKING:  # who reads a recording has no target
    from otel_nfprobe.target.target import Target

KNOWS_LIBRARY, KNOWS_PROGRAM = 0, 1  # how much an adapter knows: `auto` takes the one that knows most

RECEIVE = lib.NFP_ROLE_RECEIVE
TRANSMIT = lib.NFP_ROLE_TRANSMIT
DROP = lib.NFP_ROLE_DROP
PUNT = lib.NFP_ROLE_PUNT  # hands packets to the host
KEEP = lib.NFP_ROLE_KEEP  # takes packets in that may stay
REPLACE = lib.NFP_ROLE_REPLACE  # takes packets in and sends others in their place
FREE = lib.NFP_ROLE_FREE  # drops what was received and not handed on
DEQUEUE = lib.NFP_ROLE_DEQUEUE  # takes packets over that another call has received
HAND_OVER = lib.NFP_ROLE_HAND_OVER  # puts packets into queues of other threads, or drops them
COMMAND = lib.NFP_ROLE_COMMAND  # reads a text that says what is done in its calls
HOLD = lib.NFP_ROLE_HOLD  # reads a text; returns when the other threads stand still
RELEASE = lib.NFP_ROLE_RELEASE  # lets them go
# Roles of functions whose probes read no packets; session.h says what each means.
CALL = lib.NFP_ROLE_CALL  # an inner function, for its snippet
MESSAGE_SCOPE = lib.NFP_ROLE_MESSAGE_SCOPE
MESSAGE = lib.NFP_ROLE_MESSAGE  # reads a message's topic
SEND = lib.NFP_ROLE_SEND
LENGTH = lib.NFP_ROLE_LENGTH
NUMBER = lib.NFP_ROLE_NUMBER
LOOP_ITERATION = lib.NFP_ROLE_LOOP_ITERATION
READ_NO_PACKETS = (CALL, MESSAGE_SCOPE, SEND, LENGTH, NUMBER, LOOP_ITERATION, RELEASE)
COUNT_RETURN = lib.NFP_COUNT_RETURN
COUNT_ARGUMENT = lib.NFP_COUNT_ARGUMENT
COUNT_FIXED = lib.NFP_COUNT_FIXED
COUNT_MEMORY = lib.NFP_COUNT_MEMORY
WHEN_NONZERO = lib.NFP_WHEN_NONZERO
WHEN_ZERO = lib.NFP_WHEN_ZERO
WHEN_ALWAYS = lib.NFP_WHEN_ALWAYS

VECTORS = "vectors"  # what the calls of a VPP graph node count
NO_OFFSET = lib.NFP_NO_OFFSET
ABSENT = lib.NFP_ABSENT  # an argument that is not there
CAPACITY = lib.NFP_CAPACITY  # as many as fit are asked for
ARGUMENTS = lib.NFP_REGISTER_ARGUMENTS
PACKETS_MAX = 512  # described in one call; more are counted only


@dataclass(frozen=True, slots=True)
class RoleFunction:
    """A function that receives, transmits or drops.

    Attributes:
        address: of the function in the target.
        name: "module+0xoffset" or "module:name".
        role: RECEIVE, TRANSMIT, DROP, PUNT or FREE, or another one above (enum nfp_role).
        program: fields of struct nfp_program (native/abi/session.h), by name.
        label: for people, such as "net_pcap receive, port 0".
        snippet: of a role that reads no packets: code that captures the value which the role asks for.
        unit: VECTORS where that is what its calls count.
        takes_seventh: of HAND_OVER: as its prototype says it takes one argument from the stack, and no more.
    """

    address: int
    name: str
    role: int
    program: Mapping[str, int]
    label: str
    snippet: bytes = b""
    unit: str = ""
    takes_seventh: bool = False

    @property
    def pipeline_role(self) -> int:
        """What the pipeline is told. Buffers that are counted by their holders come from a pool and go back to it."""
        pooled = self.role == RECEIVE and self.program.get("holders", NO_OFFSET) != NO_OFFSET
        pooled = pooled and not self.program.get("number_shift", 0)
        return lib.NFP_ROLE_RECEIVE_POOLED if pooled else self.role


class Adapter(Protocol):
    """What nfprobe knows about one kind of network function.

    Attributes:
        name: what `--adapter` calls it.
        inner: globs of further functions to probe by default; read after `roles`.
        knows: optional; KNOWS_LIBRARY for what fits every program that uses some library, else KNOWS_PROGRAM.
    """

    name: str
    inner: list[str]

    def recognise(self, target: Target) -> str | None:
        """Why this adapter fits the target, or None when it does not."""

    def roles(self, target: Target) -> list[RoleFunction]:
        """The target's receive, transmit and drop functions, each once.

        Raises:
            NfprobeError: they cannot be found, or what was found is not plausible.
        """

    def notes(self, target: Target) -> list[str]:
        """What this adapter takes for granted about the target, for a person; may be empty."""


@runtime_checkable
class FreeingAdapter(Adapter, Protocol):
    """An adapter that knows the functions which give packets back.

    Attributes:
        finds_free: read by `roles`: whether these are wanted; to find them takes a look at much code.
    """

    finds_free: bool


@runtime_checkable
class FollowingAdapter(Adapter, Protocol):
    """An adapter that also sees functions which begin to receive or transmit while the target is measured."""

    def later_roles(self, target: Target) -> list[RoleFunction]:
        """As `roles`, cheap enough to be asked twice a second; those that are known already may be among them."""


@runtime_checkable
class ForeseeingAdapter(FollowingAdapter, Protocol):
    """An adapter that knows beforehand which functions `later_roles` may name."""

    def possible_functions(self) -> list[int]:
        """Their addresses, those of `roles` among them; known after `roles`."""


@dataclass(frozen=True, slots=True)
class NumberedBuffers:
    """The buffers of a target that names them by numbers.

    Attributes:
        start, size_bytes: of the readable memory that holds all of them.
        pending: offset in the first argument of receive functions of the vector of batches that they have filled.
        node: offset in the second argument of the others of the number of the graph node that runs; 0: not known.
    """

    start: int = 0
    size_bytes: int = 0
    pending: int = 0
    node: int = 0


@runtime_checkable
class NamingAdapter(Adapter, Protocol):
    """An adapter that knows what the target calls numbers which stand in records."""

    def names(self) -> NumberNames:
        """What is known after `roles`; another object when `later_roles` has found more."""


@runtime_checkable
class VersionedAdapter(Adapter, Protocol):
    """An adapter that knows the version of the program that it fits."""

    def version(self, target: Target) -> str:
        """As the program's own people write it; empty where it is not known."""


@runtime_checkable
class NumberingAdapter(Adapter, Protocol):
    """An adapter whose buffers are `Numbered`."""

    def numbered_buffers(self) -> NumberedBuffers:
        """Where they are; known after `roles`."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """Buffers that are named by numbers. Each is in one piece of memory, at its number << `shift`, and holds its bytes.

    Attributes:
        next_number: offset of the number of the packet's next buffer, 32 bits.
        next_flags, next_bit: of a 32-bit word, the bit that says whether there is a next one.
        receive_interface: of the number of the interface that received the packet, 32 bits, or NO_OFFSET.
        transmit_interface: of the interface that transmits it, 32 bits.
        reason: of the number of why it is dropped, 16 bits.
    """

    shift: int
    next_number: int
    next_flags: int
    next_bit: int
    receive_interface: int = NO_OFFSET
    transmit_interface: int = NO_OFFSET
    reason: int = NO_OFFSET

    def fields(self, role: int) -> dict[str, int]:
        """Fields of struct nfp_program that stand for other things where buffers are named by pointers."""
        done = {TRANSMIT: self.transmit_interface, DROP: self.reason}.get(role, NO_OFFSET)
        width = 2 if role == DROP else 4
        return {"holders": self.receive_interface, "arrival_flags": done, "arrival_bit": width}


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a packet's bytes are. Offsets in bytes, in the structure that describes one packet.

    Attributes:
        holders: of the number of those who hold the packet, 16 bits; who frees it as one of several drops nothing.
        arrival_flags, arrival_bit: of a 64-bit word, one bit of which says whether `arrival` is there.
        pooled: descriptions and bytes lie in memory that stays mapped: they can be read after a packet was
            transmitted or freed.
        numbered: where packets are numbers, not pointers. Then `data` is the offset of the bytes themselves and
            `data_offset` that of a signed number; lengths are those of single buffers.
    """

    data: int
    length: int
    length_bytes: int
    segment_length: int
    segment_bytes: int
    data_offset: int = NO_OFFSET
    arrival: int = NO_OFFSET
    arrival_unit: int = 0
    link_layer: int = 0
    holders: int = NO_OFFSET
    arrival_flags: int = NO_OFFSET
    arrival_bit: int = 0
    pooled: bool = False
    numbered: Numbered | None = None

    def fields(self) -> dict[str, int]:
        """Fields of struct nfp_program."""
        return {
            "data_pointer": self.data,
            "data_offset": self.data_offset,
            "length": self.length,
            "length_width": self.length_bytes,
            "segment_length": self.segment_length,
            "segment_width": self.segment_bytes,
            "arrival": self.arrival,
            "arrival_unit": self.arrival_unit,
            "link_layer": self.link_layer,
            "holders": self.holders,
            "arrival_flags": self.arrival_flags,
            "arrival_bit": self.arrival_bit,
            "pooled": int(self.pooled),
            "number_shift": self.numbered.shift if self.numbered else 0,
            "next_number": self.numbered.next_number if self.numbered else 0,
            "next_flags": self.numbered.next_flags if self.numbered else 0,
            "next_bit": self.numbered.next_bit if self.numbered else 0,
        }


@dataclass(frozen=True, slots=True)
class Batch:
    """A structure that holds the number of packets and the array of pointers to them. Offsets in bytes.

    Attributes:
        capacity: elements of the array.
        array: of a 16-bit offset of the array, where that is not always `pointers`; or NO_OFFSET.
    """

    count: int
    count_bytes: int
    pointers: int
    capacity: int
    array: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class Burst:
    """How a call says which packets it is about. Arguments count from 0.

    Attributes:
        pointers: the argument that is an array of packets, or one packet, or a pointer to `batch`.
        requested: the argument that says how many are asked for or handed over, or ABSENT, or CAPACITY.
        when: which return values of a receive function say that it has received something, WHEN_*.
        checked: its packets are looked at with care (native/probe/validate.c): a person described them.
        queue: the argument of a receive function that says which queue it polls, or ABSENT.
        first, step: of DEQUEUE: bytes before the first pointer of the array, and from one to the next.
    """

    pointers: int
    requested: int
    count_from: int = COUNT_RETURN
    count_argument: int = ABSENT
    count_mask: int = 0xFFFFFFFF
    single: bool = False
    packets_max: int = field(default=PACKETS_MAX)
    batch: Batch | None = None
    when: int = WHEN_NONZERO
    checked: bool = False
    queue: int = ABSENT
    first: int = 0
    step: int = 8

    def fields(self) -> dict[str, int]:
        """Fields of struct nfp_program."""
        batch = self.batch or Batch(0, 0, 0, self.packets_max)
        return {
            "count_from": self.count_from,
            "count_argument": self.count_argument,
            "requested_argument": self.requested,
            "pointers_argument": self.pointers,
            "pointers_single": int(self.single),
            "count_mask": self.count_mask,
            "packets_max": batch.capacity,
            "count_width": batch.count_bytes,
            "count_offset": batch.count,
            "pointers_offset": batch.pointers,
            "when": self.when,
            "checked": int(self.checked),
            "queue_argument": self.queue,
            "array_offset": batch.array,
            **dict.fromkeys(("verdict", "proven", "offence"), 0),
        }


def make_program(role: int, burst: Burst, buffer: Buffer) -> dict[str, int]:
    """All fields of struct nfp_program for one function.

    Raises:
        UsageError: the probe would read what it must not; the sentence names the field.
    """
    program = {"role": role, **burst.fields(), **buffer.fields()}
    program |= buffer.numbered.fields(role) if buffer.numbered else {}
    if burst.batch is not None and role not in (RECEIVE, DEQUEUE):
        program["when"] = WHEN_ALWAYS  # the call empties the batch: it is counted at its entry
    if role == DEQUEUE:
        program["pointers_offset"] = burst.first or program["pointers_offset"]
        program["next_number"] = program["next_number"] if buffer.numbered else burst.step
    needed = [("pointers_argument", burst.pointers)]
    needed += [("queue_argument", burst.queue)] if burst.queue != ABSENT else []
    needed += [("requested_argument", burst.requested)] if burst.requested not in (ABSENT, CAPACITY) else []
    needed += [("count_argument", burst.count_argument)] if burst.count_from == COUNT_ARGUMENT else []
    for name, argument in needed:
        if not 0 <= argument < ARGUMENTS:
            raise UsageError(f"An adapter's {name} is {argument}, not a number from 0 to {ARGUMENTS - 1}.")
    for name in ("length_width", "segment_width"):
        if program[name] not in (2, 4):
            raise UsageError(f"An adapter's {name} is {program[name]}, not 2 or 4.")
    if burst.batch is not None and program["count_width"] not in (2, 4, 8):
        raise UsageError(f"An adapter's count_width is {program['count_width']}, not 2, 4 or 8.")
    return {**program, "plain": int(_is_plain(program))}


def _is_plain(program: Mapping[str, int]) -> bool:
    """Whether native/probe/fast_path.c can serve it: arguments and the return value alone say what a call is about."""
    if program["role"] not in (RECEIVE, TRANSMIT) or program["count_from"] != COUNT_RETURN:
        return False
    names = ("pointers_argument", "requested_argument") + ("queue_argument",) * (program["role"] == RECEIVE)
    others = ("pointers_single", "pointers_offset", "count_width", "checked", "when")
    return all(program[name] < ARGUMENTS for name in names) and not any(program[name] for name in others)
