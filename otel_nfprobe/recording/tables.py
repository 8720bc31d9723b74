# SPDX-License-Identifier: Apache-2.0
"""Tables: a recording as Arrow tables of calls, batches, packets, causes and their parts, and as Parquet files.

docs/tables.md has the schema. Arrays in, arrays out, no object per row. Only signed integers, doubles, booleans and
text are used, and times are Unix ns as integers: all Parquet readers support these consistently.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as replaced
from functools import partial
from ipaddress import IPv6Address
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.causes.arrival import SOURCES, find_sources
from otel_nfprobe.causes.baseline import Baseline, BatchSample
from otel_nfprobe.causes.causes import LateCauses
from otel_nfprobe.causes.latency_causes import CAUSE, CauseKind
from otel_nfprobe.causes.lateness import LATE_QUANTILE, LatenessStatistics
from otel_nfprobe.pipeline.flowfilter import FlowFilter
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.outputfile import open_output
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay

# ---- columns of text ------------------------------------------------------------------------------------------------
# Text columns: IDs, addresses and names as Arrow arrays, made by NumPy, without an object per row.
#
# Pure. Only IPv6 addresses and topics are formatted one by one, each distinct one once.


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_OCTETS = np.array([list(f"{octet}.".ljust(4).encode()) for octet in range(256)], np.uint8)
_OCTET_USED = np.array([[place <= len(str(octet)) for place in range(4)] for octet in range(256)])
_LAST_OCTET_USED = np.array([[place < len(str(octet)) for place in range(4)] for octet in range(256)])


def hex_text(values: NDArray[np.uint64]) -> pa.Array:
    """Returns each value as 16 hexadecimal digits."""
    octets = values.astype(">u8").view(np.uint8).reshape(-1, 8)
    digits = np.empty((len(values), 16), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[octets >> 4], _HEX[octets & 15]
    return _strings(digits.reshape(-1), np.full(len(values), 16, np.int64))


def ipv4_text(addresses: NDArray[np.uint8]) -> pa.Array:
    """Returns each address as `10.0.0.1`; addresses: shape (n, 4)."""
    used = np.concatenate((_OCTET_USED[addresses[:, :3]], _LAST_OCTET_USED[addresses[:, 3:]]), axis=1)
    return _strings(_OCTETS[addresses][used], used.sum(axis=(1, 2)))


def address_text(packets: Rows, field: str) -> pa.Array:
    """Returns `source` or `destination` of packets (dtype PACKET); null if there is no IP address."""
    versions = packets["ip_version"]
    is_4, is_6 = versions == 4, versions == 6
    kinds, place = np.unique(packets[field][is_6], axis=0, return_inverse=True)
    texts = pa.array([str(IPv6Address(kind.tobytes())) for kind in kinds], pa.string())
    values = pa.concat_arrays([ipv4_text(packets[field][is_4][:, :4]), texts])
    rows = np.zeros(len(packets), np.int64)
    rows[is_4] = np.arange(is_4.sum())
    rows[is_6] = is_4.sum() + place.reshape(-1)
    return values.take(pa.array(rows, mask=~(is_4 | is_6)))


def topic_text(columns: Columns) -> pa.Array:
    """Returns the topic of each packet that is a message; otherwise null."""
    topics, digests = columns.topics, columns.packets["digest"]
    texts = [bytes(topic["text"][: int(topic["size"])]).decode("utf-8", "replace") for topic in topics]
    rows = np.searchsorted(topics["digest"], digests)
    known = rows < len(topics)
    known[known] = topics["digest"][rows[known]] == digests[known]
    return pa.array(texts, pa.string()).take(pa.array(rows, mask=~known))


def name_text(names: Sequence[str], rows: NDArray[np.integer]) -> pa.Array:
    """Returns one of few names for each row; null if there is no such name. Dictionary encoded."""
    known = (rows >= 0) & (rows < len(names))
    indices = pa.array(np.where(known, rows, 0).astype(np.int32), mask=~known)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))


def numbered_text(names: Mapping[int, str], numbers: NDArray[np.uint32]) -> pa.Array:
    """Returns names by number + 1, as stored in packets; null if a number is 0 or unknown. Dictionary encoded."""
    known = np.array(sorted(names), np.int64)
    wanted = numbers.astype(np.int64) - 1
    rows = np.searchsorted(known, wanted)
    found = np.zeros(len(rows), np.bool_)
    inside = rows < len(known)
    found[inside] = known[rows[inside]] == wanted[inside]
    return name_text([names[number] for number in known.tolist()], np.where(found, rows, -1))


def same_text(text: str, count: int) -> pa.Array:
    """Returns the same text for each row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text], pa.string()))


