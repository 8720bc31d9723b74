# SPDX-License-Identifier: Apache-2.0
"""Builds requests from drained columns: selects packets, finds the causes of late ones, and links them to the culprits.

What delayed a packet came before it, in columns drained earlier. So these are kept for a bounded time, and packets are
examined together a few times per second, when most of what delayed them is at hand. A late packet whose cause lies in
an earlier batch links to the span of that batch, which belongs to the trace of one of the batch's own packets: if none
of them was selected, one is added (reason `culprit`). One that came in a burst links to a packet from its begin, if
other network functions have spans in that packet's trace, too: whatever released the burst held it longest.

No I/O, no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from otel_nfprobe.base.columns import (
    MESSAGE_VERSION,
    NONE,
    UNKNOWN,
    BatchFlag,
    Columns,
    PacketFlag,
    Rows,
    concatenate,
    life_start_ticks,
    place_handovers,
)
from otel_nfprobe.base.distinct import distinct, is_among
from otel_nfprobe.causes.baseline import Baseline, BatchSample
from otel_nfprobe.causes.drop_causes import find_drop_causes, join_drops, no_drop_causes
from otel_nfprobe.causes.drop_tally import find_due, note_ends
from otel_nfprobe.causes.latency_causes import STOOD_STILL, CauseKind, find_causes
from otel_nfprobe.export.limiter import Limiter
from otel_nfprobe.export.span import TAIL, EncodedRequest, SpanEncoder, Tails, make_tails
from otel_nfprobe.pipeline.absences import ABSENCES_MAX, no_absences
from otel_nfprobe.pipeline.queue_drops import leave_out_impossible, no_queue_drops
from otel_nfprobe.pipeline.sampling import (
    FADE_S,
    RANDOMNESS,
    REASON_CULPRIT,
    REASON_SLOW,
    REASON_SLOWEST,
    Sampler,
    find_latency_ticks,
    find_population,
)

KEPT_S = 1.0  # how long drained columns are kept
KEPT_PACKETS = 200_000
KEPT_CALLS = 400_000
WAITING_PACKETS = 50_000  # examined once so many are waiting
WAITING_CALLS = 100_000
REFRESH_GROWTH = 1.25  # the baseline is recomputed after this growth of the number of batches
CULPRITS_KEPT = 4096
DROPS_MAX = 256  # rows of dropped packets that wait for the columns of their time
EXPLAINED_MAX = 500  # late packets examined individually; above this, one represents its batch


@dataclass
class _Take:
    columns: Columns
    selected: npt.NDArray[np.uint32]
    reasons: npt.NDArray[np.uint8]
    latency_ticks: npt.NDArray[np.int64]  # of all packets

    @property
    def end_ticks(self) -> int:
        ends = self.columns.batches["end_ticks"]
        return int(ends.max()) if len(ends) else 0


class Explainer:
    """Selected packets of one session, on their way to requests.

    Args:
        sampler: selects packets.
        encoder: writes them.
        ticks_per_second: of the session's clock.
        baseline: the baseline; None: to be learned from what is added.
        limiter: how many may be written; None: unlimited.
    """

    def __init__(
        self,
        sampler: Sampler,
        encoder: SpanEncoder,
        ticks_per_second: float,
        baseline: Baseline | None = None,
        limiter: Limiter | None = None,
    ) -> None:
        self._sampler = sampler
        self._limiter = limiter or Limiter(None, ticks_per_second)
        self._encoder = encoder
        self._ticks_per_second = ticks_per_second
        self._sample = BatchSample() if baseline is None else None
        self._baseline = baseline
        self._waiting: list[_Take] = []
        self._waiting_packets = self._waiting_calls = 0
        self._kept: deque[_Take] = deque()
        self._fades_at_ticks = 0
        self._absences: Rows = no_absences()
        self._drops: Rows = no_queue_drops()
        self._ends: dict[int, int] = {}  # of the last batch of each thread
        self._exported: dict[int, int] = {}  # batch id: position in the batch of an exported packet

    @property
    def looks_for_causes(self) -> bool:
        """Returns whether any packet can be selected for being late."""
        return self._sampler.slower_than_ticks is not None or self._sampler.tracker is not None

    @property
    def is_waiting(self) -> bool:
        """Returns whether any packets are waiting to be examined."""
        return bool(self._waiting)

    @property
    def waiting_traces(self) -> int:
        """Returns the number of selected packets that wait."""
        return sum(len(take.selected) for take in self._waiting)

    @property
    def is_full(self) -> bool:
        """Returns whether enough packets wait to examine them at once."""
        return self._waiting_packets > WAITING_PACKETS or self._waiting_calls > WAITING_CALLS

    def add(self, columns: Columns) -> None:
        """Selects packets of drained columns; the arrays must not change afterwards."""
        if self._sample is not None and self.looks_for_causes:
            self._sample.add(columns)
        if not len(columns.batches):
            return
        note_ends(self._ends, columns)
        randomness = self._encoder.find_randomness(columns) if self._sampler.needs_randomness else None
        self._fade(int(columns.batches["end_ticks"].max()))
        latency = find_latency_ticks(columns.packets, columns.batches)
        selected, reasons = self._sampler.select(latency, randomness, find_population(columns))
        self._waiting.append(_Take(columns, *self._sampler.restrict(columns.packets, selected, reasons), latency))
        self._waiting_packets += len(columns.packets)
        self._waiting_calls += len(columns.calls)

    def _fade(self, now_ticks: int) -> None:
        if now_ticks >= self._fades_at_ticks and self._sampler.tracker is not None:
            self._fades_at_ticks = now_ticks + round(FADE_S * self._ticks_per_second)
            self._sampler.tracker.fade()

    def add_absences(self, absences: Rows) -> None:
        """Adds when threads did not run (dtype ABSENCE); must precede the packets that this delayed."""
        if len(absences) and self.looks_for_causes:
            self._absences = np.concatenate((self._absences, absences))[-ABSENCES_MAX:]

    def add_queue_drops(self, drops: Rows) -> None:
        """Adds what full queues dropped (dtype QUEUE_DROP)."""
        if len(drops) and self.looks_for_causes:
            self._drops = np.concatenate((self._drops, leave_out_impossible(drops)))[-DROPS_MAX:]

    def requests(self) -> Iterator[EncodedRequest]:
        """Yields requests with all waiting packets; exhaust it before calling anything else."""
        takes, self._waiting = self._limit(self._waiting), []
        self._waiting_packets = self._waiting_calls = 0
        drops = self._take_drops()
        if len(drops) or any((take.reasons & (REASON_SLOW | REASON_SLOWEST)).any() for take in takes):
            yield from self._explain(takes, drops)
        else:
            for take in takes:
                if len(take.selected):
                    yield from self._encoder.encode(take.columns, take.selected, take.reasons)
                    self._note_exported(take.columns, take.selected)
        if self.looks_for_causes:
            self._keep(takes)

    def _limit(self, takes: list[_Take]) -> list[_Take]:
        """Applies the limiter to the selected packets."""
        if not takes or not self._limiter.is_needed:
            return takes
        randomness = [self._encoder.find_trace_ids(take.columns, take.selected)[:, 1] for take in takes]
        remaining = self._limiter.admit(
            np.concatenate([take.reasons for take in takes]),
            np.concatenate([take.latency_ticks[take.selected] for take in takes]),
            np.concatenate(randomness) & RANDOMNESS,
            max(take.end_ticks for take in takes),
        )
        self._encoder.set_trace_state(self._limiter.trace_state)
        limited, first = [], 0
        for take in takes:
            reasons = remaining[first : first + len(take.selected)]
            first += len(take.selected)
            kept = reasons != 0
            limited.append(replace(take, selected=take.selected[kept], reasons=reasons[kept]))
        return limited

    def _take_drops(self) -> Rows:
        """Returns the rows whose time the columns have reached."""
        if not len(self._drops):
            return self._drops
        due = find_due(self._drops, self._ends, round(KEPT_S * self._ticks_per_second))
        drops, self._drops = self._drops[due], self._drops[~due]
        return drops

    def _explain(self, takes: list[_Take], drops: Rows) -> Iterator[EncodedRequest]:
        before = list(self._kept) if len(drops) else self._find_before(takes)
        columns = concatenate([take.columns for take in [*before, *takes]])
        first = sum(len(take.columns.packets) for take in before)
        selected = []
        for take in takes:
            selected.append(take.selected + np.uint32(first))
            first += len(take.columns.packets)
        packets = np.concatenate([np.empty(0, np.uint32), *selected])
        reasons = np.concatenate([np.empty(0, np.uint8), *(take.reasons for take in takes)])
        tails = np.zeros(len(packets), TAIL)
        late = np.flatnonzero(reasons & (REASON_SLOW | REASON_SLOWEST))
        causes = self._find_causes(columns, packets[late])
        tails[late], parts = make_tails(causes, self._ticks_per_second)
        culprits, numbers, places = self._find_culprits(columns, packets, packets[late], causes)
        heads, head_places = self._find_heads(columns, packets[late], causes)
        places = np.where(head_places < 0, places, len(culprits) + head_places)
        links = np.concatenate(
            (
                self._encoder.find_batch_links(columns, culprits, numbers),
                self._encoder.find_packet_links(columns, heads),
            )
        )
        linked = places >= 0
        for name, column in zip(("link_high", "link_low", "link_span"), links[places[linked]].T, strict=True):
            tails[name][late[linked]] = column
        drops, drop_causes, droppers = self._explain_drops(columns, packets, drops)
        numbers = np.append(numbers, np.zeros(len(droppers), np.uint32))
        culprits = np.append(culprits, droppers)
        culprits = culprits[~self._were_exported(columns, culprits, numbers)]
        heads = heads[~self._were_exported(columns, heads, np.ones(len(heads), np.uint32))]  # itself, no other one
        others = distinct(np.append(culprits, heads))
        fresh = others[~is_among(others, np.sort(packets))].astype(np.uint32)
        self._limiter.take(len(fresh))
        packets = np.concatenate((packets, fresh))
        reasons = np.concatenate((reasons, np.full(len(fresh), REASON_CULPRIT, np.uint8)))
        tails = np.concatenate((tails, np.zeros(len(fresh), TAIL)))
        yield from self._encoder.encode(columns, packets, reasons, Tails(tails, parts))
        spans = self._encoder.find_batch_links(columns, droppers)
        yield from self._encoder.encode_drops(drops, drop_causes, spans, self._ticks_per_second)
        self._note_exported(columns, packets)

    def _explain_drops(
        self, columns: Columns, packets: npt.NDArray[np.uint32], drops: Rows
    ) -> tuple[Rows, Rows, npt.NDArray[np.uint32]]:
        """Returns what each culprit cost, the causes, and a packet of each culprit's batch; without one none."""
        causes = find_drop_causes(columns, drops, self._find_baseline(), self._absences) if len(drops) else None
        if causes is None:
            return drops, no_drop_causes(), np.empty(0, np.uint32)
        events = join_drops(drops, causes)
        selected = dict(zip(columns.packets["batch"][packets].tolist(), packets.tolist(), strict=True))
        joined, rows, chosen = drops.copy(), [], []
        for event in events:
            batch = int(causes["batch"][event.row])
            packet = None if batch == NONE else self._choose_packet(columns, batch, selected)
            if packet is None:
                continue
            rows.append(event.row)
            chosen.append(packet)
            joined["packets"][event.row], joined["until_ticks"][event.row] = event.packets, event.until_ticks
        return joined[rows], causes[rows], np.array(chosen, np.uint32)

    def _find_causes(self, columns: Columns, late: npt.NDArray[np.uint32]) -> Rows:
        if len(late) <= EXPLAINED_MAX:
            return find_causes(columns, late, self._find_baseline(), self._absences)
        handovers, _ = place_handovers(columns)
        last = np.full(len(columns.packets), NONE, np.int64)
        last[handovers["packet"]] = handovers["batch"]  # of several, the last one stays
        ways = columns.packets["batch"][late].astype(np.int64) << 32 | last[late]
        _, chosen, whose = np.unique(ways, return_index=True, return_inverse=True)
        return find_causes(columns, late[chosen], self._find_baseline(), self._absences)[whose]

    def _find_before(self, takes: list[_Take]) -> list[_Take]:
        """Returns the kept columns in which the late packets waited, or their queues were last empty."""
        start, end = 2**63, 0
        for take in takes:
            late = take.selected[(take.reasons & (REASON_SLOW | REASON_SLOWEST)) != 0]
            if len(late):
                part = Columns(batches=take.columns.batches, packets=take.columns.packets[late])
                start = min(start, int(life_start_ticks(part).min()))
                end = max(end, int(part.packets["done_ticks"].max()))
        since = start - max(end - start, 0)
        return [take for take in self._kept if take.end_ticks >= since]

    def _find_culprits(
        self,
        columns: Columns,
        packets: npt.NDArray[np.uint32],
        late: npt.NDArray[np.uint32],
        causes: Rows,
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Returns a packet of each culprit batch, which of its handovers, and which packet each late one links to.

        0: it was received in that batch; -1: none.
        """
        own = columns.packets["batch"][late]
        linked = (causes["batch"] != NONE) & (causes["batch"] != own)
        linked &= np.isin(causes["kind"], (CauseKind.QUEUE, CauseKind.FAULT, CauseKind.WAIT, *STOOD_STILL))
        batches = distinct(causes["batch"][linked])
        chosen: dict[int, tuple[int, int]] = {}
        selected = dict(zip(columns.packets["batch"][packets].tolist(), packets.tolist(), strict=True))
        for batch in batches.tolist():
            if columns.batches["flags"][batch] & BatchFlag.TAKEN_OVER:
                taken = self._choose_taken_over(columns, batch, packets)
                if taken is not None:
                    chosen[batch] = taken
                continue
            packet = self._choose_packet(columns, batch, selected)
            if packet is not None:
                chosen[batch] = packet, 0
        position = {batch: place for place, batch in enumerate(chosen)}
        places = [
            position.get(batch, -1) if link else -1
            for batch, link in zip(causes["batch"].tolist(), linked.tolist(), strict=True)
        ]
        pairs = np.array(list(chosen.values()), np.uint32).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1], np.array(places, np.int64)

    def _find_heads(
        self, columns: Columns, late: npt.NDArray[np.uint32], causes: Rows
    ) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]]:
        """Returns the packets in whose traces other network functions say what released a burst, and which of them each
        late packet links to; -1: none.
        """
        places = np.full(len(late), -1, np.int64)
        heads = causes["flow_packet"]
        usable = (causes["kind"] == CauseKind.BURST) & (heads < len(columns.packets)) & (heads != late)
        if not self._encoder.correlates or not usable.any():
            return np.empty(0, np.uint32), places
        rows = columns.packets[heads[usable]]
        usable[usable] = ((rows["flags"] & PacketFlag.AMBIGUOUS) == 0) & (rows["ip_version"] != MESSAGE_VERSION)
        found, places[usable] = np.unique(heads[usable], return_inverse=True)
        return found.astype(np.uint32), places

    def _choose_taken_over(
        self, columns: Columns, batch: int, selected: npt.NDArray[np.uint32]
    ) -> tuple[int, int] | None:
        """Returns a packet that the batch took over, if possible an exported one, and the handover's number."""
        handovers, numbers = place_handovers(columns)
        rows = np.flatnonzero(handovers["batch"] == batch)
        if not len(rows):
            return None
        packets = handovers["packet"][rows]
        there = np.isin(packets, selected) | self._were_exported(columns, packets, numbers[rows])
        best = int(np.argmax(there))  # the first one where none is
        return int(packets[best]), int(numbers[rows[best]])

    def _choose_packet(self, columns: Columns, batch: int, selected: dict[int, int]) -> int | None:
        row = columns.batches[batch]
        first, count = int(row["first_packet"]), int(row["packets"])
        exported = self._exported.get(int(row["id"]))
        if exported is not None and exported < count:
            return first + exported
        if batch in selected or not count:
            return selected.get(batch)
        packets = columns.packets[first : first + count]
        done = np.where(packets["disposition"] == UNKNOWN, 0, packets["done_ticks"])
        return first + int(np.argmax(done))

    def _were_exported(
        self, columns: Columns, packets: npt.NDArray[np.uint32], numbers: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.bool_]:
        """Returns which were exported or, if a packet does not represent a handover, another one of its batch."""
        batches = columns.packets["batch"][packets]
        known = [self._exported.get(int(id)) for id in columns.batches["id"][batches]]
        places = (packets - columns.batches["first_packet"][batches]).tolist()
        rows = zip(known, places, numbers.tolist(), strict=True)
        return np.array([one is not None and (not number or one == place) for one, place, number in rows], bool)

    def _note_exported(self, columns: Columns, packets: npt.NDArray[np.uint32]) -> None:
        batches = columns.packets["batch"][packets]
        positions = packets - columns.batches["first_packet"][batches]
        self._exported.update(zip(columns.batches["id"][batches].tolist(), positions.tolist(), strict=True))
        while len(self._exported) > CULPRITS_KEPT:
            del self._exported[next(iter(self._exported))]

    def _find_baseline(self) -> Baseline:
        if self._sample is not None:
            seen = 0 if self._baseline is None else self._baseline.batches
            if self._baseline is None or self._sample.batches >= REFRESH_GROWTH * seen:
                self._baseline = self._sample.baseline()
        assert self._baseline is not None
        return self._baseline

    def _keep(self, takes: list[_Take]) -> None:
        self._kept.extend(takes)
        packets = sum(len(take.columns.packets) for take in self._kept)
        calls = sum(len(take.columns.calls) for take in self._kept)
        newest = max((take.end_ticks for take in self._kept), default=0)
        oldest = newest - round(KEPT_S * self._ticks_per_second)
        while self._kept and (packets > KEPT_PACKETS or calls > KEPT_CALLS or self._kept[0].end_ticks < oldest):
            gone = self._kept.popleft()
            packets -= len(gone.columns.packets)
            calls -= len(gone.columns.calls)
        if len(self._absences):
            self._absences = self._absences[self._absences["in_ticks"].astype(np.int64) >= oldest]
