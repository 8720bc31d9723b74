# SPDX-License-Identifier: Apache-2.0
"""Drop causes of a whole session, found drain by drain. Columns in, self-contained rows out; memory is bounded.

A row is judged once the columns reach its end; what filled the queue is in them or in the columns kept from before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, Columns, Rows, concatenate
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.causes.baseline import Baseline
from otel_nfprobe.causes.drop_causes import DROP_CAUSE, DropCauseKind, DropEvent, Why, find_drop_causes, join_drops
from otel_nfprobe.pipeline.flow import describe_flow
from otel_nfprobe.pipeline.queue_drops import leave_out_impossible, name_kind, name_queue, no_queue_drops

KEPT_CALLS = 400_000  # of the columns kept from before
KEPT_BATCHES = 200_000


class Culprit(NamedTuple):
    """What is known of a cause's batch besides its row: a packet of it, and the flow of a burst."""

    packet_id: int
    flow: str
    flow_share: float


NO_CULPRIT = Culprit(0, "", 0.0)


class DropTally:
    """Finds the causes of rows as their columns come.

    Args:
        baseline: of the session; called when rows are judged.
        drops: of the whole recording, dtype QUEUE_DROP.
        absences: of the whole recording, dtype ABSENCE.
        patience_ticks: a thread whose batches end so long before those of others is not waited for.
    """

    def __init__(self, baseline: Callable[[], Baseline], drops: Rows, absences: Rows, patience_ticks: int) -> None:
        self._baseline = baseline
        self._absences = absences
        self._patience_ticks = patience_ticks
        self._ends: dict[int, int] = {}  # of the batches seen, by thread
        self._waiting = leave_out_impossible(drops)
        self._kept: deque[Columns] = deque()
        self._judged: list[Rows] = []
        self._causes: list[Rows] = []
        self._culprits: dict[int, Culprit] = {}  # by ID of the batch

    def add(self, columns: Columns) -> None:
        """Adds drained columns."""
        if not len(self._waiting):
            return
        self._kept.append(columns)
        self._shorten()
        note_ends(self._ends, columns)
        self._judge(find_due(self._waiting, self._ends, self._patience_ticks))

    def finish(self) -> list[DropEvent]:
        """Judges the rest; returns what each cause cost, in the order of time, by rows of `drops` and `causes`."""
        self._judge(np.ones(len(self._waiting), bool))
        return join_drops(self.drops, self.causes)

    @property
    def drops(self) -> Rows:
        """The rows judged so far."""
        joined: Rows = np.concatenate([no_queue_drops(), *self._judged])
        return joined

    @property
    def causes(self) -> Rows:
        """Their causes, dtype DROP_CAUSE; indexes in columns are NONE."""
        joined: Rows = np.concatenate([np.empty(0, DROP_CAUSE), *self._causes])
        return joined

    def culprit(self, batch_id: int) -> Culprit:
        """Returns what is known of a culprit's batch."""
        return self._culprits.get(batch_id, NO_CULPRIT)

    def _judge(self, due: NDArray[np.bool_]) -> None:
        if not due.any():
            return
        drops, self._waiting = self._waiting[due], self._waiting[~due]
        columns = concatenate(list(self._kept)) if self._kept else Columns()
        causes = find_drop_causes(columns, drops, self._baseline(), self._absences)
        for cause in causes:
            if cause["batch"] != NONE and int(cause["batch_id"]) not in self._culprits:
                self._culprits[int(cause["batch_id"])] = _describe_culprit(columns, cause)
        for name in ("batch", "call", "flow_packet"):
            causes[name] = NONE
        self._judged.append(drops)
        self._causes.append(causes)

    def _shorten(self) -> None:
        calls, batches = sum(len(one.calls) for one in self._kept), sum(len(one.batches) for one in self._kept)
        while len(self._kept) > 2 and (calls > KEPT_CALLS or batches > KEPT_BATCHES):
            gone = self._kept.popleft()
            calls, batches = calls - len(gone.calls), batches - len(gone.batches)


def note_ends(ends: dict[int, int], columns: Columns) -> None:
    """Updates when each thread's last batch ended, by its index."""
    batches = columns.batches
    for thread in distinct(batches["thread"]).tolist():
        end = int(batches["end_ticks"][batches["thread"] == thread].max())
        ends[thread] = max(ends.get(thread, 0), end)


def find_due(drops: Rows, ends: Mapping[int, int], patience_ticks: int) -> NDArray[np.bool_]:
    """Returns which rows' readers were seen to work after them: what delayed these is in the columns.

    Args:
        ends: of the last batch of each thread.
        patience_ticks: a thread whose batches end so long before those of others is not waited for.
    """
    if not ends:
        return np.zeros(len(drops), bool)
    until = drops["until_ticks"].astype(np.int64)
    slowest, latest = min(ends.values()), max(ends.values())
    reached = np.array([ends.get(thread, slowest) for thread in drops["thread"].tolist()], np.int64)
    due: NDArray[np.bool_] = (until < reached) | (until < latest - patience_ticks)
    return due


def _describe_culprit(columns: Columns, cause: np.void) -> Culprit:
    batch = columns.batches[cause["batch"]]
    identified = columns.packets[int(batch["first_packet"]) :][: int(batch["packets"])]
    packet_id = int(identified["id"][0]) if len(identified) else 0
    if cause["flow_packet"] == NONE:
        return Culprit(packet_id, "", 0.0)
    packet = columns.packets[cause["flow_packet"]]
    return Culprit(packet_id, describe_flow(packet, columns.topic(int(packet["digest"]))), float(cause["flow_share"]))


def describe_drops(
    tally: DropTally,
    events: list[DropEvent],
    name_function: Callable[[int], str],
    name_thread: Callable[[int], dict[str, Any] | None],
    to_unix_ns: Callable[[int], int],
    ns_per_tick: float,
) -> list[dict[str, Any]]:
    """Returns one object per event for a report, in the order of time."""
    drops, causes = tally.drops, tally.causes
    described = []
    for event in events:
        drop, cause = drops[event.row], causes[event.row]
        culprit = tally.culprit(int(cause["batch_id"]))
        kind, is_known = DropCauseKind(int(cause["kind"])), cause["why"] == Why.KNOWN
        described.append(
            {
                "queue": name_queue(drop),
                "kind": name_kind(int(drop["kind"])),
                "packets": event.packets,
                **({"at_least": True} if event.is_least else {}),
                "since_unix_ns": to_unix_ns(event.since_ticks),
                "until_unix_ns": to_unix_ns(event.until_ticks),
                "thread": name_thread(int(cause["thread"])) if cause["thread"] != NONE else None,
                "cause": {
                    "kind": kind.name.lower(),
                    "why": None if is_known else Why(int(cause["why"])).name.lower(),
                    "function": name_function(int(cause["function"])) if cause["function"] != NONE else None,
                    "by": cause["by"].decode("utf-8", "replace") or None,
                    "start_unix_ns": to_unix_ns(int(cause["start_ticks"])) if is_known else None,
                    "stall_ns": round(int(cause["stall_ticks"]) * ns_per_tick),
                    "share": round(float(cause["share"]), 4),
                    "batch": int(cause["batch_id"]) if is_known else None,
                    "packet_id": f"{culprit.packet_id:016x}" if culprit.packet_id else None,
                    "flow": {"flow": culprit.flow, "share": round(culprit.flow_share, 4)} if culprit.flow else None,
                },
            }
        )
    return described
