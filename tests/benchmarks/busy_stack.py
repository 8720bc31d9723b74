# SPDX-License-Identifier: Apache-2.0
"""For benchmarks: the stack of examples/collector on ports of its own, where `make stack-build` has built it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from tests.support.stack_services import PORT_VARIABLES, Stack, find_free_ports

BINARIES = Path(os.environ.get("NFPROBE_STACK_DIR") or Path.home() / ".cache/nfprobe/stack")
OTELCOL, JAEGER = BINARIES / "otelcol", BINARIES / "jaeger"


def say_if_missing() -> bool:
    """Whether there is no stack to measure, which is said then."""
    missing = [path.name for path in (OTELCOL, JAEGER) if not path.exists()]
    if missing:
        print(f"skipped: {' and '.join(missing)} not built: make stack-build")
    return bool(missing)


def start_stack(folder: str, stop: ExitStack, *services: str) -> tuple[Stack, int]:
    """Starts these services on ports of their own. Returns them and the process id of Jaeger."""
    ports = dict(zip(PORT_VARIABLES, map(str, find_free_ports(len(PORT_VARIABLES))), strict=True))
    stack = Stack({**os.environ, **ports, "NFPROBE_STACK_RUN_DIR": folder})
    for service in services:
        stack.run("up", service)
        stop.callback(stack.run, "down", service)
    return stack, int(Path(folder, "jaeger.pid").read_text())
