# SPDX-License-Identifier: Apache-2.0
"""Asks a running Jaeger what it has: search by attribute, whole traces with exact ns. For tests.

Newer Jaegers search attributes by /api/v3/traces; 2.13 cannot and answers /api/traces instead, which newer
ones no longer have. Times are only ever read from /api/v3, in ns: the older API cuts them to microseconds.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_DAY_S = 86_400


@dataclass(frozen=True)
class JaegerSpan:
    """One span as Jaeger returned it; ids are lower-case hex, attribute values are of their own types."""

    trace_id: str
    span_id: str
    parent_span_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(default_factory=dict)
    resource: dict[str, Any] = field(default_factory=dict)
    scope_name: str = ""


class JaegerClient:
    """Reads from the query port of a Jaeger on this machine."""

    def __init__(self, query_port: int) -> None:
        self._base = f"http://127.0.0.1:{query_port}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def find_services(self) -> list[str]:
        """Names of all services that have spans."""
        return sorted(self._get("/api/v3/services").get("services") or [])

    def find_trace_ids(
        self, service: str, attributes: dict[str, str] | None = None, operation: str = "", limit: int = 20
    ) -> list[str]:
        """Ids of the traces that have a span with all these attributes (as text) and this name."""
        found = self._search_v3(service, attributes, operation, limit) if attributes else None
        return sorted(self._search_legacy(service, attributes, operation, limit) if found is None else found)

    def read_trace(self, trace_id: str) -> list[JaegerSpan]:
        """All spans of one trace, by start time, the longer first."""
        result = self._get(f"/api/v3/traces/{trace_id}")["result"]
        spans = _parse_spans(result["resourceSpans"])
        return sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))

    def read_page_spans(self, trace_id: str) -> list[dict[str, Any]]:
        """The spans as the trace page gets them: `operationName`, `startTime` and `duration` in whole microseconds."""
        spans: list[dict[str, Any]] = self._get(f"/api/traces/{trace_id}")["data"][0]["spans"]
        return spans

    def count_traces(self, service: str, limit: int = 20_000) -> int:
        """Number of the service's traces, at most `limit`."""
        return len(self._search_legacy(service, None, "", limit))

    def read_span_ids(self, service: str, limit: int = 20_000) -> dict[str, list[str]]:
        """Sorted ids of the different spans of each of the service's traces, by trace id."""
        traces = self._read_legacy(service, None, "", limit)
        return {trace["traceID"]: sorted({span["spanID"] for span in trace["spans"]}) for trace in traces}

    def await_traces(self, service: str, count: int, timeout_s: float = 60.0) -> int:
        """Waits until the service has at least `count` traces and no more arrive; returns their number."""
        last = -1

        def is_settled() -> bool:
            nonlocal last
            previous, last = last, self.count_traces(service, limit=count + 1000)
            return last >= count and last == previous

        await_true(is_settled, timeout_s, interval_s=0.5)
        return last

    # None: this Jaeger cannot search attributes this way.
    def _search_v3(
        self, service: str, attributes: dict[str, str] | None, operation: str, limit: int
    ) -> set[str] | None:
        now = time.time()
        query = {
            "query.serviceName": service,
            "query.startTimeMin": _format_time(now - _DAY_S),
            "query.startTimeMax": _format_time(now + _DAY_S),
            "query.attributes": json.dumps(attributes or {}),
            "query.searchDepth": str(limit),
        }
        if operation:
            query["query.operationName"] = operation
        try:
            result = self._get("/api/v3/traces", query)["result"]
        except urllib.error.HTTPError as error:
            # 404 is how it says that nothing was found; 2.13 refuses the names of the parameters.
            return set() if error.code == 404 and b"No traces found" in error.read() else None
        return {span.trace_id for span in _parse_spans(result["resourceSpans"])}

    def _search_legacy(self, service: str, attributes: dict[str, str] | None, operation: str, limit: int) -> set[str]:
        return {trace["traceID"] for trace in self._read_legacy(service, attributes, operation, limit)}

    def _read_legacy(
        self, service: str, attributes: dict[str, str] | None, operation: str, limit: int
    ) -> list[dict[str, Any]]:
        now_us = time.time_ns() // 1000
        query = {
            "service": service,
            "start": str(now_us - _DAY_S * 1_000_000),
            "end": str(now_us + _DAY_S * 1_000_000),
            "limit": str(limit),
        }
        if attributes:
            query["tags"] = json.dumps(attributes)
        if operation:
            query["operation"] = operation
        traces: list[dict[str, Any]] = self._get("/api/traces", query)["data"]
        return traces

    def _get(self, path: str, query: dict[str, str] | None = None) -> Any:
        url = f"{self._base}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        with self._opener.open(url, timeout=60) as response:
            return json.load(response)


def await_true(condition: Callable[[], bool], timeout_s: float, interval_s: float = 0.1) -> None:
    """Waits for the condition; returns in any case, the caller asserts."""
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(interval_s)


def _format_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _parse_spans(resource_spans: list[dict[str, Any]]) -> list[JaegerSpan]:
    return [
        JaegerSpan(
            trace_id=span["traceId"],
            span_id=span["spanId"],
            parent_span_id=span.get("parentSpanId", ""),
            name=span["name"],
            start_ns=int(span["startTimeUnixNano"]),
            end_ns=int(span["endTimeUnixNano"]),
            attributes=_parse_attributes(span.get("attributes")),
            resource=_parse_attributes(part.get("resource", {}).get("attributes")),
            scope_name=scope_spans.get("scope", {}).get("name", ""),
        )
        for part in resource_spans
        for scope_spans in part["scopeSpans"]
        for span in scope_spans["spans"]
    ]


def _parse_attributes(entries: list[dict[str, Any]] | None) -> dict[str, Any]:
    return {entry["key"]: _parse_value(entry["value"]) for entry in entries or []}


# Protobuf's JSON writes 64-bit integers as text.
def _parse_value(value: dict[str, Any]) -> Any:
    ((kind, content),) = value.items()
    return int(content) if kind == "intValue" else content
