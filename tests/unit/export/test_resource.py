# SPDX-License-Identifier: Apache-2.0
"""The resource describes the target and not the monitor; names from outside win in the documented order."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ResourceMessage

from otel_nfprobe.export.resource import describe_target, encode_resource, make_resource_attributes


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def test_the_target_is_described() -> None:
    target = subprocess.Popen([sys.executable, "-c", "input()", "--password=secret"], stdin=subprocess.PIPE)
    try:
        attributes = describe_target(target.pid)
        assert attributes["process.pid"] == target.pid
        assert attributes["process.executable.path"] == os.path.realpath(f"/proc/{target.pid}/exe")
        assert attributes["service.instance.id"] == describe_target(target.pid)["service.instance.id"]
        assert attributes["service.instance.id"] != describe_target(os.getpid())["service.instance.id"]
        assert "secret" not in str(make_resource_attributes(attributes))
        assert attributes["process.pid"] == make_resource_attributes(attributes)["process.pid"]
    finally:
        target.communicate(b"\n")


def test_a_dead_target_still_has_a_host() -> None:
    attributes = describe_target(2**22 + 1)
    assert attributes["host.name"]
    assert "process.executable.path" not in attributes


def test_who_names_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    target = {"process.executable.name": "dpdk-testpmd", "host.name": "here"}
    assert make_resource_attributes(target)["service.name"] == "dpdk-testpmd"
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=from-attributes,team=dataplane,host.name=there")
    attributes = make_resource_attributes(target)
    assert attributes["service.name"] == "from-attributes"
    assert (attributes["team"], attributes["host.name"]) == ("dataplane", "there")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "from-name")
    assert make_resource_attributes(target)["service.name"] == "from-name"
    assert make_resource_attributes(target, "from-option")["service.name"] == "from-option"


def test_who_measured_is_named() -> None:
    attributes = make_resource_attributes({})
    assert attributes["telemetry.distro.name"] == "otel-nfprobe"
    assert attributes["telemetry.sdk.name"] == "opentelemetry"


def test_attribute_types_survive() -> None:
    message = encode_resource({"a": True, "b": 3, "c": 1.5, "d": "text", "e": ["x", "y"]})
    values = {entry.key: entry.value for entry in ResourceMessage.FromString(message.SerializeToString()).attributes}
    assert values["a"].bool_value is True
    assert values["b"].int_value == 3
    assert values["c"].double_value == 1.5
    assert values["d"].string_value == "text"
    assert [item.string_value for item in values["e"].array_value.values] == ["x", "y"]
