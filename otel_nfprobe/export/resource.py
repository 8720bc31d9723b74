# SPDX-License-Identifier: Apache-2.0
"""The resource and scope of all spans: the target's process, its host and service, and the tool.

Attributes of a target are read once, at attach, and stored in the recording, so that an export on another machine
still names the measured one. Command lines are left out: they may contain secrets.
"""

from __future__ import annotations

import platform
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.version import __version__ as sdk_version
from opentelemetry.util.types import AttributeValue

from otel_nfprobe import __version__
from otel_nfprobe.base.processors import HOST_ARCH

SCOPE_NAME = "otel-nfprobe"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

# The namespace that the semantic conventions define for service.instance.id derived from other IDs.
_INSTANCE_NAMESPACE = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")
_START_TIME_FIELD = 22
_SDK = {
    "telemetry.sdk.language": "python",
    "telemetry.sdk.name": "opentelemetry",
    "telemetry.sdk.version": sdk_version,
}


def describe_target(pid: int) -> dict[str, AttributeValue]:
    """Returns resource attributes of a running process and this host. Unreadable ones are left out."""
    attributes: dict[str, AttributeValue] = {
        "process.pid": pid,
        "host.name": platform.node(),
        "host.arch": HOST_ARCH.get(platform.machine(), platform.machine()),
        "os.type": "linux",
    }
    process = Path("/proc") / str(pid)
    try:
        executable = str((process / "exe").readlink()).removesuffix(" (deleted)")
        attributes["process.executable.path"] = executable
        attributes["process.executable.name"] = Path(executable).name
    except OSError:
        pass
    host_id = _read_text(Path("/etc/machine-id"))
    if host_id:
        attributes["host.id"] = host_id
    # The same for every session on this process, different after its restart.
    start_time = _read_text(process / "stat").rpartition(")")[2].split()[_START_TIME_FIELD - 3 :][:1]
    identity = f"{host_id or platform.node()}/{pid}/{''.join(start_time)}"
    attributes["service.instance.id"] = str(uuid.uuid5(_INSTANCE_NAMESPACE, identity))
    return attributes


def make_resource_attributes(
    target: Mapping[str, AttributeValue],
    service: str | None = None,
    configured: Mapping[str, AttributeValue] | None = None,
) -> dict[str, AttributeValue]:
    """Returns all attributes of the resource.

    In order of precedence: service (--service), OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, the target's, the SDK's
    detectors. Without any name the service has the name of the target's executable.

    Args:
        target: result of `describe_target`, from now or from the recording.
        service: service.name from the command line.
        configured: attributes of a configuration file; if given, the environment and detectors are not used.
    """
    attributes = dict(target)
    executable = target.get("process.executable.name")
    if executable:
        attributes.setdefault("service.name", executable)
    attributes.update(OTELResourceDetector().detect().attributes if configured is None else configured)
    if service:
        attributes["service.name"] = service
    attributes["telemetry.distro.name"] = SCOPE_NAME
    attributes["telemetry.distro.version"] = __version__
    if configured is None:
        return dict(Resource.create(attributes).attributes)
    attributes.setdefault("service.name", "unknown_service")
    return {**_SDK, **attributes}


def encode_resource(attributes: Mapping[str, AttributeValue]) -> ResourceMessage:
    """Returns the resource as an OTLP message, attributes sorted by name."""
    return ResourceMessage(attributes=[encode_attribute(key, attributes[key]) for key in sorted(attributes)])


def encode_scope() -> InstrumentationScope:
    """Returns the scope as an OTLP message."""
    return InstrumentationScope(name=SCOPE_NAME, version=__version__)


def encode_attribute(key: str, value: AttributeValue) -> KeyValue:
    """Returns one attribute as an OTLP message."""
    return KeyValue(key=key, value=_encode_value(value))


def _encode_value(value: AttributeValue) -> AnyValue:
    # bool first: it is a subclass of int.
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, Sequence):
        return AnyValue(array_value=ArrayValue(values=[_encode_value(item) for item in value]))
    return AnyValue(string_value=str(value))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
