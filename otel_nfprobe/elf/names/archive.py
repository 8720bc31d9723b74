# SPDX-License-Identifier: Apache-2.0
"""Names for a stripped module's functions from a static archive (.a) that contains the same code.

Distributions strip shared libraries but keep the archives' symbols: the same objects, before linking. What the linker
filled in (relocated fields, and instructions that it may rewrite there) is masked, everything else must be equal.
Functions with unique code reveal where their object's section was placed; a function whose code equals another's gets
the name for its position. Reads files only.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import glob
from itertools import count
from typing import NamedTuple

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.processors import HOST
from otel_nfprobe.elf import cache
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.debugfile import FileReader, roots_of
from otel_nfprobe.elf.objectfile import FILE_BYTES_MAX, ObjectError, ObjectFile

MAGIC = b"!<arch>\n"
THIN_MAGIC = b"!<thin>\n"
MEMBER_HEADER_BYTES = 60
AGREEMENT_MIN = 0.9  # of names known from other sources; below, the archive is of another build
COMPARED_MIN = 3  # with fewer known names this is not checked
DPDK_FOLDERS = (
    f"/usr/lib/{HOST.library_folder}", f"/usr/local/lib/{HOST.library_folder}",
    "/usr/lib64", "/usr/local/lib64", "/usr/local/lib",
)  # fmt: skip
DPDK_SIGN = b"EAL: "  # its messages; a program that contains them is statically linked with it

_USUAL_MASK = (0, 4)  # bytes before and after a relocated field that differ after linking
MASK_BYTES_MAX = 16


class ArchiveFunction(NamedTuple):
    """A function of an archive."""

    name: str
    section: int  # unique across all sections of all objects
    offset: int  # in it


Code = dict[int, dict[int, dict[int, list[ArchiveFunction]]]]  # size -> mask -> masked bytes -> functions


def archive_names(
    module: Module, spans: Sequence[tuple[int, int]], known: Mapping[int, set[str]], paths: Sequence[str]
) -> dict[int, str]:
    """Returns names of functions by their start.

    Args:
        spans: start and size of all the module's functions.
        known: names known from other sources, by start.
        paths: archives.

    Raises:
        UsageError: an archive cannot be read.
    """
    if not paths:
        return {}
    key = " ".join(f"{path} {_stamp(path)}" for path in paths)
    stored = cache.load(module.build_id, "archive", key)
    if stored is not None:
        return {int(start): str(name) for start, name in json.loads(stored).items()}
    found = _match(module, spans, known, _read_code(paths, {size for _, size in spans}))
    cache.store(module.build_id, "archive", json.dumps(found).encode(), key)
    return found


def known_archives(module: Module) -> list[str]:
    """Returns archives that may contain the module's code: DPDK's, next to its libraries and programs."""
    library = next((name for name in module.names if name.startswith("librte_") and ".so" in name), "")
    if library:
        pattern = f"{library.partition('.so')[0]}.a"
    elif module.image.has_interpreter and DPDK_SIGN in module.image.data and not _needs_dpdk(module):
        pattern = "librte_*.a"
    else:
        return []
    for root in roots_of(module):
        for folder in (os.path.dirname(module.path), *DPDK_FOLDERS):
            found = sorted(glob(f"{root}{folder}/{pattern}"))
            if found:
                return found
    return []


def _needs_dpdk(module: Module) -> bool:
    return b"librte_eal.so" in module.image.data


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UsageError(f"The archive {path} cannot be read: {error.strerror}.", "nfprobe functions --help") from error
    return f"{status.st_size} {status.st_mtime_ns}"


def _match(
    module: Module, spans: Iterable[tuple[int, int]], known: Mapping[int, set[str]], code: Code
) -> dict[int, str]:
    candidates: dict[int, list[ArchiveFunction]] = {}
    for start, size in spans:
        value = int.from_bytes(module.image.read(start, size), "little")
        tables = code.get(size, {}).items()
        places = [place for mask, table in tables for place in table.get(value & mask, ())]
        if places:
            candidates[start] = places
    bases = _section_bases(candidates)
    expected = {
        bases[place.section] + place.offset: place
        for places in _distinct(candidates.values())
        for place in places
        if place.section in bases
    }
    found = {start: expected[start].name for start in candidates if expected.get(start) in candidates[start]}
    found.update(_unplaced({start: places for start, places in candidates.items() if start not in found}, bases))
    return found if _agrees(found, known) else {}


def _distinct(lists: Iterable[Sequence[ArchiveFunction]]) -> Iterable[Sequence[ArchiveFunction]]:
    return {tuple(places): None for places in lists}


def _section_bases(candidates: Mapping[int, Sequence[ArchiveFunction]]) -> dict[int, int]:
    """Returns where sections of the archive's objects begin in the module, from functions with a unique match."""
    claimed = Counter(places[0] for places in candidates.values() if len(places) == 1)
    votes: dict[int, Counter[int]] = defaultdict(Counter)
    for start, places in candidates.items():
        if len(places) == 1 and claimed[places[0]] == 1:
            votes[places[0].section][start - places[0].offset] += 1
    return {section: counted.most_common(1)[0][0] for section, counted in votes.items() if len(counted) == 1}


