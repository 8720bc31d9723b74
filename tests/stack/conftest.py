# SPDX-License-Identifier: Apache-2.0
"""A real Jaeger and a real Collector for the stack tests, on free ports, beside any other stack."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.jaeger_client import JaegerClient
from tests.support.stack_services import EXAMPLES, PORT_VARIABLES, Collector, Jaeger, Stack, find_free_ports

# synthetic_columns.py is there.


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """Binaries built, ports chosen, nothing started."""
    built = subprocess.run([str(EXAMPLES / "build")], capture_output=True, text=True, check=False)
    if built.returncode and shutil.which("go") is None:
        pytest.skip(f"the stack tests need Jaeger and the Collector: {built.stderr.strip()}")
    assert built.returncode == 0, built.stderr
    run_directory = str(tmp_path_factory.mktemp("stack"))
    ports = dict(zip(PORT_VARIABLES, map(str, find_free_ports(len(PORT_VARIABLES))), strict=True))
    return Stack({**os.environ, **ports, "NFPROBE_STACK_RUN_DIR": run_directory})


@pytest.fixture(scope="session")
def jaeger(stack: Stack) -> Iterator[Jaeger]:
    """A Jaeger that keeps traces in memory; tests tell their traces apart by service name."""
    stack.run("up", "jaeger")
    try:
        client = JaegerClient(stack.port("JAEGER_QUERY"))
        yield Jaeger(f"http://127.0.0.1:{stack.port('JAEGER_OTLP')}", client)
    finally:
        stack.run("down", "jaeger")


@pytest.fixture(scope="session")
def collector(stack: Stack, jaeger: Jaeger) -> Iterator[Collector]:
    """A Collector in front of that Jaeger."""
    stack.run("up", "collector")
    try:
        yield Collector(f"http://127.0.0.1:{stack.port('COLLECTOR_OTLP')}", jaeger)
    finally:
        stack.run("down", "collector")