def _strings(data: NDArray[np.uint8], lengths: NDArray[np.int64]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)))


# ---- rows -----------------------------------------------------------------------------------------------------------


TABLES = ("calls", "batches", "packets", "causes", "parts")
_DISPOSITIONS = ["unknown", "transmitted", "dropped", "punted", "absorbed"]
NOTHING, NO_CAUSES = np.empty(0, np.intp), np.empty(0, CAUSE)
_NS_MAX = 2.0**62
_PORTS = (6, 17, 132)  # protocols with ports: TCP, UDP, SCTP


class TableMaker:
    """Makes the tables of one recording, drain by drain."""

    def __init__(self, facts: RecordingFacts) -> None:
        self._clock: Clock = facts.make_clock()
        self._ns_per_tick = 1e9 / self._clock.ticks_per_second
        resource = facts.header.resource
        host, service = resource.get("host.name", ""), resource.get("service.name", "")
        self._session = {"session": facts.header.session, "host": host, "service": service}
        self._names, self._numbers = facts.function_names, facts.names
        ids = range(len(self._names))
        self._modules = [facts.functions[id].module if id in facts.functions else "" for id in ids]
        self._tids = np.zeros(max(facts.threads, default=-1) + 1, np.int32)
        self._thread_names = [""] * len(self._tids)
        for index, thread in facts.threads.items():
            self._tids[index], self._thread_names[index] = thread.tid & 0x7FFFFFFF, thread.name
        self._calls = 0

    def schemas(self) -> dict[str, pa.Schema]:
        """Returns the schema of each table, by name."""
        nothing = Columns()
        tables: tuple[pa.Table, ...] = (self.calls(nothing), self.batches(nothing), self.packets(nothing))
        late = nothing, NOTHING, NO_CAUSES
        tables = (*tables, self.causes(*late), self.parts(*late))
        return {name: table.schema for name, table in zip(TABLES, tables, strict=True)}

    def calls(self, columns: Columns) -> pa.Table:
        """Returns one row per call, numbered throughout the recording."""
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
        return self._table(values, len(rows))

    def batches(self, columns: Columns) -> pa.Table:
        """Returns one row per batch."""
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
            "is_prior": (flags & BatchFlag.PRIOR) != 0,
        }
        return self._table(values, len(rows))

    def packets(self, columns: Columns) -> pa.Table:
        """Returns one row per packet."""
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
            "receive_unix_ns": self._unix_ns(rows["receive_ticks"]),
            "done_unix_ns": _nullable(self._unix_ns(rows["done_ticks"]), unknown),
            "latency_ns": _nullable(self._ns(latency_ticks(columns)), unknown),
            "disposition": name_text(_DISPOSITIONS, rows["disposition"]),
            "drop_reason": self._numbered(self._numbers.reasons, rows, DROPPED),
            "interface": numbered_text(self._numbers.interfaces, rows["receive_interface"]),
            "transmit_interface": self._numbered(self._numbers.interfaces, rows, TRANSMITTED),
            "done_function": name_text(self._names, rows["done_function"]),
            "done_content_id": hex_text(rows["done_digest"]).take(pa.array(np.arange(len(rows)), mask=~changed)),
            "source": address_text(rows, "source"),
            "destination": address_text(rows, "destination"),
            "source_port": _nullable(_int32(rows["source_port"]), no_ports),
            "destination_port": _nullable(_int32(rows["destination_port"]), no_ports),
            "protocol": _nullable(_int32(rows["protocol"]), ~is_ip),
            "topic": topic_text(columns).take(_rows_if(rows["ip_version"] == MESSAGE_VERSION)),
            "length": _int32(rows["length"]),
            "is_repeated": (flags & PacketFlag.REPEATED) != 0,
        }
        return self._table(values, len(rows))

    def causes(self, columns: Columns, packets: NDArray[np.integer], causes: Rows) -> pa.Table:
        """Returns one row per late packet.

        Args:
            columns: those that `packets` indexes.
            causes: of their lateness, dtype CAUSE.
        """
        found = causes["batch"] != NONE
        values = {
            **self._packet(columns, packets),
            "receive_unix_ns": self._unix_ns(columns.packets["receive_ticks"][packets]),
            "latency_ns": self._ns(latency_ticks(columns)[packets]),
            "cause": _name_kinds(causes["kind"]),
            "function": name_text(self._names, causes["function"]),
            "by": _text(causes["by"]),
            "late_ns": self._ns(causes["late_ticks"]),
            "excess_ns": self._ns(causes["excess_ticks"]),
            "share": causes["share"].astype(np.float64),
            "cause_batch": _nullable(causes["batch_id"].astype(np.int64), ~found),
            "is_saturated": causes["saturated"] != 0,
        }
        return self._table(values, len(packets))

    def parts(self, columns: Columns, packets: NDArray[np.integer], causes: Rows) -> pa.Table:
        """Returns one row per part of each late packet's excess, the largest first, last what is unexplained.

        Args: as those of `causes`.
        """
        rest = np.zeros((len(causes), 1), causes["parts"].dtype)
        rest["kind"][:, 0] = np.where(causes["rest_ticks"] > 0, CauseKind.UNKNOWN, 0)
        rest["function"], rest["batch"], rest["ticks"][:, 0] = NONE, NONE, causes["rest_ticks"]
        parts = np.concatenate((causes["parts"], rest), axis=1)
        used = parts["kind"] != 0
        rows, packet = parts[used], np.repeat(packets, used.sum(1))
        values = {
            **self._packet(columns, packet),
            "number": _int32(np.cumsum(used, axis=1)[used]),
            "cause": _name_kinds(rows["kind"]),
            "function": name_text(self._names, rows["function"]),
            "by": _text(rows["by"]),
            "excess_ns": self._ns(rows["ticks"]),
            "cause_batch": _nullable(rows["batch_id"].astype(np.int64), rows["batch"] == NONE),
        }
        return self._table(values, len(rows))

    def _packet(self, columns: Columns, packets: NDArray[np.integer]) -> dict[str, Any]:
        rows = columns.packets[packets]
        placed = rows["batch"] < len(columns.batches)
        return {
            "packet_id": hex_text(rows["id"]),
            "packet_content_id": hex_text(rows["digest"]),
            "batch": _nullable(_pick(columns.batches["id"], rows["batch"], placed), ~placed),
            "packet_index": _int32(rows["index"]),
        }

    def _numbered(self, names: Mapping[int, str], rows: Rows, disposition: int) -> pa.Array:
        """Returns the name of the number of packets with this disposition; null for others."""
        return numbered_text(names, np.where(rows["disposition"] == disposition, rows["done_number"], 0))

    def _thread(self, index: NDArray[np.uint32]) -> dict[str, Any]:
        known = index < len(self._tids)
        tids = _pick(self._tids, index, known).astype(np.int32)
        return {"thread_id": _nullable(tids, ~known), "thread_name": name_text(self._thread_names, index)}

    def _table(self, values: Mapping[str, Any], count: int) -> pa.Table:
        return pa.table({**{name: same_text(text, count) for name, text in self._session.items()}, **values})

    def _ns(self, ticks: NDArray[Any]) -> NDArray[np.int64]:
        ns = np.rint(ticks.astype(np.int64) * self._ns_per_tick)
        return np.asarray(ns.clip(-_NS_MAX, _NS_MAX), np.int64)  # a damaged recording may contain any ticks

    def _unix_ns(self, ticks: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._clock.convert(ticks).astype(np.int64)


def _name_kinds(kinds: NDArray[np.integer]) -> pa.Array:
    return name_text([kind.name.lower() for kind in CauseKind], kinds.astype(np.int64) - CauseKind.UNKNOWN)


def _text(values: NDArray[np.bytes_]) -> pa.Array:
    """Returns UTF-8 text; null where there is none."""
    return pa.array([value.decode("utf-8", "replace") or None for value in values.tolist()], pa.string())


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


# ---- files ----------------------------------------------------------------------------------------------------------
# Table files: a recording as Parquet, DIR/{calls,batches,packets,causes,parts}/NAME.parquet.
#
# Two replays: one computes the baseline, one writes. Memory is bounded by a drain: each becomes a row group. A file
# gets its name when it is complete.


def write_tables(
    reader: RecordingReader, folder: Path, slower_than_ns: int | None = None, flow: FlowFilter | None = None
) -> RecordingFacts:
    """Writes the files of one recording, replacing earlier ones.

    Args:
        reader: the recording; `facts.damage` of the result says where it was truncated.
        folder: created if missing.
        slower_than_ns: packets with a longer latency get rows in causes and parts; None: the slowest 0.1 %.
        flow: only packets of these flows get rows, in packets, causes and parts; None: all.

    Raises:
        NfprobeError: a file cannot be written.
    """
    facts = read_facts(reader)
    maker = TableMaker(facts)
    try:
        with _Files(folder, _file_name(facts, reader.path), maker.schemas()) as files:
            for tables in make_tables(reader, facts, slower_than_ns, flow):
                for name, rows in tables.items():
                    files.add(name, rows)
    except OSError as error:
        raise NfprobeError(f"Cannot write tables to {folder}: {error.strerror}.", f"ls -ld {folder}") from None
    return facts


def make_tables(
    reader: RecordingReader,
    facts: RecordingFacts,
    slower_than_ns: int | None = None,
    flow: FlowFilter | None = None,
    names: Sequence[str] = TABLES,
) -> Iterator[dict[str, pa.Table]]:
    """Yields the rows of tables, by name: those of one drain after the other, at least once.

    Args:
        slower_than_ns, flow: as for write_tables.
        names: which tables.
    """
    maker = TableMaker(facts)
    has_late = not {"causes", "parts"}.isdisjoint(names)
    late = _find_late(reader, facts, slower_than_ns, flow) if has_late else None
    with Pipeline(facts.roles) as pipeline:
        pipeline.set_costs(facts.costs)
        for columns in itertools.chain([Columns()], replay(reader, facts, pipeline)):
            found = (columns, NOTHING, NO_CAUSES) if late is None else late.find(columns)
            makers: dict[str, Callable[[], pa.Table]] = {
                "calls": partial(maker.calls, columns),
                "batches": partial(maker.batches, columns),
                "packets": partial(maker.packets, _keep_flow(columns, flow)),
                "causes": partial(maker.causes, *found),
                "parts": partial(maker.parts, *found),
            }
            yield {name: makers[name]() for name in names}


def _find_late(
    reader: RecordingReader, facts: RecordingFacts, slower_than_ns: int | None, flow: FlowFilter | None
) -> LateCauses:
    late_ticks, baseline = _find_usual(reader, facts)
    if slower_than_ns is not None:
        late_ticks = round(slower_than_ns * facts.ticks_per_second / 1e9) + 1
    return LateCauses(late_ticks, baseline, facts.absences, flow)


def _find_usual(reader: RecordingReader, facts: RecordingFacts) -> tuple[int, Baseline]:
    sample, statistics = BatchSample(), LatenessStatistics()
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            sample.add(columns)
            statistics.add(columns)
    return statistics.find_late_ticks(LATE_QUANTILE), sample.baseline()


def _file_name(facts: RecordingFacts, path: str) -> str:
    # Names differ between sessions and between the files of a flight recorder, so files of many hosts can be combined.
    words = (Path(path).stem, facts.header.session)
    return "-".join(re.sub(r"[^A-Za-z0-9._]", "_", word)[:100] for word in words if word) + ".parquet"


def _keep_flow(columns: Columns, flow: FlowFilter | None) -> Columns:
    if flow is None:
        return columns
    return replaced(columns, packets=columns.packets[flow.match(columns.packets)])


class _Files:
    """One file per table, private (0600) like the recording; removed if the `with` block fails."""

    def __init__(self, folder: Path, name: str, schemas: Mapping[str, pa.Schema]) -> None:
        self._schemas = schemas
        self._paths = {table: folder / table / name for table in schemas}
        self._stack = contextlib.ExitStack()
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> _Files:
        try:
            for table, path in self._paths.items():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = self._stack.enter_context(os.fdopen(open_output(str(_part(path))), "wb"))
                # Without Arrow's own schema in the file: text is plain text for all readers.
                writer = pq.ParquetWriter(file, self._schemas[table], compression="zstd", store_schema=False)
                self._writers[table] = self._stack.enter_context(writer)
        except BaseException:
            self._give_up()
            raise
        return self

    def add(self, table: str, rows: pa.Table) -> None:
        """Appends rows as a row group."""
        if rows.num_rows:
            self._writers[table].write_table(rows)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._give_up()
            return
        try:
            self._stack.close()
            for path in self._paths.values():
                os.replace(_part(path), path)
        except BaseException:
            self._give_up()
            raise

    def _give_up(self) -> None:
        with contextlib.suppress(OSError):
            self._stack.close()
        for path in self._paths.values():
            with contextlib.suppress(OSError):
                os.unlink(_part(path))


def _part(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")  # readers of the folder skip names with a leading dot
