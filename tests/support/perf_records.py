# SPDX-License-Identifier: Apache-2.0
"""Records as the kernel writes them into the perf buffers of absences."""

from __future__ import annotations

import struct
from collections.abc import Sequence

LOST = struct.pack("<IHH", 2, 0, 48) + bytes(40)  # PERF_RECORD_LOST


def make_switch(misc: int, time_ns: int) -> bytes:
    """PERF_RECORD_SWITCH with thread, time, ID and CPU."""
    return struct.pack("<IHHIIQQII", 14, misc, 40, 0, 0, time_ns, 0, 3, 0)


def make_sample(
    time_ns: int,
    data: bytes = bytes(4),
    id_: int = 0,
    address: int = 0,
    frames: Sequence[int] = (),
    argument: int | None = None,
    stated: int | None = None,
) -> bytes:
    """PERF_RECORD_SAMPLE: thread, time, address, ID, CPU, period, frames, raw data, registers.

    Args:
        stated: how many bytes of raw data it says it has; None: as many as there are.
    """
    body = struct.pack("<IIQQQIIQ", 11, 11, time_ns, address, id_, 3, 0, 1)
    body += struct.pack(f"<Q{len(frames)}Q", len(frames), *frames)
    body += struct.pack("<I", len(data) if stated is None else stated) + data
    body += struct.pack("<QQ", 2, argument) if argument is not None else b""
    return struct.pack("<IHH", 9, 0, 8 + len(body)) + body
