# SPDX-License-Identifier: Apache-2.0
"""Destination: the receiver of spans, from the command line and OTEL_TRACES_EXPORTER.

`otlp` is nfprobe's own exporter, to an endpoint; any other name is an installed exporter of the OpenTelemetry SDK.
Opens no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.configuration import find_configuration, find_environment
from otel_nfprobe.export.endpoint import DEFAULT_PORTS, GRPC, HTTP, Endpoint, find_endpoint

if TYPE_CHECKING:
    from otel_nfprobe.export.delivery import Transport

OTLP = "otlp"
NONE = "none"


@dataclass(frozen=True)
class NamedExporter:
    """An exporter of the SDK, by name."""

    name: str


Destination = Endpoint | NamedExporter


def find_destination(exporter: str | None, endpoint: str | None, environment: Mapping[str, str]) -> Destination | None:
    """Returns the destination of spans; None: no export.

    Args:
        exporter: of --exporter, or None.
        endpoint: of --endpoint, or None.
        environment: os.environ.

    Raises:
        UsageError: options, variables or a configuration file that cannot be used.
    """
    environment = find_environment(environment)
    if exporter is not None and exporter not in (OTLP, NONE) and endpoint is not None:
        sentence = f"--endpoint is for --exporter {OTLP}; {exporter!r} reads its settings from the environment."
        raise UsageError(sentence, "nfprobe attach --help")
    wanted = exporter
    if wanted is None and endpoint is None:
        wanted = environment.get(OTEL_TRACES_EXPORTER, "").strip() or None
    if wanted is not None and "," in wanted:
        sentence = f"{wanted!r} names several exporters, and nfprobe sends to one."
        raise UsageError(sentence, f"export {OTEL_TRACES_EXPORTER}={OTLP}")
    if wanted == NONE or environment.get(OTEL_SDK_DISABLED, "").strip().lower() == "true":
        return None
    if wanted not in (None, OTLP):
        return NamedExporter(wanted)
    found = find_endpoint(endpoint, environment)
    if found is None and wanted == OTLP:
        # Requested by name, it uses the specification's default endpoint.
        return find_default_endpoint(environment)
    return found


def find_complaint(environment: Mapping[str, str]) -> str:
    """Returns a sentence about unused parts of a configuration file; empty if there are none.

    Raises:
        UsageError: it cannot be used.
    """
    configuration = find_configuration(environment)
    return configuration.complaint if configuration else ""


def find_default_endpoint(environment: Mapping[str, str]) -> Endpoint | None:
    """Returns the endpoint of the environment, or the specification's default; None if the SDK is disabled."""
    found = find_endpoint(None, environment)
    if found is not None:
        return found
    kinds = [environment.get(f"OTEL_EXPORTER_OTLP_{part}PROTOCOL", "").strip() for part in ("TRACES_", "")]
    protocol = (kinds[0] or kinds[1]).lower()
    port = DEFAULT_PORTS[HTTP if protocol == HTTP else GRPC]
    return find_endpoint(f"http://localhost:{port}", environment)


def open_destination(destination: Destination) -> Endpoint | Transport:
    """Returns the destination in the form that Exporter expects.

    Raises:
        UsageError: no such exporter is installed, or it does not work.
    """
    if isinstance(destination, NamedExporter):
        from otel_nfprobe.export.sdk_transport import open_sdk_transport

        return open_sdk_transport(destination.name)
    return destination
