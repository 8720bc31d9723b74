# SPDX-License-Identifier: Apache-2.0
"""The resource and scope of all spans: the target's process, its host and service, and who measured it.

Attributes of a target are read once, at attach, and kept in the recording, so that an export from another
machine still names the machine that was measured. Command lines are left out: they hold secrets.
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

# The namespace that the semantic conventions give for service.instance.id made from other ids.
_INSTANCE_NAMESPACE = uuid.UUID("4d63009a-8d0f-11ee-aad7-4c796ed8e320")
_START_TIME_FIELD = 22
_SDK = {
    "telemetry.sdk.language": "python",
    "telemetry.sdk.name": "opentelemetry",
    "telemetry.sdk.version": sdk_version,
}


def describe_target(pid: int) -> dict[str, AttributeValue]:
    """Resource attributes of a running process and this host. What cannot be read is left out."""
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
    # The same for every session on this process, another one after its restart.
    start_time = _read_text(process / "stat").rpartition(")")[2].split()[_START_TIME_FIELD - 3 :][:1]
    identity = f"{host_id or platform.node()}/{pid}/{''.join(start_time)}"
    attributes["service.instance.id"] = str(uuid.uuid5(_INSTANCE_NAMESPACE, identity))
    return attributes


def make_resource_attributes(
    target: Mapping[str, AttributeValue],
    service: str | None = None,
    configured: Mapping[str, AttributeValue] | None = None,
) -> dict[str, AttributeValue]:
    """All attributes of the resource.

    The strongest wins: service (--service), OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, the target's, the
    SDK's detectors. Without any name the service is called as the target's executable.

    Args:
        target: what `describe_target` returned, now or in the recording.
        service: service.name from the command line.
        configured: what a configuration file says; then the environment and detectors are not asked.
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
    """The resource as an OTLP message, attributes in the order of their names."""
    return ResourceMessage(attributes=[encode_attribute(key, attributes[key]) for key in sorted(attributes)])


def encode_scope() -> InstrumentationScope:
    """The scope as an OTLP message."""
    return InstrumentationScope(name=SCOPE_NAME, version=__version__)


def encode_attribute(key: str, value: AttributeValue) -> KeyValue:
    """One attribute as an OTLP message."""
    return KeyValue(key=key, value=_encode_value(value))


def _encode_value(value: AttributeValue) -> AnyValue:
    # bool comes before int, which it is a kind of.
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
