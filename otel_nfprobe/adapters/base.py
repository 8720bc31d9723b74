# SPDX-License-Identifier: Apache-2.0
"""What an adapter is: it says which functions of a target receive, transmit and drop packets, and where a
call's packets and their headers are. Adapters read the target and never touch it.

Found by the entry point group `otel_nfprobe_adapters`; the built-in ones need no installation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Protocol

from otel_nfprobe._core import lib
from otel_nfprobe.errors import NfprobeError, UsageError
from otel_nfprobe.target import Target

ENTRY_POINT_GROUP = "otel_nfprobe_adapters"
BUILT_IN = {"dpdk": "otel_nfprobe.adapters.dpdk:DpdkAdapter"}

RECEIVE = int(lib.NFP_ROLE_RECEIVE)
TRANSMIT = int(lib.NFP_ROLE_TRANSMIT)
DROP = int(lib.NFP_ROLE_DROP)
COUNT_RETURN = int(lib.NFP_COUNT_RETURN)
COUNT_ARGUMENT = int(lib.NFP_COUNT_ARGUMENT)
COUNT_FIXED = int(lib.NFP_COUNT_FIXED)

NO_OFFSET = 0xFFFF
ABSENT = 255  # NFP_ABSENT: an argument that is not there
ARGUMENTS = 6  # passed in registers
PACKETS_MAX = 512  # described in one call; more are counted only


@dataclass(frozen=True, slots=True)
class RoleFunction:
    """A function that receives, transmits or drops.

    Attributes:
        address: of the function in the target.
        name: "module+0xoffset" or "module:name".
        role: RECEIVE, TRANSMIT or DROP (enum nfp_role).
        program: fields of struct nfp_program (native/include/nfprobe/session.h), by name.
        label: for people, such as "net_pcap receive, port 0".
    """

    address: int
    name: str
    role: int
    program: Mapping[str, int]
    label: str


class Adapter(Protocol):
    """What nfprobe knows about one kind of network function.

    Attributes:
        name: what `--adapter` calls it.
        inner: globs of further functions to probe by default.
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


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a packet's bytes are. Offsets in bytes, in the structure that describes one packet."""

    data: int
    length: int
    length_bytes: int
    segment_length: int
    segment_bytes: int
    data_offset: int = NO_OFFSET
    arrival: int = NO_OFFSET
    arrival_unit: int = 0
    link_layer: int = 0

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
        }


@dataclass(frozen=True, slots=True)
class Burst:
    """How a call says which packets it is about. Arguments count from 0."""

    pointers: int
    requested: int
    count_from: int = COUNT_RETURN
    count_argument: int = ABSENT
    count_mask: int = 0xFFFFFFFF
    single: bool = False
    packets_max: int = field(default=PACKETS_MAX)

    def fields(self) -> dict[str, int]:
        """Fields of struct nfp_program."""
        return {
            "count_from": self.count_from,
            "count_argument": self.count_argument,
            "requested_argument": self.requested,
            "pointers_argument": self.pointers,
            "pointers_single": int(self.single),
            "count_mask": self.count_mask,
            "packets_max": self.packets_max,
        }


def make_program(role: int, burst: Burst, buffer: Buffer) -> dict[str, int]:
    """All fields of struct nfp_program for one function.

    Raises:
        UsageError: the probe would read what it must not; the sentence names the field.
    """
    program = {"role": role, **burst.fields(), **buffer.fields()}
    needed = [("pointers_argument", burst.pointers)]
    needed += [("requested_argument", burst.requested)] if burst.requested != ABSENT else []
    needed += [("count_argument", burst.count_argument)] if burst.count_from == COUNT_ARGUMENT else []
    for name, argument in needed:
        if not 0 <= argument < ARGUMENTS:
            raise UsageError(f"An adapter's {name} is {argument}, not a number from 0 to {ARGUMENTS - 1}.")
    for name in ("length_width", "segment_width"):
        if program[name] not in (2, 4):
            raise UsageError(f"An adapter's {name} is {program[name]}, not 2 or 4.")
    return program


def adapter_names() -> list[str]:
    """Names of the installed adapters."""
    return sorted({**BUILT_IN, **{entry.name: "" for entry in _entry_points()}})


def load_adapter(name: str) -> Adapter:
    """The installed adapter of that name.

    Raises:
        UsageError: there is none.
    """
    for entry in _entry_points():
        if entry.name == name:
            adapter: Adapter = entry.load()()
            return adapter
    if name not in BUILT_IN:
        raise UsageError(
            f"There is no adapter {name!r}; installed are {', '.join(adapter_names())}.",
            "nfprobe attach PID --adapter FILE.yaml",
        )
    built_in: Adapter = metadata.EntryPoint(name, BUILT_IN[name], ENTRY_POINT_GROUP).load()()
    return built_in


def choose_adapter(text: str, target: Target) -> Adapter | None:
    """The adapter that `--adapter` asks for.

    Args:
        text: auto, none, an adapter's name, or the path of a description (FILE.yaml).
        target: a checked target.

    Returns:
        None for `none`, and for `auto` when no installed adapter recognises the target.

    Raises:
        UsageError: no such adapter or file, or it does not fit the target.
    """
    if text == "none":
        return None
    if text == "auto":
        return next((adapter for adapter in _installed() if adapter.recognise(target) is not None), None)
    if text.endswith((".yaml", ".yml")):
        from otel_nfprobe.adapters.described import DescribedAdapter

        adapter: Adapter = DescribedAdapter.from_file(text)
    else:
        adapter = load_adapter(text)
    if adapter.recognise(target) is None:
        raise UsageError(
            f"Adapter {adapter.name} does not know process {target.pid} ({target.name}).",
            f"nfprobe doctor {target.pid}",
        )
    return adapter


def _installed() -> Iterator[Adapter]:
    for name in adapter_names():
        try:
            yield load_adapter(name)
        except (ImportError, AttributeError) as error:
            raise NfprobeError(f"The adapter {name} cannot be loaded: {error}.", "pip list") from error


def _entry_points() -> list[metadata.EntryPoint]:
    return list(metadata.entry_points(group=ENTRY_POINT_GROUP))
