# SPDX-License-Identifier: Apache-2.0
"""Recordings made from a seed: what nfprobe writes of them is pinned. The only file here that imports the product."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import ANCHOR
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.pipeline.absences import AbsenceFlag
from otel_nfprobe.profiling.samples import SAMPLE, AddressRange
from otel_nfprobe.recording.recording import RecordingHeader, RecordingWriter
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo, ThreadTotals
from tests.support.absences import make_switches
from tests.support.synthetic_records import Row, entry, leave, lost, poll, record, records, value

START_NS, TICKS_PER_NS = 1_700_000_000 * 10**9, 2
RX, CLASSIFY, LOOK_UP, TX, DROP = range(5)
NAMES = ("nf_receive", "nf_classify<a & b>", "nf_look_up", "nf_transmit", "nf_drop")
ROLES = (1, 0, 0, 2, 3)
PACKET, PACKET_ID, PACKET_V4, PACKET_ARRIVAL, ORIGIN, NOTE = 8, 9, 10, 11, 30, 31
LATE, DRAWN = 1, 2
RX_SP, CALL_SP, INNER_SP, HANDING_SP = 0x900, 0x800, 0x700, 0x600


@dataclass
class Thread:
    """One thread of the made-up NF: it receives, classifies and looks up its packets, and transmits or drops them.

    Args:
        index: in the thread table.
        rng: of the whole NF.
        late: packets are described when they leave, and only a few.
    """

    index: int
    rng: random.Random
    late: bool
    rows: list[Row] = field(default_factory=list)
    absences: list[tuple[int, int, int, int]] = field(default_factory=list)
    samples: list[tuple[int, ...]] = field(default_factory=list)
    counted: ThreadTotals = field(default_factory=lambda: ThreadTotals(0))
    now: int = 1_000_000
    packets: int = 0

    def work(self, batches: int) -> None:
        received = dropped = calls = 0
        for number in range(batches):
            size = self.rng.randrange(1, 17)
            gone = self.rng.randrange(size) if self.rng.random() < 0.1 else 0
            self._batch(number, size, gone)
            received, dropped, calls = received + size, dropped + gone, calls + 1
            self.now += self.rng.randrange(500, 30_000)
        sent = received - dropped
        self.counted = ThreadTotals(self.index, 77, 15_400, batches, received, calls, sent, 0, dropped, (0, 3))

    def _batch(self, number: int, size: int, gone: int) -> None:
        start = self.now
        self.rows += poll(RX, start, start + 200 + 10 * size, RX_SP, size, 16)
        self.now += 200 + 10 * size
        drawn = self.rng.random() < 0.05
        if self.late:
            self.rows.append(record(NOTE, RX, 0, LATE | (DRAWN if drawn else 0)))
        else:
            for position in range(size):
                self._describe(RX, position, self.packets + position, start - self.rng.randrange(100, 4_000))
        self._calls(number, size)
        told = self.late and (drawn or self.now - start > 40_000)
        self._hand_on(DROP, range(gone), start, told)
        self._hand_on(TX, range(gone, size), start, told)
        self.packets += size

    def _describe(self, function: int, position: int, packet: int, arrival: int | None, *between: Row) -> None:
        buffer = 0x7000_0000 + (self.index << 28) + packet % 512 * 2048
        self.rows += [record(PACKET, function, buffer, 60 + packet % 1400 | position << 16), *between]
        digest = 0xABC0_0000_0000 + (self.index << 32) + packet
        self.rows.append(record(PACKET_ID, function, digest, packet & 0xFFFF | 17 << 16 | 4 << 24))
        self.rows.append(record(PACKET_V4, function, 0x0A00_0001 + packet % 7 | 0x0A01_0002 << 32, 1000 | 53 << 16))
        if arrival is not None:
            self.rows.append(record(PACKET_ARRIVAL, function, arrival, 0))

    def _calls(self, number: int, size: int) -> None:
        work = 100 * size + self.rng.randrange(200)
        work *= 60 if number % 53 == 17 else 1  # now and then a slow one
        self.rows += [entry(CLASSIFY, self.now, CALL_SP), entry(LOOK_UP, self.now + 20, INNER_SP)]
        if number % 71 == 30:
            away = 80_000
            self.absences.append((self.now + 40, self.now + 40 + away, self.index, AbsenceFlag.PREEMPTED))
            work += away
        self.samples.append((self.now + work // 2, 0x1080 + number % 3 * 8, self.index, 0, 1, 0))
        self.now += work + 20
        self.rows += [leave(LOOK_UP, self.now, INNER_SP), leave(CLASSIFY, self.now + 30, CALL_SP)]
        self.now += 60
        if number % 97 == 40:  # a call that never ends, one that nobody entered, and records that were lost
            self.rows += [entry(LOOK_UP, self.now, INNER_SP), leave(CLASSIFY, self.now + 10, CALL_SP), lost(3, 1)]
            self.now += 20

    def _hand_on(self, function: int, positions: range, start: int, told: bool) -> None:
        if not positions:
            return
        self.rows.append(entry(function, self.now, HANDING_SP))
        for place, position in enumerate(positions):
            if told:
                origin = record(ORIGIN, function, start, position)
                self._describe(function, place, self.packets + position, None, origin)
            elif not self.late:
                self._describe(function, place, self.packets + position, None)
        self.now += 100 + 8 * len(positions)
        self.rows.append(value(function, len(positions) | len(positions) << 32, HANDING_SP))
        self.rows.append(leave(function, self.now, HANDING_SP))
        self.now += 40


def _functions() -> list[FunctionInfo]:
    return [
        FunctionInfo(id, role, "/opt/nf/firewall", 0x1000 + 64 * id, 64, name, "dynsym", "in-stack", 40.0, 55.0)
        for id, (name, role) in enumerate(zip(NAMES, ROLES, strict=True))
    ]


def _write(path: Path, seed: int, threads: int, batches: int, late: bool = False, whole: bool = True) -> None:
    rng = random.Random(seed)
    made = [Thread(index, rng, late, now=1_000_000 + 777 * index) for index in range(threads)]
    for thread in made:
        thread.work(batches)
    resource = {"service.name": "firewall", "host.name": "edge <1>", "process.pid": "42", "service.instance.id": "0-42"}
    header = RecordingHeader(
        "0.1.0", f"{seed:016x}", 42, "/opt/nf/firewall", "edge <1>", START_NS, 2e9, resource, {"packets": "all"}
    )
    writer = RecordingWriter(path, header)
    writer.functions(_functions())
    writer.threads([ThreadInfo(thread.index, 4711 + thread.index, f"worker-{thread.index}") for thread in made])
    writer.names(NumberNames({7: "ip4-lookup"}, {3: "acl deny"}, {1: "eth0"}, {4711: "0", 4712: "1"}))
    writer.clock(np.array([(0, START_NS, (1 << 32) // TICKS_PER_NS)], ANCHOR))
    for thread in made:
        writer.records(thread.index, records(thread.rows))
    writer.absences(make_switches([row for thread in made for row in thread.absences]))
    writer.samples(np.array([row for thread in made for row in thread.samples], SAMPLE))
    writer.places([AddressRange(0x1000, 0x100, "/opt/nf/firewall", 0x1000, "nf_look_up")])
    writer.counters([thread.counted for thread in made])
    writer.finish({}) if whole else writer.close()


# By name: what kind of recording it is.
RECORDINGS: dict[str, Callable[[Path], None]] = {
    "one-thread": lambda path: _write(path, 1, 1, 120),
    "two-threads": lambda path: _write(path, 2, 2, 150),
    "late-packets": lambda path: _write(path, 3, 2, 300, late=True),
    "cut": lambda path: _write(path, 4, 1, 60, whole=False),
}


def fill_templates() -> dict[str, bytes]:
    """The templates of trampolines by the name of their shape, with fields that are all different."""
    plain = {"tls_offset": -0x1234, "function": 0x11, "program": 0x22, "return_mask": 0x33, "gate": 0x44}
    values = ffi.new("struct nfp_trampoline *", plain)
    names = sorted(name for name in dir(lib) if name.startswith("NFP_SHAPE_") and name != "NFP_SHAPE_COUNT")
    filled = {}
    for name in names:
        shape = int(getattr(lib, name))
        size = int(lib.nfp_trampoline_bytes(shape))
        room = ffi.new("uint8_t[]", size)
        lib.nfp_trampoline_write(shape, values, room, size)
        filled[name.removeprefix("NFP_SHAPE_").lower()] = bytes(ffi.buffer(room, size))
    return filled
