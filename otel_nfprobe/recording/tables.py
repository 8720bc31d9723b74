# SPDX-License-Identifier: Apache-2.0
"""Tables: columns of a recording as Arrow tables of calls, batches, packets and causes. docs/tables.md has the schema.

Pure: arrays in, arrays out, no object per row. Only signed integers, doubles, booleans and text are used, and times are
Unix ns as integers: all readers of Parquet know these and agree on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import (
    DROPPED,
    MESSAGE_VERSION,
    NONE,
    TRANSMITTED,
    UNKNOWN,
    BatchFlag,
    CallFlag,
    Columns,
    PacketFlag,
    Rows,
    latency_ticks,
)
from otel_nfprobe.causes.arrival import SOURCES, find_sources
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.recording.arrowtext import address_text, hex_text, name_text, numbered_text, same_text, topic_text
from otel_nfprobe.recording.replay import RecordingFacts

TEXT = pa.dictionary(pa.int32(), pa.string())
_SESSION = [("session", TEXT), ("host", TEXT), ("service", TEXT)]
CALLS = pa.schema(
    [
        *_SESSION,
        ("call", pa.int64()),
        ("parent", pa.int64()),
        ("batch", pa.int64()),
        ("function", TEXT),
        ("module", TEXT),
        ("thread_id", pa.int32()),
        ("thread_name", TEXT),
        ("start_unix_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("self_ns", pa.int64()),
        ("probe_ns", pa.int64()),
        ("depth", pa.int32()),
        ("value", pa.int64()),
        ("is_clipped", pa.bool_()),
        ("is_unwound", pa.bool_()),
        ("is_mark", pa.bool_()),
    ]
)
BATCHES = pa.schema(
    [
        *_SESSION,
        ("batch", pa.int64()),
        ("function", TEXT),
        ("thread_id", pa.int32()),
        ("thread_name", TEXT),
        ("start_unix_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("size", pa.int32()),
        ("requested", pa.int32()),
        ("transmitted", pa.int32()),
        ("dropped", pa.int32()),
        ("is_full", pa.bool_()),
        ("is_lossy", pa.bool_()),
        ("is_unfinished", pa.bool_()),
    ]
)
PACKETS = pa.schema(
    [
        *_SESSION,
        ("packet_id", pa.string()),
        ("batch", pa.int64()),
        ("packet_index", pa.int32()),
        ("arrival_source", TEXT),
        ("arrival_unix_ns", pa.int64()),
        ("receive_unix_ns", pa.int64()),
        ("done_unix_ns", pa.int64()),
        ("latency_ns", pa.int64()),
        ("disposition", TEXT),
        ("drop_reason", TEXT),
        ("interface", TEXT),
        ("transmit_interface", TEXT),
        ("done_function", TEXT),
        ("done_id", pa.string()),
        ("source", pa.string()),
        ("destination", pa.string()),
        ("source_port", pa.int32()),
        ("destination_port", pa.int32()),
        ("protocol", pa.int32()),
        ("topic", pa.string()),
        ("length", pa.int32()),
        ("is_repeated", pa.bool_()),
    ]
)
CAUSES = pa.schema(
    [
        *_SESSION,
        ("packet_id", pa.string()),
        ("batch", pa.int64()),
        ("packet_index", pa.int32()),
        ("receive_unix_ns", pa.int64()),
        ("latency_ns", pa.int64()),
        ("cause", TEXT),
        ("function", TEXT),
        ("excess_ns", pa.int64()),
        ("share", pa.float64()),
        ("cause_batch", pa.int64()),
        ("is_saturated", pa.bool_()),
    ]
)
SCHEMAS = {"calls": CALLS, "batches": BATCHES, "packets": PACKETS, "causes": CAUSES}
_DISPOSITIONS = ["unknown", "transmitted", "dropped", "punted", "absorbed"]
_NS_MAX = 2.0**62
_PORTS = (6, 17, 132)  # protocols that have them: TCP, UDP, SCTP


class TableMaker:
    """Makes the tables of one recording, take by take."""

    def __init__(self, facts: RecordingFacts) -> None:
        self._clock: Clock = facts.make_clock()
        self._ns_per_tick = 1e9 / self._clock.ticks_per_second
        resource = facts.header.resource
        self._session = (facts.header.session, resource.get("host.name", ""), resource.get("service.name", ""))
        self._names, self._numbers = facts.function_names, facts.names
        ids = range(len(self._names))
        self._modules = [facts.functions[id].module if id in facts.functions else "" for id in ids]
        self._tids = np.zeros(max(facts.threads, default=-1) + 1, np.int32)
        self._thread_names = [""] * len(self._tids)
        for index, thread in facts.threads.items():
            self._tids[index], self._thread_names[index] = thread.tid & 0x7FFFFFFF, thread.name
        self._calls = 0

    def calls(self, columns: Columns) -> pa.Table:
        """One row per call, numbered through the whole recording."""
        rows, flags = columns.calls, columns.calls["flags"]
        number = np.arange(self._calls, self._calls + len(rows), dtype=np.int64)
        parent, batch = rows["parent"], rows["batch"]
        batches = columns.batches["id"]
        placed = batch < len(batches)
        values = {
            "call": number,
            "parent": _nullable(parent.astype(np.int64) + self._calls, parent == NONE),
            "batch": _nullable(_pick(batches, batch, placed), ~placed),
            "function": name_text(self._names, rows["function"]),
            "module": name_text(self._modules, rows["function"]),
            **self._thread(rows["thread"]),
            "start_unix_ns": self._unix_ns(rows["start_ticks"]),
            "duration_ns": self._ns(rows["end_ticks"] - rows["start_ticks"]),
            "self_ns": self._ns(rows["self_ticks"]),
            "probe_ns": self._ns(rows["cost_ticks"]),
            "depth": rows["depth"].astype(np.int32),
            "value": _nullable(rows["value"].astype(np.int64), (flags & CallFlag.VALUE) == 0),
            "is_clipped": (flags & (CallFlag.CLIPPED | CallFlag.SHARED)) != 0,
            "is_unwound": (flags & CallFlag.UNWOUND) != 0,
            "is_mark": (flags & CallFlag.MARK) != 0,
        }
        self._calls += len(rows)
        return self._table(CALLS, values, len(rows))

    def batches(self, columns: Columns) -> pa.Table:
        """One row per batch."""
        rows, flags = columns.batches, columns.batches["flags"]
        values = {
            "batch": rows["id"].astype(np.int64),
            "function": name_text(self._names, rows["function"]),
            **self._thread(rows["thread"]),
            "start_unix_ns": self._unix_ns(rows["start_ticks"]),
            "duration_ns": self._ns(rows["end_ticks"] - rows["start_ticks"]),
            **{name: _int32(rows[name]) for name in ("size", "requested", "transmitted", "dropped")},
            "is_full": (flags & BatchFlag.FULL) != 0,
            "is_lossy": (flags & BatchFlag.LOSSY) != 0,
            "is_unfinished": (flags & BatchFlag.UNFINISHED) != 0,
        }
        return self._table(BATCHES, values, len(rows))

    def packets(self, columns: Columns) -> pa.Table:
        """One row per packet."""
        rows, flags = columns.packets, columns.packets["flags"]
        is_ip = (rows["ip_version"] == 4) | (rows["ip_version"] == 6)
        no_ports = ~(is_ip & np.isin(rows["protocol"], _PORTS))
        changed = (rows["done_digest"] != rows["digest"]) & (rows["disposition"] != UNKNOWN)
        changed &= rows["done_digest"] != 0
        unknown = rows["disposition"] == UNKNOWN
        stamped = (flags & PacketFlag.ARRIVAL_KNOWN) != 0
        values = {
            **self._packet(columns, np.arange(len(rows))),
            "arrival_source": name_text(SOURCES, find_sources(columns)),
            "arrival_unix_ns": _nullable(self._unix_ns(rows["arrival_ticks"]), ~stamped),
            "done_unix_ns": _nullable(self._unix_ns(rows["done_ticks"]), unknown),
            "latency_ns": _nullable(self._ns(latency_ticks(columns)), unknown),
            "disposition": name_text(_DISPOSITIONS, rows["disposition"]),
            "drop_reason": self._numbered(self._numbers.reasons, rows, DROPPED),
            "interface": numbered_text(self._numbers.interfaces, rows["receive_interface"]),
            "transmit_interface": self._numbered(self._numbers.interfaces, rows, TRANSMITTED),
            "done_function": name_text(self._names, rows["done_function"]),
            "done_id": hex_text(rows["done_digest"]).take(pa.array(np.arange(len(rows)), mask=~changed)),
            "source": address_text(rows, "source"),
            "destination": address_text(rows, "destination"),
            "source_port": _nullable(_int32(rows["source_port"]), no_ports),
            "destination_port": _nullable(_int32(rows["destination_port"]), no_ports),
            "protocol": _nullable(_int32(rows["protocol"]), ~is_ip),
            "topic": topic_text(columns).take(_rows_if(rows["ip_version"] == MESSAGE_VERSION)),
            "length": _int32(rows["length"]),
            "is_repeated": (flags & PacketFlag.REPEATED) != 0,
        }
        return self._table(PACKETS, values, len(rows))

    def causes(self, columns: Columns, packets: NDArray[np.integer], causes: Rows) -> pa.Table:
        """One row per late packet.

        Args:
            columns: what `packets` are indices in.
            causes: what made them late, dtype CAUSE.
        """
        found = causes["batch"] != NONE
        values = {
            **self._packet(columns, packets),
            "latency_ns": self._ns(latency_ticks(columns)[packets]),
            "cause": name_text(
                [kind.name.lower() for kind in CauseKind], causes["kind"].astype(np.int64) - CauseKind.UNKNOWN
            ),
            "function": name_text(self._names, causes["function"]),
            "excess_ns": self._ns(causes["excess_ticks"]),
            "share": causes["share"].astype(np.float64),
            "cause_batch": _nullable(causes["batch_id"].astype(np.int64), ~found),
            "is_saturated": causes["saturated"] != 0,
        }
        return self._table(CAUSES, values, len(packets))

    def _packet(self, columns: Columns, packets: NDArray[np.integer]) -> dict[str, Any]:
        rows = columns.packets[packets]
        placed = rows["batch"] < len(columns.batches)
        return {
            "packet_id": hex_text(rows["digest"]),
            "batch": _nullable(_pick(columns.batches["id"], rows["batch"], placed), ~placed),
            "packet_index": _int32(rows["index"]),
            "receive_unix_ns": self._unix_ns(rows["receive_ticks"]),
        }

    def _numbered(self, names: Mapping[int, str], rows: Rows, disposition: int) -> pa.Array:
        """What the number means that packets of this disposition have from where they left; null for others."""
        return numbered_text(names, np.where(rows["disposition"] == disposition, rows["done_number"], 0))

    def _thread(self, index: NDArray[np.uint32]) -> dict[str, Any]:
        known = index < len(self._tids)
        tids = _pick(self._tids, index, known).astype(np.int32)
        return {"thread_id": _nullable(tids, ~known), "thread_name": name_text(self._thread_names, index)}

    def _table(self, schema: pa.Schema, values: Mapping[str, Any], count: int) -> pa.Table:
        session = dict(zip(("session", "host", "service"), self._session, strict=True))
        columns = [same_text(session[name], count) if name in session else values[name] for name in schema.names]
        return pa.Table.from_arrays([pa.array(column) for column in columns], schema=schema)

    def _ns(self, ticks: NDArray[Any]) -> NDArray[np.int64]:
        ns = np.rint(ticks.astype(np.int64) * self._ns_per_tick)
        return np.asarray(ns.clip(-_NS_MAX, _NS_MAX), np.int64)  # a damaged recording may have any ticks

    def _unix_ns(self, ticks: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._clock.convert(ticks).astype(np.int64)


def _nullable(values: NDArray[Any], is_null: NDArray[np.bool_]) -> pa.Array:
    return pa.array(values, mask=is_null)


def _pick(values: NDArray[Any], rows: NDArray[np.uint32], known: NDArray[np.bool_]) -> NDArray[np.int64]:
    picked = np.zeros(len(rows), np.int64)
    picked[known] = values[rows[known]].astype(np.int64)
    return picked


def _rows_if(condition: NDArray[np.bool_]) -> pa.Array:
    return pa.array(np.arange(len(condition)), mask=~condition)


def _int32(values: NDArray[Any]) -> NDArray[np.int32]:
    return values.astype(np.int64).clip(0, 2**31 - 1).astype(np.int32)
