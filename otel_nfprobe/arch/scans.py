# SPDX-License-Identifier: Apache-2.0
"""Scans: the scans of all functions of a module, by the C core, or by the processor's folder where the core does not
know an instruction or a frame rule. Reads bytes only.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.arch.architecture import of_image
from otel_nfprobe.arch.code_facts import POPS_ARGUMENTS, RETURN_ADDRESS, STACK_ARGUMENTS, FunctionScan
from otel_nfprobe.arch.codescan import ROW_WORDS, scan_code
from otel_nfprobe.arch.jumpgraph import Marks, circling, reaching
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.distinct import distinct, is_among
from otel_nfprobe.elf.ehframe import ENTRY_BYTES, Frame, Row
from otel_nfprobe.elf.elf import ElfImage

_REASONS = {
    lib.NFP_CODE_NO_TROUBLE: "",
    lib.NFP_CODE_STACK_ARGUMENTS: STACK_ARGUMENTS,
    lib.NFP_CODE_RETURN_ADDRESS: RETURN_ADDRESS,
    lib.NFP_CODE_POPS_ARGUMENTS: POPS_ARGUMENTS,
}
_JUMP, _CONDITIONAL_JUMP = lib.NFP_CODE_JUMP, lib.NFP_CODE_CONDITIONAL_JUMP
_JUMPS = (_JUMP, _CONDITIONAL_JUMP)
_CALL, _REFERENCE, _NEAR = lib.NFP_CODE_CALL, lib.NFP_CODE_REFERENCE, lib.NFP_CODE_NEAR
_HAS_EXIT, _EXITS_ELSEWHERE = lib.NFP_CODE_HAS_EXIT, lib.NFP_CODE_EXITS_ELSEWHERE
_HAS_TABLE, _OWN_ENTRY = lib.NFP_CODE_HAS_TABLE, lib.NFP_CODE_OWN_ENTRY
_RUNS_ON = lib.NFP_CODE_RUNS_ON
_TAKES_ADDRESS, _READS_RETURN = lib.NFP_CODE_TAKES_ADDRESS, lib.NFP_CODE_READS_RETURN
_SLOT_JUMP, _POINTER_JUMP = lib.NFP_CODE_SLOT_JUMP, lib.NFP_CODE_POINTER_JUMP
_ROW = struct.Struct(f"={ROW_WORDS}q")
Addresses = NDArray[np.uint64]


class Ways:
    """Direct jumps or calls of a module.

    Args:
        targets: their targets.
        sites: their addresses.
        functions: the functions that contain them.

    Attributes:
        target_array: `targets`.
    """

    def __init__(self, targets: Addresses, sites: Addresses, functions: NDArray[np.int64]) -> None:
        order = np.lexsort((sites, targets))
        self.target_array = targets
        self._targets: list[int] = targets[order].tolist()
        self._sites: list[int] = sites[order].tolist()
        self._functions: list[int] = functions[order].tolist()

    @cached_property
    def targets(self) -> list[int]:
        """Returns their targets, each address once, sorted."""
        return list(dict.fromkeys(self._targets))

    def sites_of(self, target: int) -> list[int]:
        """Returns the addresses of those that lead to an address, sorted."""
        return self._sites[bisect_left(self._targets, target) : bisect_right(self._targets, target)]

    def functions_of(self, target: int) -> list[int]:
        """Returns the functions that contain those, each once."""
        return self._functions[bisect_left(self._targets, target) : bisect_right(self._targets, target)]


class _Group:
    """Events of some kinds.

    Args:
        count: number of functions.
        functions: the function of each event; those of one function are contiguous.
        columns: data of each.
    """

    def __init__(self, count: int, functions: NDArray[np.int64], *columns: NDArray[Any]) -> None:
        self._bounds = list(accumulate(np.bincount(functions, minlength=count).tolist(), initial=0))
        self._columns = [column.tolist() for column in columns]

    def of(self, index: int) -> Iterator[list[Any]]:
        """Yields the columns of one function's events."""
        low, high = self._bounds[index], self._bounds[index + 1]
        return (column[low:high] for column in self._columns)


