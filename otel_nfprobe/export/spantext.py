# SPDX-License-Identifier: Apache-2.0
"""Span text: names of functions, threads and counters, as the bytes that the C encoder copies into each span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.export.resource import encode_attribute

# Names of C++ templates reach kilobytes; nobody reads them to the end, and each span repeats its name twice.
NAME_BYTES_MAX = 512

_INTERNAL = Span.SpanKind.SPAN_KIND_INTERNAL
_TEXT = dtype_of("nfp_otlp_text")
_COUNTER = dtype_of("nfp_otlp_counter")
_COUNTER_SET = dtype_of("nfp_otlp_counter_set")
_FUNCTION = dtype_of("nfp_otlp_function")


class SpanText:
    """Bytes put one after another, each found again by offset and size."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def add(self, part: bytes) -> tuple[int, int]:
        """Returns offset and size."""
        offset = self._bytes
        self._parts.append(part)
        self._bytes += len(part)
        return offset, len(part)

    def add_functions(self, names: Sequence[str]) -> Rows:
        """One row for each, struct nfp_otlp_function, and one more for ids beyond them."""
        rows = np.zeros(len(names) + 1, dtype=_FUNCTION)
        for index, name in enumerate([*names, "unknown function"]):
            rows[index] = self._add_function(_shorten(name))
        return rows

    def add_numbered(self, key: str, names: Mapping[int, str], count: int) -> Rows:
        """One row for each number below `count`, struct nfp_otlp_text: the attribute `key`, or nothing."""
        rows = np.zeros(count, dtype=_TEXT)
        for number, name in names.items():
            if number < count:
                attribute = encode_attribute(key, _shorten(name))
                rows[number] = self.add(Span(attributes=[attribute]).SerializeToString())
        return rows

    def add_threads(self, threads: Sequence[tuple[int, str]], numbers: NumberNames) -> Rows:
        """One row for each id and name, struct nfp_otlp_text, and an empty one for indices beyond them."""
        rows = np.zeros(len(threads) + 1, dtype=_TEXT)
        for index, (tid, name) in enumerate(threads):
            rows[index] = self.add(_encode_thread(tid, name, numbers.thread_number(tid)))
        return rows

    def add_counters(self, counters: Mapping[int, Sequence[tuple[str, int]]]) -> tuple[Rows, Rows]:
        """Rows of names, struct nfp_otlp_counter, and of the sets that they are in, struct nfp_otlp_counter_set.

        Args:
            counters: name and scale of each, by the number of the set.
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
        return tuple(self.add(span.SerializeToString()) for span in spans)


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
    # Symbol tables hold any bytes; protobuf takes UTF-8 only.
    encoded = name.encode("utf-8", "replace")
    if len(encoded) <= NAME_BYTES_MAX:
        return encoded.decode("utf-8", "replace")
    return encoded[: NAME_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."
