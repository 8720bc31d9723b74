# SPDX-License-Identifier: Apache-2.0
"""Transport: opens the way to an endpoint by its protocol. gRPC and HTTP are loaded when they are used."""

from __future__ import annotations

from otel_nfprobe.export.delivery import Transport
from otel_nfprobe.export.endpoint import Endpoint


def open_transport(endpoint: Endpoint) -> Transport:
    """A transport to the endpoint. Opens no connection yet."""
    if endpoint.path:
        from otel_nfprobe.export.otlp_http import HttpTransport

        return HttpTransport(endpoint)
    from otel_nfprobe.export.otlp_grpc import GrpcTransport

    return GrpcTransport(endpoint)
