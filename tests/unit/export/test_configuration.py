# SPDX-License-Identifier: Apache-2.0
"""OTEL_CONFIG_FILE: the specification's own examples of references, and a file that says everything nfprobe reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.main import main
from otel_nfprobe.export.configfile import read_file, replace_references
from otel_nfprobe.export.configuration import find_configuration
from otel_nfprobe.export.destination import NamedExporter, find_complaint, find_destination
from otel_nfprobe.export.endpoint import Endpoint
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.metrics.metrics_settings import find_settings
from tests.support.otlp_receiver import Receiver
from tests.support.synthetic_recording import write_recording
from tests.support.tls_files import make_certificates

ENVIRONMENT = {
    "STRING_VALUE": "value",
    "BOOL_VALUE": "true",
    "INT_VALUE": "1",
    "FLOAT_VALUE": "1.1",
    "HEX_VALUE": "0xdeadbeef",
    "INVALID_MAP_VALUE": "value\nkey:value",
    "REPLACE_ME": "${STRING_VALUE}",
    "VALUE_WITH_ESCAPE": "value$$",
    "EMPTY": "",
}


# The table of the specification's data model, in its order, and what YAML 1.2 says otherwise than 1.1.
@pytest.mark.parametrize(
    ("written", "means"),
    [
        ("${STRING_VALUE}", "value"),
        ("${BOOL_VALUE}", True),
        ("${INT_VALUE}", 1),
        ("${FLOAT_VALUE}", 1.1),
        ("${HEX_VALUE}", 0xDEADBEEF),
        ('"${STRING_VALUE}"', "value"),
        ('"${BOOL_VALUE}"', "true"),
        ("'${FLOAT_VALUE}'", "1.1"),
        ('"${HEX_VALUE}"', "0xdeadbeef"),
        ("${env:STRING_VALUE}", "value"),
        ("${INVALID_MAP_VALUE}", "value\nkey:value"),
        ("foo ${STRING_VALUE} ${FLOAT_VALUE}", "foo value 1.1"),
        ("${UNDEFINED_KEY}", None),
        ("${UNDEFINED_KEY:-fallback}", "fallback"),
        ("${EMPTY:-7}", 7),
        ("${UNDEFINED_KEY:-}", None),
        ("${REPLACE_ME}", "${STRING_VALUE}"),
        ("${UNDEFINED_KEY:-${STRING_VALUE}}", "${STRING_VALUE}"),
        ("$${STRING_VALUE}", "${STRING_VALUE}"),
        ("$$${STRING_VALUE}", "$value"),
        ("$$$${STRING_VALUE}", "$${STRING_VALUE}"),
        ("$${STRING_VALUE:-fallback}", "${STRING_VALUE:-fallback}"),
        ("$${STRING_VALUE:-${STRING_VALUE}}", "${STRING_VALUE:-value}"),
        ("${UNDEFINED_KEY:-$${UNDEFINED_KEY}}", "${UNDEFINED_KEY:-${UNDEFINED_KEY}}"),
        ("${VALUE_WITH_ESCAPE}", "value$$"),
        ("a $$ b", "a $ b"),
        ("a $ b", "a $ b"),
        ("yes", "yes"),
        ("010", 10),
        ("1e3", 1000.0),
        ("~", None),
        ("2020-01-01", "2020-01-01"),
    ],
)
def test_references(tmp_path: Path, written: str, means: Any) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"${{STRING_VALUE}}: &one {written}  # ${{1COMMENT}}\nlist: [{{again: *one}}]\n")
    found = read_file(str(path), ENVIRONMENT)
    assert found == {"${STRING_VALUE}": means, "list": [{"again": means}]}
    assert type(found["${STRING_VALUE}"]) is type(means)


@pytest.mark.parametrize("written", ["${1KEY}", "${STRING_VALUE:?error}", "${}", "x ${A B}"])
def test_malformed_references(written: str) -> None:
    with pytest.raises(ValueError):
        replace_references(written, ENVIRONMENT)


FILE = """
file_format: "1.0"
disabled: ${OFF:-false}
propagator: {composite: [{tracecontext: null}]}
resource:
  attributes_list: "from.list=a%20b,service.name=listed"
  attributes:
    - {name: service.name, value: "${NAME:-from-file}"}
    - {name: rack, value: 7}
    - {name: port, value: "12", type: string}
    - {name: share, value: 1, type: double}
    - {name: lanes, value: [1, 2], type: int_array}
    - {name: unset, value: "${NOTHING}x"}
    - {name: absent, value: "${NOTHING}"}
    - name: null.value
      value: ${NOTHING}
  detection/development: {detectors: [{host: null}]}
