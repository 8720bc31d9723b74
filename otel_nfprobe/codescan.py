# SPDX-License-Identifier: Apache-2.0
"""What the machine code of a module's functions shows, by the C core, for those that it knows all instructions of.

Rows of two structures of native/core/codescan.h, which says what they mean. Called by branches.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.columns import Rows
from otel_nfprobe.ehframe import Frame
from otel_nfprobe.elf import ElfImage

FUNCTION = np.dtype(
    [
        ("start", "<u8"),
        ("code", "<u8"),
        ("bytes", "<u8"),
        ("program", "<u8"),
        ("program_bytes", "<u4"),
        ("cfa_register", "<i4"),
        ("cfa_offset", "<i4"),
        ("trouble", "<u4"),
        ("flags", "<u4"),
        ("events", "<u4"),
        ("first_event", "<u8"),
    ]
)
EVENT = np.dtype([("value", "<u8"), ("offset", "<u4"), ("kind", "<u4")])
EVENTS_MIN = 1 << 20  # there is room for


def scan_code(image: ElfImage, frames: Sequence[Frame]) -> tuple[Rows, Rows]:
    """A row for each function (struct nfp_code_function), and their events (struct nfp_code_event)."""
    programs = b"".join([frame.instructions for frame in frames])
    functions = _describe(image, frames)
    scan = ffi.new("struct nfp_code_scan *")
    scan.file, scan.file_bytes = ffi.from_buffer("uint8_t[]", image.data), len(image.data)
    scan.programs, scan.programs_bytes = ffi.from_buffer("uint8_t[]", programs), len(programs)
    scan.functions = ffi.from_buffer("struct nfp_code_function[]", functions)
    scan.count = len(functions)
    scan.events_room = max(EVENTS_MIN, int(functions["bytes"].max(initial=0)))
    room = np.empty(scan.events_room, dtype=EVENT)
    scan.events = ffi.from_buffer("struct nfp_code_event[]", room)
    found: list[Rows] = []
    behind = 0  # events of the functions before
    while scan.done < scan.count:
        before, scan.events_count = int(scan.done), 0
        lib.nfp_code_scan(scan)
        functions["first_event"][before : int(scan.done)] += behind
        found.append(room[: int(scan.events_count)].copy())
        behind += int(scan.events_count)
    return functions, np.concatenate(found) if found else room[:0]


def _describe(image: ElfImage, frames: Sequence[Frame]) -> Rows:
    """Where the code of each function is, and its frame program. What the file does not hold whole has no bytes."""
    functions = np.zeros(len(frames), dtype=FUNCTION)
    starts = np.array([frame.start for frame in frames], dtype=np.uint64)
    sizes = np.array([frame.size for frame in frames], dtype=np.uint64)
    lengths = np.array([len(frame.instructions) for frame in frames], dtype=np.uint64)
    functions["start"] = starts
    functions["program_bytes"] = lengths
    functions["program"] = np.cumsum(lengths) - lengths
    begins = {id(frame.common): frame.common for frame in frames}
    quick = {key: common.quick_start() or (-1, 0) for key, common in begins.items()}
    functions["cfa_register"] = [quick[id(frame.common)][0] for frame in frames]
    functions["cfa_offset"] = [quick[id(frame.common)][1] for frame in frames]
    for segment in reversed(image.segments):  # the first one that holds an address counts
        inside = starts - np.uint64(segment.address)
        here = inside < np.uint64(segment.file_bytes)
        functions["code"][here] = inside[here] + np.uint64(segment.offset)
        whole = sizes <= np.uint64(segment.file_bytes) - inside
        functions["bytes"][here] = np.where(whole[here], sizes[here], 0)
    return functions
