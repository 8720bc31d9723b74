# SPDX-License-Identifier: Apache-2.0
"""Network functions in a row, simulated packet by packet and written as recordings: the truth about each is known.

Each function has one thread that polls a queue for up to 32 packets, works on them for a time per packet, and sends
them when all are done. A stall is a call of its work that takes so long, or a time in which another task had its CPU.
"""

from __future__ import annotations

import bisect
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from otel_nfprobe.base.clock import ANCHOR
from otel_nfprobe.pipeline.absences import AbsenceFlag
from otel_nfprobe.recording.recording import RecordingHeader, RecordingWriter
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo
from tests.support.absences import make_switches
from tests.support.synthetic_records import RECEIVE, TRANSMIT, Row, entry, leave, poll, record, records, value

START_NS, TICKS_PER_NS = 1_700_000_000 * 10**9, 2
RX, WORK, TX = 0, 1, 2
POLL_QUEUE = 16
SLOW_FLOW, SLOW_NS = 3, 15_000  # one packet in 16 of arrive()
BURST, WIRE_NS, POLL_NS, SEND_NS = 32, 400, 200, 300
BOOT = "8b1f3f0a-0000-4000-8000-000000000001"


@dataclass
class Packet:
    """A packet on its way: its number, when it is at the next queue, its content and addresses now."""

    number: int
    at_ns: int
    content: int
    source: int


@dataclass
class Nf:
    """A network function and what is special about it.

    Args:
        name: of its service; its functions are NAME_rx, NAME_work, NAME_tx.
        work_ns: for each packet.
        stalls: begin and length, of its work function.
        taken: begin and length of the times in which another task had its CPU.
        slow: begin and length of the times in which packets of the flow SLOW_FLOW take SLOW_NS longer.
        rewrites: it translates addresses, and so changes ids.
        loses: one in so many packets is lost behind it; 0: none.
        skew_ns, rate: how wrong its host's clock is; None: the same boot as the others.
    """

    name: str
    work_ns: int = 300
    stalls: Sequence[tuple[int, int]] = ()
    taken: Sequence[tuple[int, int]] = ()
    slow: Sequence[tuple[int, int]] = ()
    rewrites: bool = False
    loses: int = 0
    skew_ns: int | None = None
    rate: float = 0.0
    rows: list[Row] = field(default_factory=list)
    absences: list[tuple[int, int, int, int]] = field(default_factory=list)

    def ticks(self, ns: float) -> int:
        return round(ns * TICKS_PER_NS) + 10**9


def run(nf: Nf, packets: Sequence[Packet]) -> list[Packet]:
    """Lets the packets pass; returns those that come out, in order."""
    waiting = sorted(packets, key=lambda packet: packet.at_ns)
    arrivals = [packet.at_ns for packet in waiting]
    stalls, taken = sorted(nf.stalls), sorted(nf.taken)
    out: list[Packet] = []
    now = at = emptied = 0
    while at < len(waiting):
        if arrivals[at] > now:
            emptied = max(now, arrivals[at] - arrivals[at] % POLL_NS)
        now = max(now, arrivals[at] - arrivals[at] % POLL_NS + POLL_NS)  # polls that found nothing before
        end = min(bisect.bisect_right(arrivals, now), at + BURST)
        batch, start = waiting[at:end], now
        at = end
        sp = 0x900
        entered, left = poll(RX, nf.ticks(start), nf.ticks(start + POLL_NS), sp, len(batch), BURST)
        nf.rows += [entered, record(POLL_QUEUE, RX, nf.ticks(emptied), 1), left]
        emptied = start if len(batch) < BURST else emptied
        nf.rows += [row for place, packet in enumerate(batch) for row in _describe(RX, place, packet)]
        begin = start + POLL_NS
        work = nf.work_ns * len(batch)
        if any(since <= begin < since + length for since, length in nf.slow):
            work += SLOW_NS * sum(packet.source & 15 == SLOW_FLOW for packet in batch)
        while stalls and stalls[0][0] <= begin + work:
            work += stalls.pop(0)[1]
        while taken and taken[0][0] <= begin + work:
            length = taken.pop(0)[1]
            nf.absences.append((nf.ticks(begin + 10), nf.ticks(begin + 10 + length), 0, AbsenceFlag.PREEMPTED))
            work += length
        nf.rows += [entry(WORK, nf.ticks(begin), 0x800), leave(WORK, nf.ticks(begin + work), 0x800)]
        sent = begin + work
        if nf.rewrites:
            for packet in batch:
                packet.source ^= 0x5555
        nf.rows.append(entry(TX, nf.ticks(sent), 0x700))
        nf.rows += [row for place, packet in enumerate(batch) for row in _describe(TX, place, packet)]
        nf.rows += [value(TX, len(batch) | len(batch) << 32, 0x700), leave(TX, nf.ticks(sent + SEND_NS), 0x700)]
        for packet in batch:
            packet.at_ns = sent + SEND_NS + WIRE_NS
            if not nf.loses or packet.number % nf.loses:
                out.append(packet)
        now = sent + SEND_NS + 50
    return out


def write(nf: Nf, path: Path, finish: bool = True, more: Sequence[Row] = ()) -> Path:
    """Writes what the function did as a recording; `more`: what a second thread of it did."""
    skew, boot = (nf.skew_ns, f"{nf.name}-boot") if nf.skew_ns is not None else (0, BOOT)
    resource = {"service.name": nf.name, "host.name": boot}
    session = f"{zlib.crc32(nf.name.encode()):016x}"
    header = RecordingHeader("0.1.0", session, 42, f"/bin/{nf.name}", boot, START_NS, 2e9, resource, {}, boot)
    writer = RecordingWriter(path, header)
    roles = ((RX, RECEIVE, "rx"), (WORK, 0, "work"), (TX, TRANSMIT, "tx"))
    writer.functions(
        [
            FunctionInfo(i, role, f"/bin/{nf.name}", 64 * i, 64, f"{nf.name}_{name}", "symbol", "in-stack")
            for i, role, name in roles
        ]
    )
    writer.threads([ThreadInfo(index, 4711 + index, "worker") for index in range(2)])
    q32 = round((1 << 32) / TICKS_PER_NS * (1 + nf.rate))
    writer.clock(np.array([(0, START_NS + skew, q32)], dtype=ANCHOR))
    if nf.absences:
        writer.absences(make_switches(nf.absences))
    for thread, rows in enumerate((nf.rows, more)):
        writer.records(thread, records(list(rows)))
    writer.finish({}) if finish else writer.close()
    return path


def arrive(
    count: int, every_ns: int, seed: int = 1, first: int = 0, flows: int = 16, since_ns: int = 0
) -> list[Packet]:
    """Packets that arrive at random, on average every so many ns, each with a content of its own."""
    rng = np.random.default_rng(seed)
    times = (np.cumsum(rng.exponential(every_ns, count)) + 1000).astype(np.int64).tolist()
    return [
        Packet(first + i, at, 0xABC0_0000_0000 + first + i, 0x0A00_0000 + first % 7 * 4096 + i % flows)
        for i, at in enumerate(times)
    ]


def _describe(function: int, place: int, packet: Packet) -> list[Row]:
    buffer = 0x7000_0000 + packet.number % 65536 * 2048
    return [
        record(8, function, buffer, 64 | place << 16),
        record(9, function, packet.content, packet.number & 0xFFFF | 17 << 16 | 4 << 24),
        record(10, function, packet.source | 0x0A01_0002 << 32, 1000 | 53 << 16),
    ]
