# SPDX-License-Identifier: Apache-2.0
"""Processors that nfprobe supports, as files and the kernel name and number them.

Only what packages below `arch` need to read files and to speak with the kernel; what code is made of is in `arch`.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import NamedTuple


class Processor(NamedTuple):
    """One processor.

    Attributes:
        name: in sentences.
        machine: as uname says it; a folder of `arch` has that name.
        elf_machine: e_machine of ELF files.
        audit: AUDIT_ARCH of seccomp filters.
        library_folder: of its libraries, below /usr/lib.
        perf_registers: mask of stack pointer and program counter in samples of perf.
        perf_argument: the same of the first argument of system calls.
        registers: names by their DWARF numbers.
        stack_pointer, frame_pointer, return_address: their DWARF numbers.
        lazy_slot, slot, relative, absolute: relocation types of a GOT slot that may be bound late, of another one, of a
            pointer into the module, and of a word with the address of a named function or object.
        relocated: bytes before and behind a relocated place that a linker fills in or rewrites, by relocation type,
            where these are not 0 and 4.
    """

    name: str
    machine: str
    elf_machine: int
    audit: int
    library_folder: str
    perf_registers: int
    perf_argument: int
    registers: tuple[str, ...]
    stack_pointer: int
    frame_pointer: int
    return_address: int
    lazy_slot: int
    slot: int
    relative: int
    absolute: int
    relocated: Mapping[int, tuple[int, int]]


X86_64 = Processor(
    name="x86-64",
    machine="x86_64",
    elf_machine=62,
    audit=0xC000003E,
    library_folder="x86_64-linux-gnu",
    perf_registers=1 << 7 | 1 << 8,
    perf_argument=1 << 5,
    registers=(
        "rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15",
        "rip", *(f"xmm{number}" for number in range(16)),
    ),
    stack_pointer=7,
    frame_pointer=6,
    return_address=16,
    lazy_slot=7,
    slot=6,
    relative=8,
    absolute=1,
    # Where a linker may turn a load into a constant it rewrites the instruction in front, too.
    relocated={
        1: (0, 8), 24: (0, 8), 25: (0, 8), 41: (2, 4), 42: (3, 4), 9: (3, 4), 22: (3, 4), 19: (4, 12), 20: (3, 9)
    },
)  # fmt: skip
SUPPORTED = (X86_64,)
BY_ELF_MACHINE = {processor.elf_machine: processor for processor in SUPPORTED}
NAMES = " and ".join(processor.name for processor in SUPPORTED)
# This machine's. Elsewhere every process is refused (preflight.py), but files can be looked at.
HOST = next((processor for processor in SUPPORTED if processor.machine == platform.machine()), X86_64)
# What OpenTelemetry calls machines, where it has another name than uname.
HOST_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
