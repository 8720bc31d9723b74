# SPDX-License-Identifier: Apache-2.0
"""Branches: all branches of a module, i.e. who calls and jumps where, and into which bytes. Reads bytes only."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from otel_nfprobe.arch.architecture import of_image
from otel_nfprobe.arch.code_facts import Exit, FunctionScan
from otel_nfprobe.arch.jumpgraph import Marks
from otel_nfprobe.arch.scans import Addresses, Scans, Ways
from otel_nfprobe.base.distinct import distinct, is_among
from otel_nfprobe.elf.ehframe import Row
from otel_nfprobe.elf.elf import ElfImage


class ModuleScan:
    """All functions of an image."""

    def __init__(self, image: ElfImage) -> None:
        self.image = image
        self._architecture = of_image(image)
        self.frames = image.frames.frames
        self.starts = image.frames.starts
        self.start_array: Addresses = np.array(self.starts, dtype=np.uint64)
        self.size_array: Addresses = np.array([frame.size for frame in self.frames], dtype=np.uint64)
        self._pointers: list[int] | None = None
        self._only_called: frozenset[int] | None = None
        self.members: dict[int, list[int]] = {}  # body.py: the parts of copied functions
        self.exits: dict[int, list[Exit]] = {}  # and their ways out

    @cached_property
    def _scans(self) -> Scans:
        return Scans(self.image, self.frames)

    def at(self, index: int) -> FunctionScan:
        """Returns the scan of the function at this index of the frame table."""
        return self._scans.at(index)

    def entry_rows(self, index: int) -> tuple[Row, ...]:
        """See Scans.entry_rows. Raises FrameError as Frame.rules does."""
        return self._scans.entry_rows(index)

    @property
    def runs_on(self) -> Marks:
        """See Scans.runs_on."""
        return self._scans.runs_on

    @property
    def heads(self) -> list[tuple[int, ...]]:
        """See Scans.heads."""
        return self._scans.heads

    @property
    def code_offsets(self) -> list[int]:
        """See Scans.code_offsets."""
        return self._scans.code_offsets

    @cached_property
    def ordinary(self) -> list[bool]:
        """Returns of each function whether all that its own code and its callers tell is without objection.

        It begins at a call target, has a way out, uses nothing of its caller's frame, is not a part of another one, and
        nothing leads back to its start. What its tail calls reach is another question.
        """
        entered = is_among(self.start_array, distinct(self._jumps.target_array))
        may_be_part = entered & ~is_among(self.start_array, distinct(self._entry_array))
        plain = self._scans.plain(self._architecture.landing_pad_bytes)
        found: list[bool] = (plain & ~may_be_part).tolist()
        return found

    def is_harmless(self, index: int) -> bool:
        """See Scans.harmless."""
        return self._scans.harmless[index]

    def may_circle(self, index: int) -> bool:
        """See Scans.circling."""
        return self._scans.circling[index]

    def leads_of(self, index: int) -> list[int]:
        """See Scans.leads_of."""
        return self._scans.leads_of(index)

    def index_of(self, address: int) -> int:
        """Returns the index of the function whose range contains the address, or -1."""
        index = bisect_right(self.starts, address) - 1
        if index >= 0 and address < self.starts[index] + self.frames[index].size:
            return index
        return -1

    def enters(self, low: int, high: int) -> bool:
        """Returns whether any code of the module branches to an address in [low, high)."""
        position = bisect_left(self._entered, low)
        return position < len(self._entered) and self._entered[position] < high

    def enters_each(self, low: Addresses, high: Addresses) -> Marks:
        """Returns the same for many ranges."""
        return hits(self._entered_array, low, high)

    def points_into(self, low: int, high: int) -> bool:
        """Returns whether data of the module contains an address in [low, high)."""
        if self._pointers is None:
            self._pointers = sorted(self.image.code_pointers)
        position = bisect_left(self._pointers, low)
        return position < len(self._pointers) and self._pointers[position] < high

    def is_called(self, address: int) -> bool:
        """Returns whether anything calls the address, takes it, or exports it."""
        return address in self._entries

    def is_part(self, index: int, is_named: bool) -> bool:
        """Returns whether this entry of the frame table is not a function but a part, entered by jumps out of one.

        A part continues in the function that enters it, or in another part of it. Compilers emit no conditional tail
        calls, so anything unnamed that is only entered by conditional branches is a part as well. Anything that is
        never entered is a function: in a program at fixed addresses, pointers to it cannot be distinguished from
        numbers.
        """
        start = self.starts[index]
        if self.is_called(start):
            return False
        if not is_named and start in self._branched:
            return True
        inside = {place for place in self._reached(index, False) if place != index}
        return any(
            entering in inside or not inside.isdisjoint(self._reached(entering, True))
            for entering in self._jumps.functions_of(start)
        )

    def _reached(self, index: int, by_start: bool) -> Iterator[int]:
        """Yields functions that the one at this index jumps into."""
        for target, following in zip(self.at(index).jumps, self.leads_of(index), strict=True):
            if following < 0:
                continue
            if by_start or self.starts[following] != target:
                yield following

    @cached_property
    def calls(self) -> Ways:
        """Returns all direct calls."""
        return self._scans.calls()

    def slots_only_called(self) -> frozenset[int]:
        """Returns GOT slots that code only uses for calls and jumps.

        The content of other slots may also be compared, or stored for later: then it must stay the function's own
        address (OpenSSL's CRYPTO_malloc compares a pointer with its own address, and would call itself).
        """
        if self._only_called is None:
            slots = set(self.image.slot_names)
            called: set[int] = set()
            read: set[int] = set()
            ranges = [(frame.start, frame.start + frame.size) for frame in self.frames] + self._gaps()
            for low, high in ranges:
                for address, is_call in self._architecture.memory_uses(self.image.read(low, high - low), low):
                    if address in slots:
                        (called if is_call else read).add(address)
            self._only_called = frozenset(called - read)
        return self._only_called

    @cached_property
    def _jumps(self) -> Ways:
        return self._scans.jumps()

    @cached_property
    def _branched(self) -> frozenset[int]:
        """Returns addresses that are only entered by conditional branches."""
        return frozenset(self._scans.branched().tolist())

    @cached_property
    def _entries(self) -> frozenset[int]:
        """Returns addresses that are called, taken or exported."""
        return frozenset(self._entry_array.tolist())

    @cached_property
    def _entry_array(self) -> Addresses:
        named = [symbol.address for symbol in self.image.symbols if ".cold" not in symbol.name]
        more = np.array([*named, *self.image.code_pointers], dtype=np.uint64)
        return np.concatenate((self._scans.entries(), more))

    @cached_property
    def _entered(self) -> list[int]:
        """Returns the targets of branches, calls and pointers, sorted."""
        entered: list[int] = self._entered_array.tolist()
        return entered

    @cached_property
    def _entered_array(self) -> Addresses:
        targets = [target for low, high in self._gaps() for target in self._targets_between(low, high)]
        more = np.array([*self.image.code_pointers, *targets], dtype=np.uint64)
        return distinct(np.concatenate((self._scans.entered(), more)))

    def _targets_between(self, low: int, high: int) -> list[int]:
        return self._architecture.branch_targets(self.image.read(low, high - low), low)

    def _gaps(self) -> list[tuple[int, int]]:
        """Returns executable ranges that no frame describes: hand-written code, and padding."""
        gaps = []
        for low, high in self.image.code_ranges:
            position = low
            first, last = bisect_left(self.starts, low), bisect_left(self.starts, high)
            for index in range(first, last):
                start = self.starts[index]
                if start - position > 16:
                    gaps.append((position, start))
                position = max(position, start + self.frames[index].size)
            if high - position > 16:
                gaps.append((position, high))
        return gaps


def hits(places: Addresses, low: Addresses, high: Addresses) -> Marks:
    """Returns of each range [low, high) whether one of the places, which are sorted, is in it."""
    following = np.searchsorted(places, low)
    inside = following < len(places)
    inside[inside] = places[following[inside]] < high[inside]
    return inside


def scan_module(image: ElfImage) -> ModuleScan:
    """Returns the scan of an image, created once.

    Raises:
        NfprobeError: its `.eh_frame` is malformed.
    """
    scan: ModuleScan | None = image.cache.get("scan")
    if scan is None:
        scan = image.cache["scan"] = ModuleScan(image)
    return scan
