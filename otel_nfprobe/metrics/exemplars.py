# SPDX-License-Identifier: Apache-2.0
"""Exemplars: measured values that point to the trace in which they can be seen.

Kept while packets are encoded, so each belongs to an exported packet: the slowest packet of each power of two of the
latency and, for each function that made packets late, its most expensive call. The drain uses this encoder in place of
a SpanEncoder; metrics.py collects the kept exemplars at each export.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.recfunctions import structured_to_unstructured
from opentelemetry.sdk.metrics import Exemplar

from otel_nfprobe.base.columns import NONE, CallFlag, Columns, Rows, latency_ticks
from otel_nfprobe.export.span import EncodedRequest, SpanEncoder, Tails
from otel_nfprobe.pipeline.queue_drops import name_queue

NOTE_S = 0.1  # interval of considering packets of the random sample, which can be very many
FUNCTIONS_MAX = 64  # maximum of functions with exemplars between two exports
QUEUES_MAX = 64  # and of queues


class Exemplars(NamedTuple):
    """Exemplars kept since the last export.

    Attributes:
        latencies: of packets, seconds.
        durations: of a call of each function by its name, seconds.
        drops: of packets that each queue dropped, by its name: the culprit that cost most.
    """

    latencies: list[Exemplar]
    durations: dict[str, Exemplar]
    drops: dict[str, Exemplar]


class ExemplarKeeper:
    """Keeps exemplars for one reader."""

    def __init__(self) -> None:
        self._latencies: dict[int, Exemplar] = {}  # by power of two
        self._durations: dict[str, Exemplar] = {}
        self._drops: dict[str, Exemplar] = {}

    def take(self) -> Exemplars:
        """Returns the exemplars kept since the last call."""
        taken = Exemplars(list(self._latencies.values()), self._durations, self._drops)
        self._latencies, self._durations, self._drops = {}, {}, {}
        return taken

    def keep_latency(self, power: int, exemplar: Exemplar) -> None:
        """Keeps one for a packet whose latency has this many bits."""
        _keep_largest(self._latencies, power, exemplar)

    def keep_duration(self, name: str, exemplar: Exemplar) -> None:
        """Keeps one for a function's call."""
        if name in self._durations or len(self._durations) < FUNCTIONS_MAX:
            _keep_largest(self._durations, name, exemplar)

    def keep_drop(self, queue: str, exemplar: Exemplar) -> None:
        """Keeps one for packets that a queue dropped."""
        if queue in self._drops or len(self._drops) < QUEUES_MAX:
            _keep_largest(self._drops, queue, exemplar)


