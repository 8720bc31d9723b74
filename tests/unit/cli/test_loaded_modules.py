# SPDX-License-Identifier: Apache-2.0
"""What a verb loads: half of the processor time of a short one is the loading of code, and of an attach, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.otlp_receiver import HttpReceiver
from tests.support.synthetic_recording import write_recording

# The libraries that take long to load.
LARGE = {
    "asyncio",
    "capstone",
    "cffi.api",
    "duckdb",
    "elftools",
    "grpc",
    "iced_x86",
    "importlib.metadata",
    "keystone",
    "lief",
    "numpy.ma",
    "opentelemetry.exporter",
    "opentelemetry.sdk.metrics",
    "opentelemetry.sdk.trace",
    "pyarrow",
    "requests",
    "yaml",
}
SELDOM_NEEDED = {
    "otel_nfprobe.report.report",  # of recordings
    "otel_nfprobe.monitor.trial",  # where neither the adapter nor a person names inner functions
    "otel_nfprobe.profiling.profiler",  # --profile
    "otel_nfprobe.pipeline.flowfilter",  # --flow
    "otel_nfprobe.export.otlp",  # --endpoint
    "otel_nfprobe.export.trace_builder",
    "opentelemetry.proto.trace.v1.trace_pb2",
    "ssl",
    "otel_nfprobe.elf.names.inlined",  # where a glob matches nothing
    "otel_nfprobe.metrics.metrics",
}
# Packages of which a verb that reads recordings needs no module: files of programs, targets, probes in them, sessions.
OF_SESSIONS = ("arch", "elf", "kernel", "metrics", "monitor", "probes", "target")

PARSE = "from otel_nfprobe.cli.main import parse; parse(sys.argv[1:])"
RUN = "from otel_nfprobe.cli.main import main; main(sys.argv[1:])"


def loaded_by(*words: object, code: str = RUN) -> set[str]:
    """The modules that a process has after that."""
    program = f"import json, sys\n{code}\nprint(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program, *map(str, words)], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def of_package(modules: set[str], *packages: str) -> set[str]:
    return {name for name in modules if name.startswith(tuple(f"otel_nfprobe.{package}." for package in packages))}


def test_an_attach_loads_no_part_that_few_sessions_need() -> None:
    modules = loaded_by("attach", "1", code=PARSE)
    assert {"otel_nfprobe.cli.attach", "otel_nfprobe.monitor.monitor"} <= modules
    assert not modules & (LARGE | SELDOM_NEEDED)


def test_a_status_loads_nothing_that_measures() -> None:
    modules = loaded_by("status")
    assert {"otel_nfprobe.cli.status", "otel_nfprobe.shm.session"} <= modules
    assert not modules & LARGE
    assert not of_package(modules, "arch", "causes", "counters", "export", "monitor", "pipeline", "probes", "recording")


def test_a_report_loads_what_reads_recordings(tmp_path: Path) -> None:
    modules = loaded_by("report", write_recording(tmp_path / "a.nfp"))
    assert {"otel_nfprobe.cli.report", "otel_nfprobe.report.report"} <= modules
    assert not modules & LARGE
    assert not of_package(modules, *OF_SESSIONS, "chains")


def test_an_export_loads_one_transport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    server = HttpReceiver()
    try:
        modules = loaded_by(
            "export", write_recording(tmp_path / "a.nfp"), "--endpoint", f"http://127.0.0.1:{server.port}"
        )
    finally:
        server.stop()
    assert server.requests
    assert {"otel_nfprobe.cli.export", "otel_nfprobe.export.otlp_http"} <= modules
    assert not modules & (LARGE - {"importlib.metadata"})
    assert not of_package(modules - {"otel_nfprobe.monitor.latecapture"}, *OF_SESSIONS)
