# SPDX-License-Identifier: Apache-2.0
"""SDK encoder: spans of the OpenTelemetry SDK as OTLP bytes, without a protobuf object for each.

What protobuf's own classes read from it is what they read from opentelemetry-exporter-otlp-proto-common; a test
compares both.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext

_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200
_FIXED64 = struct.Struct("<Q")
_FLAGS = {False: b"\x85\x01" + struct.pack("<I", _HAS_IS_REMOTE)}
_FLAGS[True] = b"\x85\x01" + struct.pack("<I", _HAS_IS_REMOTE | _IS_REMOTE)
_LINK_FLAGS = {remote: b"\x35" + flags[2:] for remote, flags in _FLAGS.items()}
_SMALL = [bytes([number]) for number in range(128)]


def encode_request(spans: Sequence[ReadableSpan]) -> bytes:
    """An ExportTraceServiceRequest of these spans, grouped by resource and scope."""
    groups: dict[Resource, dict[InstrumentationScope | None, list[bytes]]] = {}
    for span in spans:
        scopes = groups.setdefault(span.resource, {})
        scopes.setdefault(span.instrumentation_scope, []).append(_field(b"\x12", _encode_span(span)))
    parts = []
    for resource, scopes in groups.items():
        body = [_field(b"\x0a", _encode_attributes(b"\x0a", resource.attributes))]
        for scope, encoded in scopes.items():
            head = _field(b"\x0a", _encode_scope(scope))
            url = _text(b"\x1a", scope.schema_url) if scope is not None and scope.schema_url else b""
            body.append(_field(b"\x12", b"".join([head, *encoded, url])))
        body.append(_text(b"\x1a", resource.schema_url) if resource.schema_url else b"")
        parts.append(_field(b"\x0a", b"".join(body)))
    return b"".join(parts)


def _encode_span(span: ReadableSpan) -> bytes:
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    parts = [b"\x0a\x10", context.trace_id.to_bytes(16, "big"), b"\x12\x08", context.span_id.to_bytes(8, "big")]
    if context.trace_state:
        parts.append(_text(b"\x1a", ",".join(f"{key}={value}" for key, value in context.trace_state.items())))
    if parent is not None:
        parts += [b"\x22\x08", parent.span_id.to_bytes(8, "big")]
    if span.name:
        parts.append(_text(b"\x2a", span.name))
    parts.append(b"\x30" + _SMALL[span.kind.value + 1])
    if span.start_time:
        parts += [b"\x39", _FIXED64.pack(span.start_time)]
    if span.end_time:
        parts += [b"\x41", _FIXED64.pack(span.end_time)]
    if span.attributes:
        parts.append(_encode_attributes(b"\x4a", span.attributes))
    parts += [_count(b"\x50", span.dropped_attributes)]
    parts += [_field(b"\x5a", _encode_event(event)) for event in span.events]
    parts.append(_count(b"\x60", span.dropped_events))
    parts += [_field(b"\x6a", _encode_link(link)) for link in span.links]
    parts.append(_count(b"\x70", span.dropped_links))
    parts.append(_field(b"\x7a", _encode_status(span)))
    parts.append(_FLAGS[_is_remote(parent)])
    return b"".join(parts)


def _encode_event(event: Event) -> bytes:
    time_part = b"\x09" + _FIXED64.pack(event.timestamp) if event.timestamp else b""
    name = _text(b"\x12", event.name) if event.name else b""
    attributes = _encode_attributes(b"\x1a", event.attributes or {})
    return b"".join([time_part, name, attributes, _count(b"\x20", event.dropped_attributes)])


def _encode_link(link: Link) -> bytes:
    context = link.context
    ids = b"\x0a\x10" + context.trace_id.to_bytes(16, "big") + b"\x12\x08" + context.span_id.to_bytes(8, "big")
    attributes = _encode_attributes(b"\x22", link.attributes or {})
    return b"".join([ids, attributes, _count(b"\x28", link.dropped_attributes), _LINK_FLAGS[_is_remote(context)]])


def _encode_status(span: ReadableSpan) -> bytes:
    status = span.status
    if status is None:
        return b""
    message = _text(b"\x12", status.description) if status.description else b""
    return message + _count(b"\x18", status.status_code.value)


def _encode_scope(scope: InstrumentationScope | None) -> bytes:
    if scope is None:
        return b""
    name = _text(b"\x0a", scope.name) if scope.name else b""
    version = _text(b"\x12", scope.version) if scope.version else b""
    return b"".join([name, version, _encode_attributes(b"\x1a", scope.attributes or {})])


def _encode_attributes(tag: bytes, attributes: Mapping[str, Any]) -> bytes:
    parts = []
    for key, value in attributes.items():
        value_bytes = _encode_value(value)
        key_bytes = _encode_key(key)
        size = len(key_bytes) + 1 + len(value_bytes)
        # AnyValue is short as a rule: one byte of length.
        size += 1 if len(value_bytes) < 128 else len(_varint(len(value_bytes)))
        parts += [tag, _varint(size), key_bytes, b"\x12", _varint(len(value_bytes)), value_bytes]
    return b"".join(parts)


@lru_cache(maxsize=4096)
def _encode_key(key: str) -> bytes:
    return _text(b"\x0a", key)


def _encode_value(value: Any) -> bytes:
    # bool comes before int, which it is a kind of.
    if isinstance(value, str):
        return _text(b"\x0a", value)
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & 0xFFFFFFFFFFFFFFFF)
    if isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    if isinstance(value, bytes):
        return _field(b"\x3a", value)
    if isinstance(value, Mapping):
        return _field(b"\x32", _encode_attributes(b"\x0a", {str(key): item for key, item in value.items()}))
    if isinstance(value, Sequence):
        return _field(b"\x2a", b"".join(_field(b"\x0a", _encode_value(item)) for item in value))
    return b"" if value is None else _text(b"\x0a", str(value))


def _is_remote(context: SpanContext | None) -> bool:
    return context is not None and context.is_remote


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode("utf-8", "replace"))


def _field(tag: bytes, data: bytes) -> bytes:
    return tag + _varint(len(data)) + data


def _count(tag: bytes, number: int) -> bytes:
    return tag + _varint(number) if number else b""


def _varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)