tracer_provider:
  sampler: {always_on: null}
  processors:
    - simple: {exporter: {otlp_file/development: {}}}
    - batch:
        schedule_delay: 100
        exporter:
          otlp_grpc:
            endpoint: http://${HOST}:4444
            headers: [{name: api-key, value: "a,b=c"}, {name: other, value: x}]
            headers_list: "listed=1"
            compression: gzip
            timeout: 0
            retries: 4
    - batch: {exporter: {console: {}}}
meter_provider:
  readers:
    - pull: {exporter: {prometheus/development: {}}}
    - periodic:
        interval: 5000
        exporter:
          otlp_http:
            temporality_preference: low_memory
            default_histogram_aggregation: explicit_bucket_histogram
logger_provider: {}
"""
IGNORED = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://wrong:1",
    "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "wrong",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_SDK_DISABLED": "true",
    "OTEL_SERVICE_NAME": "wrong",
}


def environment_of(tmp_path: Path, text: str, **variables: str) -> dict[str, str]:
    path = tmp_path / "otel.yaml"
    path.write_text(text)
    return {**IGNORED, "OTEL_CONFIG_FILE": str(path), "HOST": "collector", **variables}


def test_all_that_is_read(tmp_path: Path) -> None:
    environment = environment_of(tmp_path, FILE)
    found = find_destination(None, None, environment)
    assert isinstance(found, Endpoint)
    assert (found.target, found.secure, found.gzip, found.path) == ("collector:4444", False, True, "")
    assert dict(found.headers) == {"listed": "1", "api-key": "a,b=c", "other": "x"}
    assert found.timeout_s == 86_400
    metrics = find_settings(None, environment)
    assert metrics is not None
    assert (metrics.endpoint.url, metrics.interval_s, metrics.explicit) == ("http://localhost:4318/v1/metrics", 5, True)
    assert (metrics.temporality.histograms_delta, metrics.temporality.sums_delta) == (True, False)
    configuration = find_configuration(environment)
    assert configuration is not None
    expected = {
        "from.list": "a b",
        "service.name": "from-file",
        "rack": 7,
        "port": "12",
        "share": 1.0,
        "lanes": [1, 2],
        "unset": "x",
        "absent": "",
    }
    assert configuration.resource == expected
    resource = make_resource_attributes({"process.pid": 3}, None, configuration.resource)
    assert resource.items() >= {**expected, "process.pid": 3, "telemetry.sdk.name": "opentelemetry"}.items()
    assert make_resource_attributes({}, "option", configuration.resource)["service.name"] == "option"
    said = find_complaint(environment)
    assert said.startswith(f"{environment['OTEL_CONFIG_FILE']}: not used by nfprobe: propagator, ")
    assert "resource.detection/development" in said
    for part in ("tracer_provider.sampler", "processors[0].simple.exporter.otlp_file/development", "otlp_grpc.retries"):
        assert part in said
    for part in ("processors[1].batch.schedule_delay", "tracer_provider.processors[2].batch", "readers[0].pull"):
        assert part in said
    assert "logger_provider" not in said  # it is empty


def test_options_win_and_what_is_not_there_is_not_sent(tmp_path: Path) -> None:
    environment = environment_of(tmp_path, FILE)
    found = find_destination(None, "http://option:1", environment)
    assert isinstance(found, Endpoint)
    assert (found.target, found.gzip) == ("option:1", True)
    empty = environment_of(tmp_path, "file_format: '1.0'\n")
    assert find_destination(None, None, empty) is None
    assert find_settings("http://option:1", empty) is None
    assert find_complaint(empty) == ""
    assert find_destination(None, None, environment_of(tmp_path, FILE, OFF="true")) is None
    console = "file_format: '1.0'\ntracer_provider: {processors: [{simple: {exporter: {console: null}}}]}\n"
    assert find_destination(None, None, environment_of(tmp_path, console)) == NamedExporter("console")
    assert find_complaint({}) == ""
    assert make_resource_attributes({}, None, {})["service.name"] == "unknown_service"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file_format: '0.3'", "file_format is '0.3'"),
        ("a: [", "is not YAML at line 2"),
        ("- 1", "does not contain a mapping"),
        ("", "does not contain a mapping"),
        ("file_format: '1.0'\nx: ${1}", r"malformed reference in line 2: \$\{1\}"),
        ("file_format: '1.0'\ndisabled: 1", "disabled is neither"),
        ("file_format: '1.0'\nresource: []", "resource is not a mapping"),
        ("file_format: '1.0'\nresource: {attributes: [{value: 1}]}", r"resource.attributes\[0\] has no name"),
        ("file_format: '1.0'\nresource: {attributes: [{name: a, value: x, type: int}]}", "not of type int"),
        ("file_format: '1.0'\nresource: {attributes: [{name: a, value: 1, type: set}]}", "not of type set"),
        ("file_format: '1.0'\nresource: {attributes: [{name: a, value: {}}]}", "cannot be an attribute"),
        ("file_format: '1.0'\ntracer_provider: {processors: {}}", "tracer_provider.processors is not a list"),
        (FILE.replace("timeout: 0", "timeout: -1"), "otlp_grpc.timeout is not a whole number"),
        (FILE.replace("gzip", "zstd"), "COMPRESSION is 'zstd'"),
        (FILE.replace("http://${HOST}:4444", "12"), "otlp_grpc.endpoint is not a string"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_destination(None, None, environment_of(tmp_path, text + "\n"))


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UsageError, match="which cannot be read"):
            find_destination(None, None, {"OTEL_CONFIG_FILE": str(path)})


@pytest.mark.usefixtures("clean_environment")
def test_an_export(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = write_recording(tmp_path / "session.nfp")
    for name, value in environment_of(tmp_path, FILE, HOST="127.0.0.1").items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "otel.yaml"
    path.write_text(FILE.replace("4444", str(receiver.port)))
    assert main(["export", str(recording)]) == 0
    resource = ExportTraceServiceRequest.FromString(receiver.requests[0]).resource_spans[0].resource
    values = {entry.key: entry.value for entry in resource.attributes}
    assert (values["service.name"].string_value, values["rack"].int_value) == ("from-file", 7)
    assert receiver.metadata[0]["api-key"] == "a,b=c"
    assert capsys.readouterr().err.count("not used by nfprobe") == 1


def test_the_example_of_the_documents(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "export.md").read_text()
    (example,) = re.findall(r"```yaml\n(file_format.*?)```", page, re.S)
    certificate = str(make_certificates(tmp_path).ca)
    environment = environment_of(tmp_path, example.replace("/etc/ssl/collector.pem", certificate), API_KEY="secret")
    environment["COLLECTOR"] = "https://collector:4317"
    found, metrics = find_destination(None, None, environment), find_settings(None, environment)
    assert isinstance(found, Endpoint)
    assert (found.target, found.secure, dict(found.headers)) == ("collector:4317", True, {"api-key": "secret"})
    assert found.root_certificates is not None
    assert metrics is not None
    assert metrics.interval_s == 10
    assert find_complaint(environment) == ""
