# SPDX-License-Identifier: Apache-2.0
"""The plan of one function: how it will be probed, or why not. Created by analysis.py, cached by plancache.py."""

from __future__ import annotations

from dataclasses import dataclass

from otel_nfprobe.arch.x86_64.scan import NO_ENTRY
from otel_nfprobe.base.strategies import GOT_SLOT
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function

PLT_STUB = "PLT stub"
# Not functions: parts of one, or the linker's. They are neither listed nor counted.
PART_REASONS = frozenset((NO_ENTRY, PLT_STUB))


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """How one function will be probed, or why not.

    Attributes:
        function: which one.
        strategy: one of the values of STRATEGIES, or None when it is refused.
        reason: why it is refused, or why the strategy is not the first one; otherwise "".
        site: address in the process of the first changed byte: code, or one GOT slot.
        site_bytes: the original bytes.
        displaced: the instructions moved to the trampoline; without padding.
        displaced_offsets: from the site to each displaced instruction and, if control flow continues after them, to the
            first byte after them.
        displaced_rows: (offset from the site, DWARF register, offset): the CFA from each of them on, where it differs
            from the previous one; rsp + 8 initially.
        single: exactly one instruction is displaced, so the site can be changed while threads run.
        island: address in the process of padding that contains the jump for which the site has no room, or 0.
        island_bytes: its original bytes.
        argument_words: number of words of the caller's stack that are pushed again.
        has_frame_pointer: the function sets up rbp as its frame pointer first, so rbp is not an argument.
    """

    function: Function
    strategy: str | None
    reason: str = ""
    site: int = 0
    site_bytes: bytes = b""
    displaced: bytes = b""
    displaced_offsets: tuple[int, ...] = ()
    displaced_rows: tuple[tuple[int, int, int], ...] = ()
    single: bool = False
    island: int = 0
    island_bytes: bytes = b""
    argument_words: int = 0
    has_frame_pointer: bool = False

    @property
    def module(self) -> Module:
        """The function's module."""
        return self.function.module

    @property
    def offset(self) -> int:
        """The function's address in its file."""
        return self.function.offset

    @property
    def size(self) -> int:
        """The function's size in bytes."""
        return self.function.size

    @property
    def address(self) -> int:
        """The function's address in the process."""
        return self.function.address

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def name_source(self) -> str:
        """Source of the name."""
        return self.function.name_source

    @property
    def is_part(self) -> bool:
        """Whether it is not a function but a part of one, or a PLT stub."""
        return self.strategy is None and self.reason in PART_REASONS

    @property
    def is_slot(self) -> bool:
        """Whether the site is a GOT slot."""
        return self.strategy == GOT_SLOT
