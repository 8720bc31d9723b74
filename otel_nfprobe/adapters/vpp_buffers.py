# SPDX-License-Identifier: Apache-2.0
"""Where a running VPP keeps the buffers of its packets, and what a call of a graph node says of them.

    vlib_main_t -> buffer_main -> buffer_mem_start, buffer_mem_size
    frame -> 32-bit numbers -> buffer_mem_start + (number << 6) = vlib_buffer_t

The place of buffer_main differs between releases and is looked for. Reads the target only.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import (
    ABSENT,
    COUNT_RETURN,
    NO_OFFSET,
    Batch,
    Buffer,
    Burst,
    Numbered,
    make_program,
)
from otel_nfprobe.adapters.vpp_frames import FRAME_ARGUMENT, Frame
from otel_nfprobe.adapters.vpp_graph import MAIN_BYTES
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.target import Mapping, Target

PAGE_BYTES = 4096
MEMORY_MIN, MEMORY_MAX = 1 << 16, 1 << 40  # of all buffers: buffer_mem_size, of which not all need be mapped
MAIN_ARGUMENT = 0
FRAME_PACKETS = 256  # VLIB_FRAME_SIZE
RECEIVED_MAX = lib.NFP_LATE_NUMBERS  # more of one call of an input node are only counted
LINK_EITHER = lib.NFP_LINK_EITHER  # nodes move a packet's beginning over its headers
# vlib_buffer_t: current_data 0 (signed), current_length 2, flags 4, error 14, next_buffer 16, sw_if_index of receive 24
# and of transmit 28, data 256. The first buffer's length is all that is stored of a chain; flag 1 says that there is a
# next buffer.
BUFFER = Buffer(
    data=256,
    data_offset=0,
    length=2,
    length_bytes=2,
    segment_length=2,
    segment_bytes=2,
    link_layer=LINK_EITHER,
    pooled=True,
    numbered=Numbered(
        shift=6,
        next_number=16,
        next_flags=4,
        next_bit=1,
        receive_interface=24,
        transmit_interface=28,
        reason=14,
    ),
)


def find_buffer_memory(target: Target, main: int) -> tuple[int, int] | None:
    """Address and bytes of the readable memory of all buffers; None when it is not found, or could be several.

    Args:
        main: address of a vlib_main_t.
    """
    maps = target.maps()
    starts = {mapping.start for mapping in maps if mapping.permissions.startswith("rw")}
    found = set()
    for address in _pointers(target, main, maps):
        try:
            start, size = struct.unpack("<QQ", target.read(address, 16))
        except NfprobeError:
            continue
        if start in starts and MEMORY_MIN <= size <= MEMORY_MAX and size % PAGE_BYTES == 0:
            found.add((start, min(size, _readable_end(maps, start) - start)))
    return found.pop() if len(found) == 1 else None


def make_node_program(role: int, frame: Frame, is_input: bool) -> dict[str, int]:
    """What the probe of a node function reads: its frame, or of an input node those that are pending at its return."""
    argument, capacity = (MAIN_ARGUMENT, RECEIVED_MAX) if is_input else (FRAME_ARGUMENT, FRAME_PACKETS)
    burst = Burst(argument, ABSENT, COUNT_RETURN, batch=find_vectors(frame, capacity), checked=True)
    return make_program(role, burst, BUFFER)


def find_vectors(frame: Frame, capacity: int) -> Batch:
    """Where a frame has its vectors, of which at most so many are described."""
    return Batch(frame.count, 2, frame.vectors, capacity, NO_OFFSET if frame.array is None else frame.array)


def _pointers(target: Target, main: int, maps: Sequence[Mapping]) -> set[int]:
    """What could be an address in a vlib_main_t, or in as much of it as can be read."""
    end = min(main + MAIN_BYTES, _readable_end(maps, main))
    words = struct.unpack(f"<{(end - main) // 8}Q", target.read(main, (end - main) // 8 * 8))
    return {word for word in words if word % 8 == 0 and PAGE_BYTES <= word < 1 << 47}


def _readable_end(maps: Sequence[Mapping], address: int) -> int:
    """Up to where memory can be read without a gap."""
    end = address
    for mapping in maps:
        if mapping.start <= end < mapping.end and mapping.permissions.startswith("r"):
            end = mapping.end
    return end
