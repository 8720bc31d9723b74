# SPDX-License-Identifier: Apache-2.0
"""Code scan: facts about the machine code of a module's functions, by the C core, where it knows every instruction.

The structures are those of native/core/codescan.h, which documents them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.elf.ehframe import ENTRY_BYTES, Frame
from otel_nfprobe.elf.elf import ElfImage

FUNCTION = dtype_of("nfp_code_function")
EVENT = dtype_of("nfp_code_event")
EVENTS_MIN = 1 << 20  # minimum capacity
ROWS_ROOM = 1 << 18
MARKS_ROOM = 1 << 20
ROW_WORDS = lib.NFP_FRAME_ROW_WORDS


class CodeScan(NamedTuple):
    """Results of a scan.

    Attributes:
        functions: a row for each function (struct nfp_code_function).
        events: of all functions, one function after the other (struct nfp_code_event).
        rows: of frame rules near the functions' entries: address, register, offset.
    """

    functions: Rows
    events: Rows
    rows: NDArray[np.int64]


def scan_code(image: ElfImage, frames: Sequence[Frame]) -> CodeScan:
    """Scans all functions of an image."""
    programs = b"".join([frame.instructions for frame in frames])
    functions = _describe(image, frames)
    scan = ffi.new("struct nfp_code_scan *")
    data = image.data  # referenced until the end: the image may release it
    scan.file, scan.file_bytes = ffi.from_buffer("uint8_t[]", data), len(data)
    scan.programs, scan.programs_bytes = ffi.from_buffer("uint8_t[]", programs), len(programs)
    scan.functions = ffi.from_buffer("struct nfp_code_function[]", functions)
    scan.count, scan.entry_bytes = len(functions), ENTRY_BYTES
    scan.events_room, scan.rows_room = max(EVENTS_MIN, int(functions["bytes"].max(initial=0))), ROWS_ROOM
    room = np.empty(scan.events_room, dtype=EVENT), np.empty((ROWS_ROOM, ROW_WORDS), dtype=np.int64)
    scan.events = ffi.from_buffer("struct nfp_code_event[]", room[0])
    scan.rows = ffi.from_buffer("int64_t[]", room[1])
    stubs = [place[1:] for place in image.sections if place[0].startswith(".plt") and place[1]]
    scan.stubs_count, marks = len(stubs), bytearray(MARKS_ROOM)
    stub_words = ffi.new("uint64_t[]", [word for place in stubs for word in place])
    scan.stubs, scan.marks, scan.marks_room = stub_words, ffi.from_buffer("uint8_t[]", marks), MARKS_ROOM
    events, rows = [room[0][:0]], [room[1][:0]]
    behind = 0, 0  # events and rows of the preceding functions
    while scan.done < scan.count:
        before, scan.events_count, scan.rows_count = int(scan.done), 0, 0
        lib.nfp_code_scan(scan)
        functions["first_event"][before : int(scan.done)] += behind[0]
        functions["first_row"][before : int(scan.done)] += behind[1]
        events.append(room[0][: int(scan.events_count)].copy())
        rows.append(room[1][: int(scan.rows_count)].copy())
        behind = behind[0] + int(scan.events_count), behind[1] + int(scan.rows_count)
    return CodeScan(functions, np.concatenate(events), np.concatenate(rows))


def _describe(image: ElfImage, frames: Sequence[Frame]) -> Rows:
    """Returns each function's code range and frame program. Functions not entirely in the file have no bytes."""
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
    for segment in reversed(image.segments):  # the first segment containing an address counts
        inside = starts - np.uint64(segment.address)
        here = inside < np.uint64(segment.file_bytes)
        functions["code"][here] = inside[here] + np.uint64(segment.offset)
        whole = sizes <= np.uint64(segment.file_bytes) - inside
        functions["bytes"][here] = np.where(whole[here], sizes[here], 0)
    return functions
