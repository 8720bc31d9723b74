# SPDX-License-Identifier: Apache-2.0
"""Spans: columns in, OTLP requests out. Prepares the input of the C encoder (native/core/otlp.h).

Pure: no I/O, no clock. IDs are derived from the packets and the session, so the same recording always gives the same
bytes. The pipeline's arrays are read in place, without a Python object per packet or span.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span
from opentelemetry.util.types import AttributeValue

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import CALL_COUNTERS, HANDOVER, NONE, Columns, Rows, with_again
from otel_nfprobe.base.holdrows import HOLD
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.base.numbernames import NAMES_MAX, NumberNames
from otel_nfprobe.causes.arrival import find_waited
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.causes.split import PARTS_MAX
from otel_nfprobe.export.resource import SCHEMA_URL, encode_attribute, encode_resource, encode_scope
from otel_nfprobe.export.span_drops import encode_drops
from otel_nfprobe.export.timescale import TRUE_TIMES, TimeScale
from otel_nfprobe.pipeline.sampling import RANDOMNESS

TAIL = dtype_of("nfp_tail")
TAIL_PART = dtype_of("nfp_tail_part")
TAIL_KINDS = ("none", *(kind.name.lower() for kind in CauseKind))

TEXT_STRUCT = "struct nfp_otlp_text"
SETS_KEPT = 64  # earlier counter sets: calls wait for their packets for seconds at most


class EncodedRequest(NamedTuple):
    """The bytes of one ExportTraceServiceRequest, and its numbers of spans and packets; copies count no packets."""

    data: bytes
    spans: int
    packets: int


class Tails(NamedTuple):
    """What made packets late, as the encoder reads it.

    Attributes:
        rows: of each packet, dtype TAIL; kind 0: not examined.
        parts: of all of them, dtype TAIL_PART: where a row says, the largest first, then what is unexplained.
    """

    rows: Rows
    parts: Rows = np.empty(0, TAIL_PART)


def make_tails(causes: Rows, ticks_per_second: float) -> Tails:
    """Converts the result of `find_causes`, dtype CAUSE, for `SpanEncoder.encode`."""
    ns_per_tick = 1e9 / ticks_per_second
    tails = np.zeros(len(causes), dtype=TAIL)
    tails["kind"] = causes["kind"]
    tails["function"] = causes["function"]
    tails["batch_id"] = causes["batch_id"]
    tails["excess_ns"] = np.rint(causes["excess_ticks"] * ns_per_tick)
    tails["flags"] = np.where(causes["saturated"] != 0, lib.NFP_TAIL_SATURATED, 0)
    for name in ("share", "flow_packet", "flow_share", "hold", "by"):
        tails[name] = causes[name]
    # One more than parts of each: what is unexplained; of these rows those that are used, in their order.
    parts = np.zeros((len(causes), PARTS_MAX + 1), dtype=TAIL_PART)
    for name in ("kind", "function", "by"):
        parts[name][:, :-1] = causes["parts"][name]
    parts["ns"][:, :-1] = np.rint(causes["parts"]["ticks"] * ns_per_tick)
    parts["kind"][:, -1] = np.where(causes["rest_ticks"] > 0, CauseKind.UNKNOWN, 0)
    parts["function"][:, -1] = NONE
    late_ns = np.rint(causes["late_ticks"] * ns_per_tick).astype(np.int64)
    parts["ns"][:, -1] = np.maximum(late_ns - parts["ns"].sum(1, dtype=np.int64), 0)
    used = parts["kind"] != 0
    tails["part_count"] = used.sum(1)
    tails["first_part"] = np.cumsum(tails["part_count"]) - tails["part_count"]
    return Tails(tails, parts[used])


def find_session_id(session: str) -> int:
    """Returns the 64 bits of a session that go into its trace IDs, from its name in a recording.

    Attach writes 16 hex digits; any other name is hashed.
    """
    if re.fullmatch("[0-9a-f]{16}", session):
        return int(session, 16)
    return int.from_bytes(hashlib.blake2b(session.encode(), digest_size=8).digest(), "big")


class SpanEncoder:
    """Encodes selected packets of one session.

    Args:
        resource_attributes: of the resource (`make_resource_attributes`).
        function_names: by function ID; others are called `unknown function`.
        session_id: 64 bits that differ between sessions; part of every trace id.
        clock: converts ticks; its newest anchors are used at each `encode`.
        trace_state: of spans of sampled packets, such as `ot=th:fd70a4`; at most 60 bytes.
        correlate_window_ns: of trace IDs shared with other NFs (Identity); 0: they are unique.
        time_scale: whether stretched copies are written.
        is_linked: each batch is a separate trace, to which its packets link.

    Attributes:
        dropped_spans: calls left out because their packet's trace alone exceeds a request.
        bad_packets: packets without spans, because their indices are out of range.
        clock: of the session.
        function_names: as given, or as set since.
    """

    def __init__(
        self,
        resource_attributes: Mapping[str, AttributeValue],
        function_names: Sequence[str],
        session_id: int,
        clock: Clock,
        trace_state: str = "",
        correlate_window_ns: int = 0,
        time_scale: TimeScale = TRUE_TIMES,
        is_linked: bool = False,
    ) -> None:
        self.dropped_spans = 0
        self.bad_packets = 0
        self.clock = clock
        self.function_names = list(function_names)
        self._threads: list[tuple[int, str]] = []
        self._numbers = NumberNames()
        self._scale = time_scale
        self._resources = {
            factor: ResourceSpans(
                resource=encode_resource(resource_attributes if factor == 1 else time_scale.rename(resource_attributes))
            ).SerializeToString()
            for factor in time_scale.passes
        }
        self._job = ffi.new("struct nfp_otlp_job *")
        self._job.session_id = session_id
        self._job.correlate_window_ns = correlate_window_ns
        self._job.is_linked = is_linked
        self._trace_state = trace_state
        self.set_trace_state("")
        self._buffer = ffi.new("uint8_t[]", lib.NFP_OTLP_BYTES_MAX)
        self._kept: dict[str, Any] = {}
        self._counters: dict[int, list[tuple[str, int]]] = {}
        self._prepare()

    @property
    def ticks_per_second(self) -> float:
        """Returns the tick rate of the session's clock."""
        return self.clock.ticks_per_second

    def set_trace_state(self, trace_state: str) -> None:
        """Sets the trace state of sampled packets; empty: the session's."""
        state = Span(trace_state=trace_state or self._trace_state).SerializeToString()
        if len(state) > lib.NFP_OTLP_TRACE_STATE_MAX:
            raise ValueError(f"trace_state is longer than {lib.NFP_OTLP_TRACE_STATE_MAX - 2} bytes")
        ffi.memmove(self._job.trace_state, state, len(state))
        self._job.trace_state_size = len(state)

    def set_functions(self, function_names: Sequence[str]) -> None:
        """Replaces the function names, after probes were added."""
        if list(function_names) != self.function_names:
            self.function_names = list(function_names)
            self._prepare()

    def set_threads(self, threads: Sequence[tuple[int, str]]) -> None:
        """Sets thread ID and name by thread table index; spans of other threads have neither."""
        if list(threads) != self._threads:
            self._threads = list(threads)
            self._prepare()

    def set_numbers(self, names: NumberNames) -> None:
        """Sets the target's names of its interfaces and of its drop reasons."""
        self._numbers = names
        self._prepare()

    def set_counters(self, counters: Sequence[tuple[str, int]], number: int = 0) -> None:
        """Sets name and scale of the counters that calls were measured with, in the order of their values.

        Args:
            number: of the counter set; old sets are forgotten.
        """
        self._counters[number] = list(counters)
        for old in sorted(self._counters)[:-SETS_KEPT]:
            del self._counters[old]
        self._prepare()

    def encode(
        self,
        columns: Columns,
        selected: npt.NDArray[np.uint32],
        reasons: npt.NDArray[np.uint8],
        tails: Tails | None = None,
    ) -> Iterator[EncodedRequest]:
        """Yields requests of at most 8,192 spans and, except for one trace, 768 KiB. The arrays must stay unchanged.

        Args:
            columns: calls, batches and packets.
            selected: indices of packets, shape (n,).
            reasons: why each was selected, REASON_* bits of sampling.py, shape (n,).
            tails: the causes of each; None if they were not examined.
        """
        selected, reasons = np.ascontiguousarray(selected, np.uint32), np.ascontiguousarray(reasons, np.uint8)
        if len(selected) != len(reasons) or (tails is not None and len(tails.rows) != len(selected)):
            raise ValueError("selected, reasons and tails differ in length")
        columns = with_again(columns)
        self._set_columns(columns)
        self._point("selected", "uint32_t", selected)
        self._point("reasons", "uint8_t", reasons)
        self._set_tails(tails)
        representatives, waits = find_waited(columns, selected)
        self._point("representatives", "uint32_t", representatives)
        self._point("waits", "uint32_t", waits)
        linked = bool(self._job.is_linked)
        self._point("opens", "uint8_t", _find_first_of_batch(columns, selected) if linked else None)
        self._point("handover_opens", "uint8_t", _find_first_taken_over(columns, selected) if linked else None)
        self._job.selected_count, self._job.representative_count = len(selected), len(representatives)
        for factor in self._scale.passes:
            self._set_scale(factor)
            yield from self._encode_all(len(selected), is_copy=factor != self._scale.passes[0])

    def encode_drops(
        self, drops: Rows, causes: Rows, links: npt.NDArray[np.uint64], ticks_per_second: float
    ) -> Iterator[EncodedRequest]:
        """Yields a request with a span for each row of packets that a full queue dropped, if true times are written.

        Args:
            drops: dtype QUEUE_DROP; causes: theirs, dtype DROP_CAUSE, with functions of this session.
            links: of the culprits' batch spans (`find_batch_links`), shape (n, 3).
            ticks_per_second: of the session.
        """
        is_span = links[:, :2].any(axis=1)
        drops, causes, links = drops[is_span], causes[is_span], links[is_span]
        if len(drops) and 1 in self._resources:
            names, resource = self.function_names, self._resources[1]
            data = encode_drops(drops, causes, links, resource, self.clock, ticks_per_second, names)
            yield EncodedRequest(data, len(drops), 0)

    def find_randomness(self, columns: Columns) -> npt.NDArray[np.uint64]:
        """Returns the low 56 bits of every packet's trace ID, which decide consistent samples."""
        ids = self.find_trace_ids(columns, np.arange(len(columns.packets), dtype=np.uint32))
        randomness: npt.NDArray[np.uint64] = ids[:, 1] & RANDOMNESS
        return randomness

    def find_trace_ids(self, columns: Columns, packets: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """Returns trace IDs by packet index: shape (n, 2), high word first; zeros if there is no batch."""
        self._set_columns(columns)
        packets = np.ascontiguousarray(packets, dtype=np.uint32)
        ids = np.zeros((len(packets), 2), dtype=np.uint64)
        lib.nfp_otlp_trace_ids(self._job, _pointer("uint32_t", packets), len(packets), _pointer("uint64_t", ids))
        return ids

    @property
    def correlates(self) -> bool:
        """Whether a packet has the same trace in all network functions."""
        return bool(self._job.correlate_window_ns)

    def find_batch_links(
        self, columns: Columns, packets: npt.NDArray[np.uint32], numbers: npt.NDArray[np.uint32] | None = None
    ) -> npt.NDArray[np.uint64]:
        """Returns where a batch of each packet is a span, if the packet is exported: shape (n, 3), trace and span ID.

        Args:
            numbers: which of its handovers; 0, and None: the batch that received it.
        """
        self._set_columns(with_again(columns))
        packets = np.ascontiguousarray(packets, dtype=np.uint32)
        whose = np.zeros(len(packets), np.uint32) if numbers is None else np.ascontiguousarray(numbers, np.uint32)
        links = np.zeros((len(packets), 3), dtype=np.uint64)
        pointers = (_pointer("uint32_t", packets), _pointer("uint32_t", whose))
        lib.nfp_otlp_batch_links(self._job, *pointers, len(packets), _pointer("uint64_t", links))
        return links

    def find_packet_links(self, columns: Columns, packets: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
        """The span of each packet itself: shape (n, 3), trace id and span id."""
        self._set_columns(columns)
        packets = np.ascontiguousarray(packets, dtype=np.uint32)
        links = np.zeros((len(packets), 3), dtype=np.uint64)
        lib.nfp_otlp_packet_links(self._job, _pointer("uint32_t", packets), len(packets), _pointer("uint64_t", links))
        return links

    def scale_links(self, links: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Links as the first pass of the time scale writes them: true ids, or those of the stretched copy."""
        self._job.time_scale = self._scale.passes[0]
        scaled = np.array(links, dtype=np.uint64, order="C")
        lib.nfp_otlp_scale_links(self._job, len(scaled), _pointer("uint64_t", scaled))
        return scaled

    def _encode_all(self, count: int, is_copy: bool) -> Iterator[EncodedRequest]:
        result = ffi.new("struct nfp_otlp_result *")
        first = 0
        while first < count:
            lib.nfp_otlp_encode(self._job, first, self._buffer, lib.NFP_OTLP_BYTES_MAX, result)
            first += result.packets
            self.dropped_spans += result.dropped_spans
            self.bad_packets += 0 if is_copy else result.bad_packets
            if result.spans:
                data = ffi.unpack(ffi.cast("char *", self._buffer + result.offset), result.bytes)
                packets = 0 if is_copy else result.packets - result.bad_packets
                yield EncodedRequest(data, result.spans, packets)

    def _set_columns(self, columns: Columns) -> None:
        for name in ("calls", "batches", "packets", "topics"):
            array = np.ascontiguousarray(getattr(columns, name))
            singular = {"calls": "call", "batches": "batch", "packets": "packet", "topics": "topic"}[name]
            if array.dtype.itemsize != ffi.sizeof(f"struct nfp_{singular}"):
                raise ValueError(f"{name} are not of the dtype of columns.h")
            self._point(name, f"struct nfp_{singular}", array)
            setattr(self._job, f"{singular}_count", len(array))
        self._point("counters", "struct nfp_call_counters", np.ascontiguousarray(columns.counters, CALL_COUNTERS))
        self._job.counters_count = len(columns.counters)
        self._point("holds", "struct nfp_hold", np.ascontiguousarray(columns.holds, HOLD))
        self._job.hold_count = len(columns.holds)
        self._point("handovers", "struct nfp_handover", np.ascontiguousarray(columns.handovers, HANDOVER))
        self._job.handover_count = len(columns.handovers)
        self._point("anchors", "struct nfp_anchor", self.clock.anchors)
        self._job.anchor_count = len(self.clock.anchors)

    def _set_tails(self, tails: Tails | None) -> None:
        rows, parts = (None, None) if tails is None else tails
        self._point("tails", "struct nfp_tail", None if rows is None else np.ascontiguousarray(rows, TAIL))
        self._point("parts", "struct nfp_tail_part", None if parts is None else np.ascontiguousarray(parts, TAIL_PART))
        self._job.tail_part_count = 0 if parts is None else len(parts)

    def _point(self, field: str, kind: str, array: npt.NDArray[Any] | None) -> None:
        # C keeps only the address: the array must live as long.
        self._kept[field] = array
        setattr(self._job, field, ffi.NULL if array is None else _pointer(kind, array))

    def _prepare(self) -> None:
        text = SpanText()
        functions, threads = text.add_functions(self.function_names), text.add_threads(self._threads, self._numbers)
        counters, sets = text.add_counters(self._counters)
        self._point_numbers(text)
        scope_end = ScopeSpans(schema_url=SCHEMA_URL).SerializeToString()
        resource_end = ResourceSpans(schema_url=SCHEMA_URL).SerializeToString()
        for field, part in (
            ("scope", ScopeSpans(scope=encode_scope()).SerializeToString()),
            ("scope_end", scope_end),
            ("resource_end", resource_end),
        ):
            offset, size = text.add(part)
            setattr(self._job, field, {"offset": offset, "size": size})
        self._places = {factor: text.add(part) for factor, part in self._resources.items()}
        self._point("text", "uint8_t", np.frombuffer(text.join(), dtype=np.uint8))
        self._point("functions", "struct nfp_otlp_function", functions)
        self._point("threads", TEXT_STRUCT, threads)
        self._point("counter_names", "struct nfp_otlp_counter", counters)
        self._point("counter_sets", "struct nfp_otlp_counter_set", sets)
        self._job.function_count, self._job.thread_count = len(functions), len(threads)
        self._job.counter_set_count = len(sets)
        for factor in self._scale.passes:
            self._set_scale(factor)

    def _point_numbers(self, text: SpanText) -> None:
        interfaces, reasons = self._numbers.interfaces, self._numbers.reasons
        count = min(max(interfaces, default=-1) + 1, NAMES_MAX)
        self._point("received_on", TEXT_STRUCT, text.add_numbered("nf.interface.name", interfaces, count))
        self._point("sent_on", TEXT_STRUCT, text.add_numbered("nf.interface.transmit.name", interfaces, count))
        self._job.interface_count = count
        count = min(max(reasons, default=-1) + 1, NAMES_MAX)
        self._point("reasons_why", TEXT_STRUCT, text.add_numbered("nf.packet.drop_reason", reasons, count))
        self._job.reason_count = count

    def _set_scale(self, factor: int) -> None:
        # For everything encoded from now on.
        offset, size = self._places[factor]
        self._job.resource = {"offset": offset, "size": size}
        self._job.time_scale = factor
        if lib.nfp_otlp_prepare(self._job) > lib.NFP_OTLP_BYTES_MAX:
            raise ValueError("the resource's attributes are too large: a request has no room for spans")


def _find_first_of_batch(columns: Columns, selected: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Returns which selected packets are the first of their batch."""
    opens, rows = np.zeros(len(selected), np.uint8), np.flatnonzero(selected < len(columns.packets))
    _, first = np.unique(columns.packets["batch"][selected[rows]], return_index=True)
    opens[rows[first]] = 1
    return opens


def _find_first_taken_over(columns: Columns, selected: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Returns for each handover whether it is the first of a selected packet to its batch."""
    opens, rank = np.zeros(len(columns.handovers), np.uint8), np.full(len(columns.packets), NONE, np.uint32)
    rows = np.flatnonzero(selected < len(columns.packets))
    rank[selected[rows][::-1]] = rows[::-1].astype(np.uint32)
    order = rank[columns.handovers["packet"]]
    rows = np.flatnonzero(order != NONE)
    rows = rows[np.argsort(order[rows], kind="stable")]
    _, first = np.unique(columns.handovers["batch"][rows], return_index=True)
    opens[rows[first]] = 1
    return opens


def _pointer(kind: str, array: npt.NDArray[Any]) -> Any:
    return ffi.cast(f"{kind} *", array.ctypes.data)


# ---- texts and tables for the encoder -------------------------------------------------------------------------------
# Span text: names of functions, threads and counters, as the bytes that the C encoder copies into each span.
#
# The dtypes are those of native/core/otlp.h.


# Names of C++ templates reach kilobytes; nobody reads all of it, and each span contains its name twice.
NAME_BYTES_MAX = 512

_INTERNAL = Span.SpanKind.SPAN_KIND_INTERNAL
_TEXT = dtype_of("nfp_otlp_text")
_COUNTER = dtype_of("nfp_otlp_counter")
_COUNTER_SET = dtype_of("nfp_otlp_counter_set")
_FUNCTION = dtype_of("nfp_otlp_function")


class SpanText:
    """A byte buffer of texts, each located by offset and size."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, part: bytes) -> tuple[int, int]:
        """Adds a text. Returns its offset and size."""
        offset = self._bytes
        self._parts.append(part)
        self._bytes += len(part)
        return offset, len(part)

    def add_functions(self, names: Sequence[str]) -> Rows:
        """Adds a row for each function, struct nfp_otlp_function, and one for unknown IDs."""
        rows = np.zeros(len(names) + 1, dtype=_FUNCTION)
        for index, name in enumerate([*names, "unknown function"]):
            rows[index] = self._add_function(_shorten(name))
        return rows

    def add_numbered(self, key: str, names: Mapping[int, str], count: int) -> Rows:
        """Adds a row for each number below `count`, struct nfp_otlp_text: the attribute `key`, or nothing."""
        rows = np.zeros(count, dtype=_TEXT)
        for number, name in names.items():
            if number < count:
                attribute = encode_attribute(key, _shorten(name))
                rows[number] = self.add(Span(attributes=[attribute]).SerializeToString())
        return rows

    def add_threads(self, threads: Sequence[tuple[int, str]], numbers: NumberNames) -> Rows:
        """Adds a row for each thread, struct nfp_otlp_text, and an empty one for unknown indices."""
        rows = np.zeros(len(threads) + 1, dtype=_TEXT)
        for index, (tid, name) in enumerate(threads):
            rows[index] = self.add(_encode_thread(tid, name, numbers.thread_number(tid)))
        return rows

    def add_counters(self, counters: Mapping[int, Sequence[tuple[str, int]]]) -> tuple[Rows, Rows]:
        """Adds rows of names, struct nfp_otlp_counter, and of their sets, struct nfp_otlp_counter_set.

        Args:
            counters: name and scale of each, by set number.
        """
        pairs = [pair for of_set in counters.values() for pair in of_set]
        rows, sets = np.zeros(len(pairs), dtype=_COUNTER), np.zeros(len(counters), dtype=_COUNTER_SET)
        for index, (name, scale) in enumerate(pairs):
            names = (_shorten_counter(f"nf.counter.{name}"), _shorten_counter(f"nf.counter.{name}.self"))
            rows[index] = *(self.add(key) for key in names), scale
        first = 0
        for index, (number, of_set) in enumerate(counters.items()):
            sets[index] = number, first, len(of_set)
            first += len(of_set)
        return rows, sets

    def join(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)

    def _add_function(self, name: str) -> tuple[tuple[int, int], ...]:
        spans = (
            Span(name=name, kind=_INTERNAL),
            Span(attributes=[encode_attribute("code.function.name", name)]),
            Span(name=f"late packet: {name}", kind=_INTERNAL),
            Span(attributes=[encode_attribute("nf.tail.function", name)]),
        )
        return *(self.add(span.SerializeToString()) for span in spans), self.add(name.encode())


def _encode_thread(tid: int, name: str, number: int | None) -> bytes:
    attributes = [encode_attribute("thread.id", tid)]
    if name:
        attributes.append(encode_attribute("thread.name", name))
    if number is not None:
        attributes.append(encode_attribute("nf.thread.number", number))
    return Span(attributes=attributes).SerializeToString()


def _shorten_counter(key: str) -> bytes:
    encoded = key.encode("utf-8", "replace")
    room = lib.NFP_OTLP_COUNTER_NAME_MAX
    if len(encoded) <= room:
        return encoded
    return encoded[: room - 8].decode("utf-8", "ignore").encode() + b"..." + encoded[-5:]


def _shorten(name: str) -> str:
    # Symbol tables may contain any bytes; protobuf takes UTF-8 only.
    encoded = name.encode("utf-8", "replace")
    if len(encoded) <= NAME_BYTES_MAX:
        return encoded.decode("utf-8", "replace")
    return encoded[: NAME_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