def _unplaced(candidates: Mapping[int, Sequence[ArchiveFunction]], bases: Mapping[int, int]) -> dict[int, str]:
    """Names functions of unplaced sections: only where the module has no more of them than the archive."""
    rivals: dict[tuple[ArchiveFunction, ...], list[int]] = defaultdict(list)
    for start, places in candidates.items():
        rivals[tuple(places)].append(start)
    found: dict[int, str] = {}
    for places, starts in rivals.items():
        free = [place for place in places if place.section not in bases]
        names = {place.name for place in free}
        if len(names) == 1 and len(starts) <= len(free):
            name = names.pop()
            found.update((start, name) for start in starts)
    return found


def _agrees(found: Mapping[int, str], known: Mapping[int, set[str]]) -> bool:
    compared = [name in known[start] for start, name in found.items() if known.get(start)]
    return len(compared) < COMPARED_MIN or sum(compared) >= AGREEMENT_MIN * len(compared)


def _read_code(paths: Sequence[str], sizes: set[int]) -> Code:
    code: Code = {}
    sections = count()
    for path in paths:
        try:
            for content in _members(path):
                _add_object(code, content, sizes, sections)
        except (OSError, ObjectError) as error:
            raise UsageError(f"The archive {path} cannot be used: {error}.", "nfprobe functions --help") from error
    return code


def _members(path: str) -> Iterator[bytes]:
    reader = FileReader(path)
    content = reader.read(0, FILE_BYTES_MAX)
    if content.startswith(b"\x7fELF"):
        yield content
        return
    if not content.startswith(MAGIC):
        thin = content.startswith(THIN_MAGIC)
        raise ObjectError("it is a thin archive, without the objects" if thin else "it is not an archive")
    position = len(MAGIC)
    while position + MEMBER_HEADER_BYTES <= len(content):
        header = content[position : position + MEMBER_HEADER_BYTES]
        digits = header[48:58].strip()
        if header[58:] != b"`\n" or not digits.isdigit():
            raise ObjectError(f"the member at offset {position} is malformed")
        start = position + MEMBER_HEADER_BYTES
        member = content[start : start + int(digits)]
        if member.startswith(b"\x7fELF"):
            yield member
        position = start + int(digits) + (int(digits) & 1)
    if position < len(content):
        raise ObjectError("it is truncated")


def _add_object(code: Code, content: bytes, sizes: set[int], numbers: Iterator[int]) -> None:
    whole = ObjectFile.of_bytes(content)
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for section, offset, kind in whole.relocations():
        before, behind = whole.processor.relocated.get(kind, _USUAL_MASK)
        places[section].append((offset - before, offset + behind))
    texts: dict[int, bytes] = {}
    sections: dict[int, int] = {}
    for symbol in whole.symbols():
        if symbol.kind not in (2, 10) or symbol.size not in sizes or not 0 < symbol.section < len(whole.sections):
            continue
        if symbol.section not in texts:
            texts[symbol.section] = whole.content(whole.sections[symbol.section])
            sections[symbol.section] = next(numbers)
            places[symbol.section].sort()
        body = texts[symbol.section][symbol.value : symbol.value + symbol.size]
        if len(body) == symbol.size:
            mask = _mask_of(places[symbol.section], symbol.value, symbol.size)
            value = int.from_bytes(body, "little") & mask
            table = code.setdefault(symbol.size, {}).setdefault(mask, {})
            table.setdefault(value, []).append(ArchiveFunction(symbol.name, sections[symbol.section], symbol.value))


def _mask_of(places: Sequence[tuple[int, int]], start: int, size: int) -> int:
    """Returns ones for the bytes that linking does not change. `places`: sorted."""
    mask = bytearray(b"\xff") * size
    for index in range(bisect_left(places, (start - MASK_BYTES_MAX, 0)), len(places)):
        low, high = places[index]
        if low >= start + size:
            break
        first, last = max(low - start, 0), min(high - start, size)
        if first < last:
            mask[first:last] = bytes(last - first)
    return int.from_bytes(mask, "little")
