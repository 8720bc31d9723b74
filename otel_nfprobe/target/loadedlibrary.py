# SPDX-License-Identifier: Apache-2.0
"""The probe library: its file, and where a target has loaded it. Reads only.

Addresses in the library are worked out from the file on disk, so they hold only where the target has mapped that very
content: between the choice of a path and the target's dlopen another file may have come there, a target may have a
dlopen of its own, and anybody may call a file as ours is called. So the kernel's list says which file is mapped, and
what may not be written there is compared byte by byte before an address is used.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.elf import EXECUTABLE, PAGE_BYTES, ElfImage
from otel_nfprobe.elf.elftables import Segment
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import build_id_of, exported_offset
from otel_nfprobe.linux.mappedfile import MappedFile
from otel_nfprobe.target.target import Mapping, Target

ENTRY_SYMBOL = "nfp_helper_main"
WRITABLE = 2  # PF_W


def library_path(musl: bool = False) -> Path:
    """The probe library for this C library on disk, beside this package's extension module."""
    return beside_core("libnfprobe-musl.so" if musl else "libnfprobe.so")


def library_name(musl: bool = False) -> str:
    """Name of the library's memory file in targets. It holds the build id: other builds load beside."""
    return f"libnfprobe-{build_id_of(library_path(musl))[:12]}.so"


def beside_core(name: str) -> Path:
    """A file of this installation that was built with the extension module."""
    import otel_nfprobe._core as core

    return Path(str(core.__file__)).with_name(name)


@lru_cache(maxsize=16)
def library_offset(musl: bool, symbol: str) -> int:
    """Where the library has an exported symbol, from its base address."""
    offset = exported_offset(library_path(musl), symbol)
    if offset is None:
        raise NfprobeError("The probe library of this installation is damaged.", "make build")
    return offset


def find_library(target: Target) -> int:
    """Base address of the library that an earlier attach has loaded, 0 when there is none.

    Raises:
        NfprobeError: the target runs something else under its name.
    """
    name = library_name(target.runs_on_musl)
    stem = name.removesuffix(".so")  # of a memory file, or of a file that library_file.py has named
    maps = target.maps()
    named = [mapping for mapping in maps if stem in os.path.basename(mapping.path)]
    base = _find(target, maps, named)
    if not base and any(mapping.is_executable for mapping in named):
        raise _not_ours(target, f"it runs something else under the name {name}")
    return base


def check_loaded(target: Target, given: Sequence[MappedFile], entry: int) -> int:
    """Base address of the library that a target has just loaded.

    Args:
        given: what it was given to load, as the kernel names that.
        entry: where its helper thread says that it has begun.

    Raises:
        NfprobeError: it has loaded something else.
    """
    maps = target.maps()
    ours = [m for m in maps if any(file.names(m.device, m.inode) for file in given)]
    base = _find(target, maps, ours)
    if not base:
        raise _not_ours(target, "it has not mapped the file that it was given")
    if entry != base + library_offset(target.runs_on_musl, ENTRY_SYMBOL):
        raise _not_ours(target, "its helper thread runs other code")
    return base


def _find(target: Target, maps: Sequence[Mapping], files: Sequence[Mapping]) -> int:
    """Base address of the library among these mappings of files, 0 when none is laid out as it is.

    What is laid out differently is no library: programs that look up symbols map the file as data.
    """
    image = Module.from_file(library_path(target.runs_on_musl)).image
    starts = [mapping.start for mapping in maps]
    for first in files:
        base = first.start - image.lowest
        if first.offset == 0 and all(_is_mapped(maps, starts, first, base, part) for part in image.segments):
            _compare(target, image, base)
            return base
    return 0


def _is_mapped(maps: Sequence[Mapping], starts: Sequence[int], first: Mapping, base: int, part: Segment) -> bool:
    """Whether a segment's pages are those of the file that `first` is of."""
    at = base + part.address & -PAGE_BYTES
    offset = part.offset & -PAGE_BYTES
    end = base + part.address + part.file_bytes
    while at < end:
        mapping = maps[bisect_right(starts, at) - 1]
        is_there = (mapping.device, mapping.inode) == (first.device, first.inode) and mapping.start <= at < mapping.end
        if not is_there or mapping.offset + at - mapping.start != offset:
            return False
        if part.flags & EXECUTABLE and not mapping.is_executable:
            return False
        offset += mapping.end - at
        at = mapping.end
    return True


def _compare(target: Target, image: ElfImage, base: int) -> None:
    for part in image.segments:
        if part.flags & WRITABLE:  # the dynamic linker and the library itself have written there
            continue
        if target.read(base + part.address, part.file_bytes) != image.read(part.address, part.file_bytes):
            raise _not_ours(target, "what it has mapped differs from the library's file")


def _not_ours(target: Target, reason: str) -> NfprobeError:
    return NfprobeError(
        f"What process {target.pid} has loaded is not the probe library: {reason}. None of it was used.",
        f"nfprobe doctor {target.pid}",
    )
