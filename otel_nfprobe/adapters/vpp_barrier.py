# SPDX-License-Identifier: Apache-2.0
"""The barrier of a running VPP: its main thread has all workers stand still while it changes what they read.

    vlib_worker_thread_barrier_sync_int(vm, function)   returns when all do; the name of the C function that wants it
    vlib_worker_thread_barrier_release(vm)              lets them go
    vlib_cli_input(vm, input, ...)                      runs a line of the CLI; input -> a vector of its characters

libvlib exports all three. Where there are no workers nobody is held.
"""

from __future__ import annotations

from otel_nfprobe.adapters.base import (
    ABSENT,
    COMMAND,
    HOLD,
    RELEASE,
    WHEN_ALWAYS,
    Buffer,
    Burst,
    RoleFunction,
    make_program,
)
from otel_nfprobe.adapters.vpp_graph import Graph, module_of
from otel_nfprobe.target.target import Target

SYNC, RELEASED = "vlib_worker_thread_barrier_sync_int", "vlib_worker_thread_barrier_release"
CLI = "vlib_cli_input"
TEXT_ARGUMENT = 1
NOTHING = Buffer(data=0, length=0, length_bytes=2, segment_length=0, segment_bytes=2)  # these calls have no packets


def barrier_roles(target: Target, graph: Graph) -> list[RoleFunction]:
    """The functions of the barrier, or none: all workers are held by both or by neither."""
    module = module_of(target, SYNC)
    if module is None or len(graph.mains) < 2 or RELEASED not in module.image.exports:
        return []
    roles = {SYNC: (HOLD, "barrier sync"), RELEASED: (RELEASE, "barrier release"), CLI: (COMMAND, "command line")}
    return [
        RoleFunction(
            module.base + module.image.exports[name].address,
            f"{module.name}:{name}",
            role,
            {} if role == RELEASE else _text_program(role),
            label,
        )
        for name, (role, label) in roles.items()
        if name in module.image.exports
    ]


def _text_program(role: int) -> dict[str, int]:
    # A line is a vector behind a pointer, the name of a function ends with a zero byte.
    program = make_program(role, Burst(TEXT_ARGUMENT, ABSENT, single=role == COMMAND), NOTHING)
    return {**program, "when": WHEN_ALWAYS}