class ExemplarEncoder(SpanEncoder):
    """A SpanEncoder that keeps exemplars of what it encodes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._keepers: list[ExemplarKeeper] = []
        self._due_at = 0.0

    def keep_exemplars(self) -> ExemplarKeeper:
        """Keeps exemplars from now on, for one more reader."""
        keeper = ExemplarKeeper()
        self._keepers.append(keeper)
        return keeper

    def encode(
        self,
        columns: Columns,
        selected: npt.NDArray[np.uint32],
        reasons: npt.NDArray[np.uint8],
        tails: Tails | None = None,
    ) -> Iterator[EncodedRequest]:
        """As SpanEncoder.encode."""
        if len(selected) and (tails is not None or time.monotonic() >= self._due_at):
            self._due_at = time.monotonic() + NOTE_S
            self._note_packets(columns, selected)
            if tails is not None:
                self._note_culprits(columns, selected, tails.rows)
        yield from super().encode(columns, selected, reasons, tails)

    def encode_drops(
        self, drops: Rows, causes: Rows, links: npt.NDArray[np.uint64], ticks_per_second: float
    ) -> Iterator[EncodedRequest]:
        """As SpanEncoder.encode_drops."""
        for drop, link in zip(drops, self.scale_links(links).tolist(), strict=True):
            if link[0] or link[1]:
                exemplar = self._make_with(int(drop["packets"]), int(drop["until_ticks"]), link)
                for keeper in self._keepers:
                    keeper.keep_drop(name_queue(drop), exemplar)
        yield from super().encode_drops(drops, causes, links, ticks_per_second)

    def _note_packets(self, columns: Columns, selected: npt.NDArray[np.uint32]) -> None:
        ticks = latency_ticks(Columns(batches=columns.batches, packets=columns.packets[selected]))
        powers = np.frexp(ticks.astype(np.float64))[1]
        order = np.lexsort((ticks, powers))
        slowest = order[np.flatnonzero(np.diff(powers[order], append=99))]
        slowest = slowest[ticks[slowest] > 0]
        links = self.scale_links(self.find_packet_links(columns, selected[slowest]))
        for row, link in zip(slowest.tolist(), links.tolist(), strict=True):
            done = int(columns.packets["done_ticks"][selected[row]])
            exemplar = self._make(int(ticks[row]), done, link)
            for keeper in self._keepers:
                keeper.keep_latency(int(powers[row]), exemplar)

    def _note_culprits(self, columns: Columns, selected: npt.NDArray[np.uint32], tails: Rows) -> None:
        guilty = np.flatnonzero((tails["function"] < len(self.function_names)) & (tails["kind"] != 0))
        order = guilty[np.lexsort((tails["excess_ns"][guilty], tails["function"][guilty]))]
        worst = order[np.flatnonzero(np.diff(tails["function"][order].astype(np.int64), append=NONE))][:FUNCTIONS_MAX]
        links = self.find_packet_links(columns, selected[worst])
        culprits = tails[["link_high", "link_low", "link_span"]][worst]  # in the trace of another packet, or 0
        is_elsewhere = culprits["link_high"] != 0
        links[is_elsewhere] = structured_to_unstructured(culprits[is_elsewhere])
        for row, link in zip(worst.tolist(), self.scale_links(links).tolist(), strict=True):
            tail = tails[row]
            call = _find_call(columns, int(tail["batch_id"]), int(tail["function"]))
            if call is None:
                continue
            ticks, end = call
            exemplar = self._make(ticks, end, link)
            for keeper in self._keepers:
                keeper.keep_duration(self.function_names[int(tail["function"])], exemplar)

    def _make(self, ticks: int, end_ticks: int, link: list[int]) -> Exemplar:
        return self._make_with(ticks / self.ticks_per_second, end_ticks, link)

    def _make_with(self, value: float, end_ticks: int, link: list[int]) -> Exemplar:
        unix_ns = int(self.clock.convert(np.array([end_ticks], np.uint64))[0])
        trace_high, trace_low, span = link
        return Exemplar({}, value, unix_ns, span, trace_high << 64 | trace_low)


def _keep_largest(kept: dict[Any, Exemplar], key: object, exemplar: Exemplar) -> None:
    if key not in kept or exemplar.value > kept[key].value:
        kept[key] = exemplar


def _find_call(columns: Columns, batch_id: int, function: int) -> tuple[int, int] | None:
    """Returns the longest call of a function in a batch: ticks as counted by statistics.c, and its end."""
    batches = np.flatnonzero(columns.batches["id"] == batch_id)
    if not len(batches):
        return None
    batch = columns.batches[batches[0]]
    calls = columns.calls[int(batch["first_call"]) : int(batch["first_call"]) + int(batch["calls"])]
    calls = calls[calls["function"] == function]
    if not len(calls):
        return None
    raw = (calls["end_ticks"] - calls["start_ticks"]).astype(np.int64)
    cost = np.where(calls["flags"] & CallFlag.CLIPPED, 0, calls["cost_ticks"]).astype(np.int64)
    ticks = np.maximum(raw - cost, 0)
    longest = int(np.argmax(ticks))
    return int(ticks[longest]), int(calls["end_ticks"][longest])
