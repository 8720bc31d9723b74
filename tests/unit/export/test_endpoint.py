# SPDX-License-Identifier: Apache-2.0
"""The endpoint: every form that people write, who wins over whom, and a sentence for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.endpoint import METRICS, TRACES, Endpoint, find_endpoint
from tests.support.tls_files import Certificates, make_certificates

PREFIX = "OTEL_EXPORTER_OTLP_"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


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


def test_protocols() -> None:
    assert find("localhost:4317", PROTOCOL="grpc").path == ""
    assert find("localhost:4318", PROTOCOL="http/protobuf").path == "/v1/traces"
    assert find("localhost:4318", PROTOCOL="grpc", TRACES_PROTOCOL="HTTP/protobuf").path == "/v1/traces"
    with pytest.raises(UsageError, match="OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is 'http/json'"):
        find("localhost:4318", TRACES_PROTOCOL="http/json")


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({"ENDPOINT": "http://a:4318"}, "http://a:4318/v1/traces", "http://a:4318/v1/metrics"),
        ({"ENDPOINT": "https://a/base/"}, "https://a:443/base/v1/traces", "https://a:443/base/v1/metrics"),
        ({"ENDPOINT": "http://a"}, "http://a:80/v1/traces", "http://a:80/v1/metrics"),
        ({"ENDPOINT": "localhost"}, "http://localhost:4318/v1/traces", "http://localhost:4318/v1/metrics"),
        ({"ENDPOINT": "http://a:1", "TRACES_ENDPOINT": "http://b:2"}, "http://b:2/", "http://a:1/v1/metrics"),
        (
            {"ENDPOINT": "http://a:1/x", "METRICS_ENDPOINT": "http://b:2/my/metrics"},
            "http://a:1/x/v1/traces",
            "http://b:2/my/metrics",
        ),
    ],
)
def test_paths_of_http(variables: dict[str, str], traces: str, metrics: str) -> None:
    environment = {PREFIX + name: value for name, value in variables.items()} | {PREFIX + "PROTOCOL": "http/protobuf"}
    for signal, url in ((TRACES, traces), (METRICS, metrics)):
        endpoint = find_endpoint(None, environment, signal)
        assert endpoint is not None
        assert endpoint.url == url


def test_an_argument_is_for_every_signal() -> None:
    environment = {PREFIX + "PROTOCOL": "http/protobuf", PREFIX + "TRACES_ENDPOINT": "http://b:2"}
    for text in ("http://a:1", "http://a:1/", "http://a:1/v1/traces", "http://a:1/v1/metrics"):
        for signal in (TRACES, METRICS):
            endpoint = find_endpoint(text, environment, signal)
            assert endpoint is not None
            assert endpoint.url == f"http://a:1/v1/{signal}"


def test_each_signal_has_its_own_variables() -> None:
    environment = {PREFIX + "TRACES_TIMEOUT": "1000", PREFIX + "METRICS_TIMEOUT": "2000", PREFIX + "TIMEOUT": "3000"}
    found = [find_endpoint("localhost:1", environment, signal) for signal in (TRACES, METRICS)]
    assert [endpoint and endpoint.timeout_s for endpoint in found] == [1.0, 2.0]


def test_certificates_are_read_for_tls_only(certificates: Certificates) -> None:
    files = {"CERTIFICATE": certificates.ca, "CLIENT_KEY": certificates.key, "CLIENT_CERTIFICATE": certificates.chain}
    endpoint = find("https://far.example", **{name: str(path) for name, path in files.items()})
    assert endpoint.root_certificates == certificates.ca.read_bytes()
    assert endpoint.client_key == certificates.key.read_bytes()
    assert endpoint.client_certificate == certificates.chain.read_bytes()
    assert find("http://far.example", CERTIFICATE="/none.pem").root_certificates is None


def test_files_that_are_no_certificates(certificates: Certificates, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    with pytest.raises(UsageError, match=r"CERTIFICATE names .* which contains no PEM certificate"):
        find("https://far.example", CERTIFICATE=str(rubbish))
    with pytest.raises(UsageError, match="CLIENT_KEY is set without OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"):
        find("https://far.example", CLIENT_KEY=str(certificates.key))
    with pytest.raises(UsageError, match="no PEM certificate and its key"):
        find("https://far.example", CLIENT_KEY=str(certificates.ca_key), CLIENT_CERTIFICATE=str(certificates.chain))
