# SPDX-License-Identifier: Apache-2.0
"""The endpoint: every form that people write, who wins over whom, and a sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_nfprobe.endpoint import Endpoint, find_endpoint
from otel_nfprobe.errors import UsageError

PREFIX = "OTEL_EXPORTER_OTLP_"


def find(argument: str | None, **environment: str) -> Endpoint:
    endpoint = find_endpoint(argument, {PREFIX + name: value for name, value in environment.items()})
    assert endpoint is not None
    return endpoint


@pytest.mark.parametrize(
    ("text", "target", "secure"),
    [
        ("http://127.0.0.1:4317", "127.0.0.1:4317", False),
        ("http://collector.example:55680/", "collector.example:55680", False),
        ("https://collector.example", "collector.example:4317", True),
        ("localhost:4317", "localhost:4317", False),
        ("localhost", "localhost:4317", False),
        ("127.9.9.9:1", "127.9.9.9:1", False),
        ("[::1]:4318", "[::1]:4318", False),
        ("http://[2001:db8::1]", "[2001:db8::1]:4317", False),
        ("collector.example:4317", "collector.example:4317", True),
        ("otel_collector:4317", "otel_collector:4317", True),
        ("https://localhost:4317", "localhost:4317", True),
    ],
)
def test_forms(text: str, target: str, secure: bool) -> None:
    endpoint = find(text)
    assert (endpoint.target, endpoint.secure) == (target, secure)
    assert find(None, ENDPOINT=text) == endpoint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("htp://localhost:4317", "scheme"),
        ("grpc://localhost:4317", "scheme"),
        ("http:/localhost:4317", "path|port|host"),
        ("http://", "host"),
        ("", "host"),
        (":4317", "host"),
        ("http://local host:4317", "host"),
        ("localhost:port", "port"),
        ("localhost:65536", "port"),
        ("localhost:0", "port"),
        ("http://[::1:4317", "host or port"),
        ("http://localhost:4318/v1/traces", "path"),
        ("http://user:secret@localhost:4317", "host"),
    ],
)
def test_mistakes(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        find(text)
    assert caught.value.exit_status == 2
    assert "--endpoint http" in caught.value.next_command


def test_precedence() -> None:
    assert find("a:1", ENDPOINT="http://b:2", TRACES_ENDPOINT="http://c:3").target == "a:1"
    assert find(None, ENDPOINT="http://b:2", TRACES_ENDPOINT="http://c:3").target == "c:3"
    assert find(None, ENDPOINT="http://b:2").target == "b:2"
    assert find(None, ENDPOINT="http://b:2", TRACES_ENDPOINT=" ").target == "b:2"


def test_no_endpoint_and_disabled() -> None:
    assert find_endpoint(None, {}) is None
    assert find_endpoint("http://localhost:4317", {"OTEL_SDK_DISABLED": "true"}) is None
    assert find_endpoint("http://localhost:4317", {"OTEL_SDK_DISABLED": "false"}) is not None


def test_insecure_applies_without_a_scheme_only() -> None:
    assert not find("far.example:4317", INSECURE="true").secure
    assert not find("far.example:4317", TRACES_INSECURE="True").secure
    assert find("far.example:4317", INSECURE="false").secure
    assert find("https://far.example:4317", INSECURE="true").secure


def test_headers_timeout_compression() -> None:
    endpoint = find("localhost:1", HEADERS="Api-Key=a%20b,x=1", TIMEOUT="2500", COMPRESSION="gzip")
    assert endpoint.headers == (("api-key", "a b"), ("x", "1"))
    assert endpoint.timeout_s == 2.5
    assert endpoint.gzip
    plain = find("localhost:1")
    assert (plain.headers, plain.timeout_s, plain.gzip) == ((), 10.0, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TIMEOUT", "soon"),
        ("TIMEOUT", "-1"),
        ("TIMEOUT", "nan"),
        ("COMPRESSION", "zstd"),
        ("CERTIFICATE", "/none.pem"),
    ],
)
def test_bad_variables_are_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"{PREFIX}{name}"):
        find("https://far.example", **{name: value})
    with pytest.raises(UsageError, match=f"{PREFIX}TRACES_{name}"):
        find("https://far.example", **{f"TRACES_{name}": value})


def test_other_protocols_are_refused_unless_the_endpoint_is_given() -> None:
    with pytest.raises(UsageError, match="gRPC only"):
        find(None, ENDPOINT="http://localhost:4318", PROTOCOL="http/protobuf")
    assert find("localhost:4317", PROTOCOL="http/protobuf")


def test_certificates_are_read_for_tls_only(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_bytes(b"pem")
    endpoint = find("https://far.example", CERTIFICATE=str(path), CLIENT_KEY=str(path), CLIENT_CERTIFICATE=str(path))
    assert endpoint.root_certificates == endpoint.client_key == endpoint.client_certificate == b"pem"
    assert find("http://far.example", CERTIFICATE="/none.pem").root_certificates is None
