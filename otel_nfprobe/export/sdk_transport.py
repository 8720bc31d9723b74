# SPDX-License-Identifier: Apache-2.0
"""SDK transport: passes spans to any installed OpenTelemetry SpanExporter, as objects of the SDK.

Creates a Python object per span and attribute: for thousands of spans per second, not millions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.delivery import Outcome, OutcomeKind

GROUP = "opentelemetry_traces_exporter"


def open_sdk_transport(name: str) -> SdkTransport:
    """Returns a transport to the exporter installed under this name, which reads its own settings.

    Raises:
        UsageError: there is no such exporter, or it fails.
    """
    found: dict[str, EntryPoint] = {entry.name: entry for entry in entry_points(group=GROUP)}
    names = ", ".join(sorted(found))
    if name not in found:
        raise UsageError(f"No exporter is installed under the name {name!r}; there are otlp, {names}.", "pip list")
    try:
        exporter = found[name].load()()
    except Exception as error:  # third-party exporters may raise anything
        sentence = f"The exporter {name!r} cannot be used: {type(error).__name__}: {error}"
        raise UsageError(
            f"{' '.join(sentence.split()).rstrip('.')}.", "nfprobe attach PID --exporter console"
        ) from None
    return SdkTransport(exporter)


class SdkTransport:
    """Decodes requests and exports them."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def attempt(self, data: bytes, timeout_s: float) -> Outcome:
        """Exports the spans of one request. Failures are not retried: exporters do that themselves."""
        try:
            result = self._exporter.export(list(read_spans(data)))
        except Exception as error:  # third-party exporters may raise anything
            return Outcome(OutcomeKind.REFUSED, f"{type(error).__name__}: {error}")
        if result is SpanExportResult.SUCCESS:
            return Outcome(OutcomeKind.DELIVERED)
        return Outcome(OutcomeKind.REFUSED, f"{type(self._exporter).__name__} has failed")

    def cancel(self) -> None:
        """Stops the exporter's retries, if it supports that."""
        self._exporter.shutdown()

    def close(self) -> None:
        """Shuts the exporter down."""
        self._exporter.shutdown()


def read_spans(data: bytes) -> Iterator[ReadableSpan]:
    """Returns the spans of an ExportTraceServiceRequest."""
    for resource_spans in ExportTraceServiceRequest.FromString(data).resource_spans:
        resource = Resource(_attributes(resource_spans.resource.attributes), resource_spans.schema_url)
        for scope_spans in resource_spans.scope_spans:
            scope = InstrumentationScope(scope_spans.scope.name, scope_spans.scope.version, scope_spans.schema_url)
            for span in scope_spans.spans:
                yield _read_span(span, resource, scope)


def _read_span(span: Any, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    parent = _context(span.trace_id, span.parent_span_id, "", span.flags) if span.parent_span_id else None
    events = [Event(event.name, _attributes(event.attributes), event.time_unix_nano) for event in span.events]
    links = [
        Link(_context(link.trace_id, link.span_id, link.trace_state, link.flags), _attributes(link.attributes))
        for link in span.links
    ]
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id, span.trace_state, span.flags),
        parent=parent,
        resource=resource,
        attributes=_attributes(span.attributes),
        events=events,
        links=links,
        kind=SpanKind(span.kind - 1) if span.kind else SpanKind.INTERNAL,
        status=Status(StatusCode(span.status.code), span.status.message or None),
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
        instrumentation_scope=scope,
    )


def _context(trace_id: bytes, span_id: bytes, trace_state: str, flags: int) -> SpanContext:
    state = TraceState.from_header([trace_state]) if trace_state else None
    trace, span = int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big")
    return SpanContext(trace, span, is_remote=False, trace_flags=TraceFlags(flags & 1), trace_state=state)


def _attributes(entries: Sequence[Any]) -> dict[str, Any]:
    return {entry.key: _value(entry.value) for entry in entries}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
