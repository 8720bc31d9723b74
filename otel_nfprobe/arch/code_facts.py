# SPDX-License-Identifier: Apache-2.0
"""What each processor's folder tells about code, and the reasons why a function cannot be probed in some way."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from otel_nfprobe.elf.ehframe import Frame

STACK_ARGUMENTS = "reads stack arguments"
RETURN_ADDRESS = "reads its return address"
UNKNOWN_FRAME = "its frame rules are unusable"
NO_ENTRY = "a part of another function"
UNDECODABLE = "undecodable"
POPS_ARGUMENTS = "pops its stack arguments itself"
POINTER_TAIL = "tail-calls through a pointer, whose target may take stack arguments"
PARTS_MAX = 16  # of a copied body

# Functions that read as many arguments as a format specifies: the index of the format.
FORMATS = {
    "printf": 0, "__printf_chk": 1, "fprintf": 1, "__fprintf_chk": 2, "dprintf": 1, "__dprintf_chk": 2,
    "sprintf": 1, "__sprintf_chk": 3, "snprintf": 2, "__snprintf_chk": 4, "asprintf": 1, "__asprintf_chk": 2,
    "syslog": 1, "__syslog_chk": 2, "rte_log": 2, "cmdline_printf": 1,
}  # fmt: skip


@dataclass(slots=True)
class FunctionScan:
    """Facts from one function's own bytes. Addresses are the file's own."""

    frame: Frame
    trouble: str = ""  # one of the reasons above, or ""
    jumps: list[int] = field(default_factory=list)  # direct jumps out of the range
    jump_sites: list[int] = field(default_factory=list)  # their addresses
    jumps_leave: list[bool] = field(default_factory=list)  # whether the frame is gone there: a call in tail position
    slot_jumps: list[int] = field(default_factory=list)  # jumps through these GOT slots
    slot_sites: list[int] = field(default_factory=list)
    pointer_jumps: list[int] = field(default_factory=list)  # addresses of jumps out through other pointers
    calls: list[int] = field(default_factory=list)  # targets of direct calls
    call_sites: list[int] = field(default_factory=list)  # their addresses
    references: list[int] = field(default_factory=list)  # code addresses it takes (lea)
    near: list[int] = field(default_factory=list)  # own branch targets near the start
    has_exit: bool = False  # returns, or jumps out
    exits_elsewhere: bool = False  # returns with a stack pointer that contradicts the frame rules
    has_table: bool = False  # jumps through a table to addresses of its own
    argument_words: int = 0  # of the caller's stack that it reads
    takes_address: bool = False  # of stack arguments: more may be read than is visible
    reads_return: bool = False  # reads its return address
    own_entry: bool = True  # starts at a call target
    runs_on: bool = True  # into the code after it
    outermost: bool = False


class Site(NamedTuple):
    """Bytes of a function that can be changed, or why there are none. Addresses are the file's own.

    Attributes:
        offset: address of the first changed byte.
        length: number of changed bytes.
        displaced: the instructions moved to the trampoline.
        boundaries: from `offset` to each of them and, if execution continues after them, to the first byte after them.
        single: exactly one instruction is displaced.
        island: address of the padding that contains the long jump, or 0.
        reason: why there is no site, or "".
    """

    offset: int
    length: int
    displaced: bytes
    boundaries: tuple[int, ...]
    single: bool
    island: int
    reason: str = ""


class Exit(NamedTuple):
    """A way out: the instruction after the exit probe, as the processor's decoder has it, and its maximum size."""

    instruction: Any
    room_bytes: int


class Body(NamedTuple):
    """A copied body.

    Attributes:
        code: its bytes.
        places: old address -> offset in the code, of each instruction.
        parts: (frame, offset in the code, bytes) of each part.
    """

    code: bytes
    places: dict[int, int]
    parts: list[tuple[Frame, int, int]]


class Inferred(NamedTuple):
    """Facts from the code.

    Attributes:
        arguments: lower bound.
        returns: whether it returns a value; None: unknown.
        is_variadic: it takes a variable number of arguments, as printf does.
    """

    arguments: int
    returns: bool | None
    is_variadic: bool


class Need(Enum):
    """The effect of an error of a system call that nfprobe makes in a target."""

    ESSENTIAL = "the probe library does not work"
    OR_ENOSYS = "ENOSYS makes the C library use another call"
    OPTIONAL = "it does without"


class Call(NamedTuple):
    """One system call.

    Attributes:
        label: name and the relevant arguments, for a sentence.
    """

    label: str
    number: int
    arguments: tuple[int, ...] = ()
    need: Need = Need.ESSENTIAL
