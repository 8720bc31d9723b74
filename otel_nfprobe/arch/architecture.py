# SPDX-License-Identifier: Apache-2.0
"""What a processor must provide, and where it is.

Nothing outside of `arch` names a register, an instruction or their bytes: it asks an Architecture. Each folder here has
one in its architecture.py; to support a processor is to write these members, its row in base/processors.py, and its
folders in native/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.arch.code_facts import Body, Call, Exit, FunctionScan, Inferred, Site
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.base.processors import HOST, NAMES, Processor
from otel_nfprobe.elf.ehframe import Frame, Row
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function

if TYPE_CHECKING:
    from otel_nfprobe.arch.branches import ModuleScan
    from otel_nfprobe.arch.tailcalls import TailCalls


class ArgumentProof(Protocol):
    """Proof that calls in one module pass no stack arguments. Functions are indexes of its frame table."""

    def none_on_stack(self, index: int) -> bool: ...
    def passes_none(self, index: int, site: int, callee: str) -> bool: ...


class Architecture(Protocol):
    """One processor. Addresses in images are the file's own; each function is documented in arch/x86_64."""

    @property
    def processor(self) -> Processor: ...  # names and numbers, and DWARF numbers of registers

    # ---- decoding
    @property
    def decoder(self) -> str: ...  # distribution whose version the results depend on
    def scan_function(self, image: ElfImage, frame: Frame) -> FunctionScan: ...
    def is_table_jump(self, image: ElfImage, frame: Frame, site: int, before: int) -> bool: ...
    def is_conditional(self, image: ElfImage, site: int) -> bool: ...
    def count_argument_words(self, image: ElfImage, site: int, distance: int) -> int: ...
    def branch_targets(self, code: bytes, address: int) -> list[int]: ...
    def memory_uses(self, code: bytes, address: int) -> Iterator[tuple[int, bool]]: ...
    def stub_slot(self, image: ElfImage, address: int) -> int | None: ...

    # ---- arguments, results and what code does with them
    def prove_arguments(self, scan: ModuleScan) -> ArgumentProof: ...
    def count_words(self, tail_calls: TailCalls, module: Module, index: int) -> int: ...
    def infer(self, image: ElfImage, start: int, size: int) -> Inferred: ...
    def sets_frame_pointer(self, displaced: bytes, rules: Sequence[Row]) -> bool: ...
    def short_fields(self, image: ElfImage, start: int, size: int, argument: int) -> set[int]: ...
    def rewritten_words(self, image: ElfImage, start: int, size: int) -> set[int]: ...
    def list_fields(
        self, image: ElfImage, start: int, size: int, next_offset: int, called_offset: int
    ) -> tuple[set[int], set[int]] | None: ...

    # ---- patch sites
    @property
    def cfa_at_entry(self) -> tuple[int, int]: ...  # register and offset of the canonical frame address
    @property
    def landing_pad_bytes(self) -> int: ...  # of an instruction that indirect calls must lead to
    @property
    def jump_bytes(self) -> int: ...  # of a jump to a trampoline
    @property
    def jump_reach_bytes(self) -> int: ...
    def find_site(self, function: Function, scan: ModuleScan, index: int, catches: bool) -> Site: ...
    def encode_site(self, site: int, length: int, island: int, trampoline: int) -> bytes: ...
    def decode_site(self, site: int, code: bytes, island: int, island_code: bytes) -> int: ...
    def find_jumps(
        self, code: NDArray[np.uint8], file: NDArray[np.uint8]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]: ...

    # ---- code of trampolines; templates are in native/core/arch
    @property
    def trap(self) -> bytes: ...  # fills what is never run
    @property
    def no_operation(self) -> bytes: ...  # an instruction of jump_bytes without an effect
    @property
    def return_code(self) -> bytes: ...
    def encode_jump(self, place: int, destination: int) -> bytes: ...
    def encode_far_jump(self, destination: int) -> bytes: ...
    def encode_call(self, place: int, destination: int) -> bytes: ...
    def relocate(self, code: bytes, address: int, new_address: int, continue_at: int) -> tuple[bytes, list[int]]: ...
    def pushed_registers(self, code: bytes) -> Mapping[int, int]: ...
    def check_body(self, scan: ModuleScan, index: int) -> str: ...
    def find_members(self, scan: ModuleScan, index: int) -> list[int]: ...
    def find_exits(self, scan: ModuleScan, index: int) -> list[Exit]: ...
    def build_body(
        self, scan: ModuleScan, index: int, base: int, new_address: int, exit_address: Callable[[int], int]
    ) -> Body: ...
    def encode_exit(self, way_out: Exit, base: int, address: int) -> bytes: ...

    # ---- snippets
    def assemble(self, text: str) -> bytes: ...
    def argument_text(self, argument: int, bits: int) -> str: ...
    def arguments_text(self, high: int, low: int) -> str: ...
    def field_text(self, argument: int, otherwise: int, offset: int, high_offset: int | None = None) -> str: ...

    # ---- the kernel
    @property
    def system_call_code(self) -> bytes: ...  # the instruction
    @property
    def system_call_prefix(self) -> str: ...  # of names of kernel functions that implement system calls
    @property
    def system_calls(self) -> Mapping[str, int]: ...  # numbers
    @property
    def sync_core_calls(self) -> Sequence[Call]: ...  # that nfprobe makes in a target
    @property
    def check_calls(self) -> Sequence[Call]: ...
    @property
    def counter_calls(self) -> Sequence[Call]: ...
    @property
    def probe_calls(self) -> Sequence[Call]: ...
    def injection_calls(self, musl: bool, registers_rseq: bool) -> Sequence[Call]: ...

    # ---- clock and counters
    @property
    def clock_flags(self) -> frozenset[str]: ...  # in /proc/cpuinfo, of a clock that never stops or changes its rate
    @property
    def core_devices(self) -> str: ...  # regular expression for counter devices of processor cores
    @property
    def counter_reading(self) -> str: ...  # the instruction, and the kernel's setting for it, of a counter device


@cache
def of_machine(machine: str) -> Architecture:
    """Returns the architecture of a machine, as uname calls it. For arm64, all members raise.

    Raises:
        RefusedError: there is none.
    """
    folder = f"{__package__}.{machine}"
    if find_spec(folder) is None:
        raise RefusedError(f"This machine is {machine}; nfprobe works on {NAMES} only.")
    found: Architecture = import_module(f"{folder}.architecture").ARCHITECTURE
    return found


def of_image(image: ElfImage) -> Architecture:
    """Returns the architecture of a file's code."""
    return of_machine(image.processor.machine)


def of_host() -> Architecture:
    """Returns the architecture of this machine, and so of all processes."""
    return of_machine(HOST.machine)
