# SPDX-License-Identifier: Apache-2.0
"""The probe library: its file, and where a target has loaded it. Reads only.

Addresses in the library are computed from the file on disk, so they are only valid if the target has mapped exactly
that content: between the choice of a path and the target's dlopen another file may have been put there, a target may
have a dlopen of its own, and anybody may use our file names. Therefore the kernel's list determines which file is
mapped, and its read-only parts are compared byte by byte before an address is used.
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
    """Returns the path of the probe library for this C library, next to this package's extension module."""
    return beside_core("libnfprobe-musl.so" if musl else "libnfprobe.so")


def library_name(musl: bool = False) -> str:
    """Returns the name of the library's memory file in targets. It contains the build ID: other builds load
    separately.
    """
    return f"libnfprobe-{build_id_of(library_path(musl))[:12]}.so"


def beside_core(name: str) -> Path:
    """Returns a file of this installation that was built with the extension module."""
    import otel_nfprobe._core as core

    return Path(str(core.__file__)).with_name(name)


@lru_cache(maxsize=16)
def library_offset(musl: bool, symbol: str) -> int:
    """Returns the offset of an exported symbol from the library's base address."""
    offset = exported_offset(library_path(musl), symbol)
    if offset is None:
        raise NfprobeError("The probe library of this installation is damaged.", "make build")
    return offset


def find_library(target: Target) -> int:
    """Returns the base address of the library loaded by an earlier attach, 0 if there is none.

    Raises:
        NfprobeError: the target has loaded something else under its name.
    """
    name = library_name(target.runs_on_musl)
    stem = name.removesuffix(".so")  # of a memory file, or of a file named by library_file.py
    maps = target.maps()
    named = [mapping for mapping in maps if stem in os.path.basename(mapping.path)]
    base = _find(target, maps, named)
    if not base and any(mapping.is_executable for mapping in named):
        raise _wrong_library(target, f"it runs something else under the name {name}")
    return base


def check_loaded(target: Target, given: Sequence[MappedFile], entry: int) -> int:
    """Returns the base address of the library that a target has just loaded.

    Args:
        given: the file it was told to load, as identified by the kernel.
        entry: reported start address of its helper thread.

    Raises:
        NfprobeError: it has loaded something else.
    """
    maps = target.maps()
    ours = [m for m in maps if any(file.names(m.device, m.inode) for file in given)]
    base = _find(target, maps, ours)
    if not base:
        raise _wrong_library(target, "it has not mapped the file it was given")
    if entry != base + library_offset(target.runs_on_musl, ENTRY_SYMBOL):
        raise _wrong_library(target, "its helper thread runs other code")
    return base


def _find(target: Target, maps: Sequence[Mapping], files: Sequence[Mapping]) -> int:
    """Returns the base address of the library among these file mappings, 0 if none has its layout.

    A mapping with another layout is not the library: programs that look up symbols map the file as data.
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
    """Returns whether a segment's pages are those of the file that `first` maps."""
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
        if part.flags & WRITABLE:  # written by the dynamic linker and the library itself
            continue
        if target.read(base + part.address, part.file_bytes) != image.read(part.address, part.file_bytes):
            raise _wrong_library(target, "the mapped content differs from the library's file")


def _wrong_library(target: Target, reason: str) -> NfprobeError:
    return NfprobeError(
        f"What process {target.pid} has loaded is not the probe library: {reason}. None of it was used.",
        f"nfprobe doctor {target.pid}",
    )
