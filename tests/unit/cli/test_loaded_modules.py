# SPDX-License-Identifier: Apache-2.0
"""What `nfprobe attach` loads before anything is done: half of an attach's processor time is the loading of code."""

from __future__ import annotations

import json
import subprocess
import sys

SELDOM_NEEDED = (
    "otel_nfprobe.report.report",  # of recordings
    "otel_nfprobe.monitor.trial",  # where neither the adapter nor a person names inner functions
    "otel_nfprobe.profiling.profiler",  # --profile
    "otel_nfprobe.pipeline.flowfilter",  # --flow
    "otel_nfprobe.elf.names.inlined",  # where a glob matches nothing
    "otel_nfprobe.metrics.metrics",
    "duckdb",
    "elftools",
    "grpc",
    "keystone",
    "lief",
    "opentelemetry.exporter",
    "opentelemetry.sdk.metrics",
    "pyarrow",
    "requests",
    "yaml",
)


LOAD = """
import json, sys
from otel_nfprobe.cli.main import parse
parse(["attach", "1"])
print(json.dumps([*sys.modules]))
"""


def test_an_attach_loads_no_part_that_few_sessions_need() -> None:
    said = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True).stdout
    assert {"otel_nfprobe.cli.attach", "otel_nfprobe.monitor.monitor"} < set(json.loads(said))
    assert not set(json.loads(said)) & set(SELDOM_NEEDED)
