# SPDX-License-Identifier: Apache-2.0
"""Threads, functions and counters of a session, as plain data and as messages of proto/recording.proto."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from otel_nfprobe.base import recording_pb2
from otel_nfprobe.base.columns import counter_cost_rows
from otel_nfprobe.counters.namelist import read_names, write_names
from otel_nfprobe.counters.sets import CounterSet
from otel_nfprobe.shm.session import PROBE_COUNT

THREAD_COUNT = 1024
FUNCTIONS_PER_BLOCK = 10_000
_Plain = TypeVar("_Plain", "ThreadInfo", "FunctionInfo", "ThreadTotals")


@dataclass(frozen=True)
class ThreadInfo:
    """One thread: its index in the session's thread table, its tid in the target's PID namespace, its name."""

    index: int
    tid: int
    name: str


@dataclass(frozen=True)
class FunctionInfo:
    """One probed function; role is enum nfp_role, module a path, offset and size are bytes in it.

    The four fields after strategy are the overhead of a probed call: in time, between its timestamps and in total, and
    in counters, of its own counts and in total; 0 or empty: unknown. `unit` is VECTORS if its calls count them.
    """

    id: int
    role: int
    module: str
    offset: int
    size: int
    name: str
    name_source: str
    strategy: str
    probe_inside_ticks: float = 0.0
    probe_whole_ticks: float = 0.0
    probe_inside_counts: tuple[int, ...] = ()
    probe_whole_counts: tuple[int, ...] = ()
    unit: str = ""


@dataclass(frozen=True)
class ThreadTotals:
    """One entry of the thread table at some time; `lost` counts records by loss class."""

    index: int
    empty_polls: int = 0
    empty_ticks: int = 0
    batches: int = 0
    received_packets: int = 0
    transmit_calls: int = 0
    transmitted_packets: int = 0
    refused_packets: int = 0
    dropped_packets: int = 0
    lost: tuple[int, ...] = ()
    punted_packets: int = 0
    handed_over_packets: int = 0
    taken_over_packets: int = 0


def encode_functions(functions: Iterable[FunctionInfo]) -> Iterator[bytes]:
    """Returns payloads of FUNCTIONS blocks of bounded size."""
    items = [recording_pb2.Function(**asdict(item)) for item in functions]
    for start in range(0, len(items), FUNCTIONS_PER_BLOCK):
        yield recording_pb2.Functions(function=items[start : start + FUNCTIONS_PER_BLOCK]).SerializeToString()


def encode_counters(counters: Iterable[ThreadTotals]) -> bytes:
    """Returns the payload of a COUNTERS block."""
    entries = [recording_pb2.ThreadCounters(**asdict(entry)) for entry in counters]
    return bytes(recording_pb2.Counters(thread=entries).SerializeToString())


def encode_counting(counted: CounterSet) -> bytes:
    """Returns the payload of a COUNTING block."""
    message = recording_pb2.Counting(number=counted.number, names=write_names(counted.counters))
    for id, row in enumerate(counted.costs):
        if row["inside"].any() or row["whole"].any():
            inside, whole = row["inside"].tolist(), row["whole"].tolist()
            message.function.add(id=id, probe_inside_counts=inside, probe_whole_counts=whole)
    return bytes(message.SerializeToString())


def decode_counting(payload: bytes) -> CounterSet:
    """Decodes the result of encode_counting.

    Raises:
        ValueError, DecodeError: malformed.
    """
    message = recording_pb2.Counting.FromString(payload)
    if any(item.id >= PROBE_COUNT for item in message.function):
        raise ValueError
    costs = {item.id: (item.probe_inside_counts, item.probe_whole_counts) for item in message.function}
    return CounterSet(message.number, tuple(read_names(message.names)), counter_cost_rows(costs))


def encode_threads(threads: Iterable[ThreadInfo]) -> bytes:
    """Returns the payload of a THREADS block."""
    entries = [recording_pb2.Thread(**asdict(entry)) for entry in threads]
    return bytes(recording_pb2.Threads(thread=entries).SerializeToString())


def decode_threads(payload: bytes) -> list[ThreadInfo]:
    """Decodes the result of encode_threads.

    Raises:
        ValueError, DecodeError: malformed.
    """
    return [_read(ThreadInfo, item) for item in _items(recording_pb2.Threads, payload)]


def decode_functions(payload: bytes) -> list[FunctionInfo]:
    """Decodes the result of encode_functions.

    Raises:
        DecodeError: malformed.
    """
    return [_read(FunctionInfo, item) for item in recording_pb2.Functions.FromString(payload).function]


def decode_counters(payload: bytes) -> list[ThreadTotals]:
    """Decodes the result of encode_counters.

    Raises:
        ValueError, DecodeError: malformed.
    """
    return [_read(ThreadTotals, item) for item in _items(recording_pb2.Counters, payload)]


def _items(message: Any, payload: bytes) -> Sequence[Any]:
    items: Sequence[Any] = message.FromString(payload).thread
    if any(item.index >= THREAD_COUNT for item in items):
        raise ValueError
    return items


def _read(kind: type[_Plain], item: Any) -> _Plain:
    """Converts a message to the class with the same field names; repeated fields become tuples."""
    values: dict[str, Any] = {part.name: getattr(item, part.name) for part in fields(kind)}
    values.update((name, tuple(value)) for name, value in values.items() if not isinstance(value, int | float | str))
    return kind(**values)
