# SPDX-License-Identifier: Apache-2.0
"""A receiver of spans that takes metrics, too."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.otlp_receiver import Receiver


class MetricsReceiver(Receiver):
    """As Receiver; what comes as metrics is in `exports`."""

    def __init__(self) -> None:
        super().__init__()
        self.exports: list[ExportMetricsServiceRequest] = []
        handler = grpc.unary_unary_rpc_method_handler(self._take_metrics)
        service = "opentelemetry.proto.collector.metrics.v1.MetricsService"
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"Export": handler})])

    def _take_metrics(self, request: bytes, _: grpc.ServicerContext) -> bytes:
        self.exports.append(ExportMetricsServiceRequest.FromString(request))
        return b""

    def metrics(self, export: int = -1) -> dict[str, Metric]:
        """The metrics of one export by name."""
        (resource,) = self.exports[export].resource_metrics
        (scope,) = resource.scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def spans(self) -> Iterator[Span]:
        """All spans that came."""
        return spans_of(self.requests)


def spans_of(requests: list[bytes]) -> Iterator[Span]:
    for data in requests:
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            for scope in resource.scope_spans:
                yield from scope.spans