class Scans:
    """The scans of all functions, by index in the image's frame table.

    Attributes:
        unknown: functions that the C core cannot scan.
        heads: lengths of the instructions of each function that a jump would displace, after a landing pad; empty if
            one of them does more than continue with the next.
        code_offsets: where the code of each function that has one of these is in the file.
    """

    def __init__(self, image: ElfImage, frames: Sequence[Frame]) -> None:
        self._image = image
        self._architecture = of_image(image)
        self._frames = frames
        self._starts = [frame.start for frame in frames]
        self._known: dict[int, FunctionScan] = {}
        functions, events, rows = scan_code(image, frames)
        self._kinds = events["kind"]
        self._targets = events["value"]
        self._functions = np.repeat(np.arange(len(functions)), functions["events"])
        self._starts_of_events = functions["start"][self._functions]
        self._sites = self._starts_of_events + events["offset"]
        self._troubles: list[int] = functions["trouble"].tolist()
        self._flags: list[int] = functions["flags"].tolist()
        self.unknown: list[int] = np.flatnonzero(functions["trouble"] == lib.NFP_CODE_UNKNOWN).tolist()

        self._leads = self._find_leads(functions)
        columns = self._targets, self._sites, events["frame_is_gone"] != 0, self._leads
        self._jumps = self._group(len(functions), _JUMPS, *columns)
        self._calls = self._group(len(functions), (_CALL,), *columns[:2])
        self._references = self._group(len(functions), (_REFERENCE,), self._targets)
        self._near = self._group(len(functions), (_NEAR,), self._targets)
        self._others = self._find_others()
        rows[:, 0] -= np.repeat(functions["start"], functions["rows"]).astype(np.int64)
        self._rows = rows.tobytes()
        self._row_bounds = list(accumulate((functions["rows"] * np.uint64(_ROW.size)).tolist(), initial=0))
        self._known_rows: dict[bytes, tuple[Row, ...]] = {}
        self.code_offsets: list[int] = functions["code"].tolist()
        self.heads = [_lengths(head) for head in functions["head"].tolist()]

    def _group(self, count: int, kinds: Sequence[int], *columns: NDArray[Any]) -> _Group:
        chosen = np.isin(self._kinds, kinds)
        return _Group(count, self._functions[chosen], *(column[chosen] for column in columns))

    def _find_others(self) -> dict[int, list[tuple[int, int, int]]]:
        """Returns kind, value and site of the rare events, by function."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        chosen = ~np.isin(self._kinds, (*_JUMPS, _CALL, _REFERENCE, _NEAR))
        columns = (self._functions, self._kinds, self._targets, self._sites)
        for index, *event in zip(*(column[chosen].tolist() for column in columns), strict=True):
            found.setdefault(index, []).append((event[0], event[1], event[2]))
        return found

    def _find_leads(self, functions: Rows) -> NDArray[np.int64]:
        """Returns for each event the function whose range contains its value, or -1: none, or an entry of a PLT."""
        if not len(functions):
            return np.empty(0, dtype=np.int64)
        found = np.searchsorted(functions["start"], self._targets, side="right") - 1
        sizes = np.array([frame.size for frame in self._frames], dtype=np.uint64)
        found[self._targets - functions["start"][found] >= sizes[found]] = -1
        for name, low, size in self._image.sections:
            if name.startswith(".plt") and low:
                found[self._targets - np.uint64(low) < np.uint64(size)] = -1
        return found

    @cached_property
    def harmless(self) -> list[bool]:
        """Returns whether jumps out of each function directly reach only functions of the module without trouble.

        False if that needs a closer analysis.
        """
        jumps = np.isin(self._kinds, _JUMPS)
        elsewhere = (jumps & (self._leads < 0)) | np.isin(self._kinds, (_SLOT_JUMP, _POINTER_JUMP))
        marked = np.array(self._troubles) != lib.NFP_CODE_NO_TROUBLE
        marked[self._functions[elsewhere]] = True
        harmless: list[bool] = (~reaching(marked, *self._inner_jumps)).tolist()
        return harmless

    @cached_property
    def circling(self) -> list[bool]:
        """Returns whether jumps out of each function may lead back into it."""
        circles: list[bool] = circling(len(self._frames), *self._inner_jumps).tolist()
        return circles

    @cached_property
    def _inner_jumps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Returns for each jump between functions the one that contains it and the one that it leads into."""
        inside = np.isin(self._kinds, _JUMPS) & (self._leads >= 0)
        others = [(index, lead) for index in self.unknown for lead in self.leads_of(index) if lead >= 0]
        sources, targets = np.array(others, dtype=np.int64).reshape(-1, 2).T
        known = self._functions[inside], self._leads[inside]
        return np.concatenate((known[0], sources)), np.concatenate((known[1], targets))

    def leads_of(self, index: int) -> list[int]:
        """Returns for each jump out of a function the function that it leads into; -1: none, or an entry of a PLT."""
        if self._troubles[index] == lib.NFP_CODE_UNKNOWN:
            return [self._lead(target) for target in self.at(index).jumps]
        *_, leads = self._jumps.of(index)
        return leads

    def _lead(self, address: int) -> int:
        index = bisect_right(self._starts, address) - 1
        inside = index >= 0 and address < self._starts[index] + self._frames[index].size
        return index if inside and not self._image.section_of(address).startswith(".plt") else -1

    def entry_rows(self, index: int) -> tuple[Row, ...]:
        """Returns the frame rules that begin in the first ENTRY_BYTES of a function; addresses are from its start.

        Raises:
            FrameError: its frame program is malformed.
        """
        words = self._rows[self._row_bounds[index] : self._row_bounds[index + 1]]
        if not words:
            frame = self._frames[index]
            rows = frame.rules(frame.start + ENTRY_BYTES).rows
            return tuple(row._replace(address=row.address - frame.start) for row in rows)
        known = self._known_rows.get(words)
        if known is None:  # most functions have those of others
            known = self._known_rows[words] = tuple(map(Row._make, _ROW.iter_unpack(words)))
        return known

    def at(self, index: int) -> FunctionScan:
        """Returns the scan of one function."""
        scan = self._known.get(index)
        if scan is None:
            is_unknown = self._troubles[index] == lib.NFP_CODE_UNKNOWN
            scan = (
                self._architecture.scan_function(self._image, self._frames[index]) if is_unknown else self._make(index)
            )
            self._known[index] = scan
        return scan

    @cached_property
    def runs_on(self) -> Marks:
        """Returns FunctionScan.runs_on of each function."""
        found = self._has(_RUNS_ON)
        found[self.unknown] = [self.at(index).runs_on for index in self.unknown]
        return found

    def plain(self, pad_bytes: int) -> Marks:
        """Returns of each function whether the C core knows it, finds a call target at its start, a way out and no
        trouble, and no jump in it, or through other functions, leads back to its start.

        Args:
            pad_bytes: as far behind its start is its start, too.
        """
        is_near = (self._kinds == _NEAR) & (self._targets <= self._starts_of_events + np.uint64(pad_bytes))
        plain = self._has(_OWN_ENTRY) & self._has(_HAS_EXIT)
        plain &= np.array(self._troubles) == lib.NFP_CODE_NO_TROUBLE
        plain[self._functions[is_near]] = False
        return plain & ~np.array(self.circling, dtype=np.bool_)

    def _has(self, flag: int) -> Marks:
        found: Marks = np.array(self._flags, dtype=np.uint32) & np.uint32(flag) != 0
        return found

    def _make(self, index: int) -> FunctionScan:
        """Creates a scan from the results of the C core."""
        flags = self._flags[index]
        jumps, jump_sites, jumps_leave, _ = self._jumps.of(index)
        calls, call_sites = self._calls.of(index)
        (references,), (near,) = self._references.of(index), self._near.of(index)
        scan = FunctionScan(
            self._frames[index],
            _REASONS[self._troubles[index]],
            jumps=jumps,
            jump_sites=jump_sites,
            jumps_leave=jumps_leave,
            calls=calls,
            call_sites=call_sites,
            references=references,
            near=near,
            has_exit=flags & _HAS_EXIT != 0,
            exits_elsewhere=flags & _EXITS_ELSEWHERE != 0,
            has_table=flags & _HAS_TABLE != 0,
            takes_address=flags & _TAKES_ADDRESS != 0,
            reads_return=flags & _READS_RETURN != 0,
            own_entry=flags & _OWN_ENTRY != 0,
            runs_on=flags & _RUNS_ON != 0,
        )
        for event in self._others.get(index, ()):
            self._finish(scan, *event)
        return scan

    def _finish(self, scan: FunctionScan, kind: int, value: int, site: int) -> None:
        """Handles events that need an instruction's full decoding, and rare ones."""
        if kind == _SLOT_JUMP:
            scan.slot_jumps.append(value)
            scan.slot_sites.append(site)
        elif kind == _POINTER_JUMP:
            if self._architecture.is_table_jump(self._image, scan.frame, site, value):
                scan.has_table = True
            else:
                scan.has_exit = True
                scan.pointer_jumps.append(site)
        else:
            words = self._architecture.count_argument_words(self._image, site, value)
            scan.argument_words = max(scan.argument_words, words)

    def jumps(self) -> Ways:
        """Returns direct jumps out of functions."""
        return self._ways(_JUMPS, lambda scan: zip(scan.jumps, scan.jump_sites, strict=True))

    def calls(self) -> Ways:
        """Returns direct calls."""
        return self._ways((_CALL,), lambda scan: zip(scan.calls, scan.call_sites, strict=True))

    def _ways(self, kinds: Sequence[int], of_scan: Callable[[FunctionScan], Iterable[tuple[int, int]]]) -> Ways:
        chosen = np.isin(self._kinds, kinds)
        others = [(*way, index) for index in self.unknown for way in of_scan(self.at(index))]
        targets, sites, functions = np.array(others, dtype=np.uint64).reshape(-1, 3).T
        return Ways(
            np.concatenate((self._targets[chosen], targets)),
            np.concatenate((self._sites[chosen], sites)),
            np.concatenate((self._functions[chosen], functions.astype(np.int64))),
        )

    def entered(self) -> Addresses:
        """Returns targets of direct branches and calls; inside a function, only targets near its start."""
        return self._values((*_JUMPS, _CALL, _NEAR), lambda scan: (*scan.jumps, *scan.calls, *scan.near))

    def entries(self) -> Addresses:
        """Returns addresses that are called, or taken by code."""
        return self._values((_CALL, _REFERENCE), lambda scan: (*scan.calls, *scan.references))

    def branched(self) -> Addresses:
        """Returns addresses that are only reached by conditional branches out of functions."""
        conditional = [_CONDITIONAL_JUMP], lambda scan: _conditional(self._image, scan, True)
        others = [_JUMP], lambda scan: _conditional(self._image, scan, False)
        found = self._values(*conditional)
        return found[~is_among(found, self._values(*others))]

    def _values(self, kinds: Sequence[int], of_scan: Callable[[FunctionScan], Iterable[int]]) -> Addresses:
        others = [value for index in self.unknown for value in of_scan(self.at(index))]
        chosen = self._targets[np.isin(self._kinds, kinds)]
        return distinct(np.concatenate((chosen, np.array(others, dtype=np.uint64))))


@cache
def _lengths(head: int) -> tuple[int, ...]:
    return tuple(head >> shift & 15 for shift in range(0, head.bit_length(), 4))


def _conditional(image: ElfImage, scan: FunctionScan, wanted: bool) -> Iterator[int]:
    """Yields targets of the conditional jumps out of a function, or of the others."""
    for target, site in zip(scan.jumps, scan.jump_sites, strict=True):
        if wanted == of_image(image).is_conditional(image, site):
            yield target
