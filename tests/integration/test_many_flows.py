# SPDX-License-Identifier: Apache-2.0
"""As many flows as packets, up to ten million: every id is right, and what the monitor keeps does not grow."""

from __future__ import annotations

import gc
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import TRANSMITTED, Columns
from otel_nfprobe.pipeline.repeats import RepeatsCounts
from tests.support.packet_digest import describe
from tests.support.probed import Probed, Talker, wait_until

pytestmark = pytest.mark.integration

CHUNK = 3_200 * 32  # packets; their records fit into the ring however late the monitor is
DESCRIPTION = """
name: flows
receive: [{function: "*:flows_receive", pointers: 0, requested: 1, count: return}]
transmit: [{function: "*:flows_transmit", pointers: 0, requested: 1, count: return}]
buffer: {data: 0, length: {offset: 8, bytes: 4}, segment_length: {offset: 12, bytes: 2}}
"""
GROWTH_BYTES = 96 << 20  # ten bytes a flow would be more, in the long run


def frame_of(number: int) -> bytes:
    """Packet `number` of tests/targets/flows.c."""
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 46, 0, 0, 64, 17, 0, 0x0A000000 + number, 0x0A800002)
    frame = bytes.fromhex("0200000000020200000000010800") + ip + struct.pack(">HHHHI", 10000, 53, 26, 0, number)
    return frame.ljust(60, b"\0")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class Seen:
    """Checks packets as they come out of the pipeline; keeps their ids."""

    def __init__(self) -> None:
        self.digests: list[np.ndarray] = []  # type: ignore[type-arg]
        self.wrong = 0
        self.repeats: RepeatsCounts | None = None

    def add(self, columns: Columns, repeats: RepeatsCounts) -> None:
        packets, self.repeats = columns.packets, repeats
        first = sum(map(len, self.digests))
        numbers = np.arange(first, first + len(packets))
        addresses = packets["source"][:, :4].copy().view(">u4")[:, 0]
        whole = (packets["disposition"] == TRANSMITTED) & (packets["done_digest"] == packets["digest"])
        self.wrong += int(np.count_nonzero((addresses != 0x0A000000 + numbers) | ~whole))
        self.digests.append(packets["digest"].copy())


@pytest.mark.parametrize("count", [3 * CHUNK, pytest.param(98 * CHUNK, marks=pytest.mark.long)])
def test_a_flow_for_each_packet(
    count: int, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    talker, seen = Talker(spawn(compile_target("flows"), stdin=subprocess.PIPE)), Seen()
    (tmp_path / "flows.yaml").write_text(DESCRIPTION)
    with Probed(talker.pid, [], tmp_path / "flows.yaml", ring_bytes=64 << 20) as probed:
        drain = probed.monitor.drain
        add = drain.statistics.add

        def look(columns: Columns) -> None:
            seen.add(columns, drain.repeats.counts())
            add(columns)

        drain.statistics.add = look  # type: ignore[method-assign]
        sizes = []
        for done in range(CHUNK, count + 1, CHUNK):
            assert talker.ask(f"flows {CHUNK // 32}") == str(done)
            assert wait_until(lambda done=done: drain.pipeline.counts().received == done)  # type: ignore[misc]
            gc.collect()
            sizes.append(resident_bytes() - 8 * sum(map(len, seen.digests)))
    probed.assert_exact()
    assert (probed.counts.transmitted, probed.counts.unknown, probed.counts.discarded) == (count, 0, 0)
    assert seen.repeats is not None
    assert (seen.repeats.packets, seen.repeats.repeated) == (count, 0)
    digests = np.concatenate(seen.digests)
    assert (len(digests), seen.wrong) == (count, 0)
    assert len(np.unique(digests)) == count
    for number in range(0, count, count // 200):
        assert digests[number] == describe(frame_of(number)).digest
    assert sizes[-1] - sizes[len(sizes) // 2] < GROWTH_BYTES, sizes
