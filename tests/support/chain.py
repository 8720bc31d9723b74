# SPDX-License-Identifier: Apache-2.0
"""The chain of tests/targets/deep.c as a target of stacks.cpp, probed by one strategy.

deep_a calls deep_b calls deep_c, which calls back into the program; what stands below and above is not probed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from otel_nfprobe.base.strategies import STRATEGIES
from tests.support.probed import Probed, Talker

Start = Callable[..., Talker]
CHAIN = ("deep_c", "deep_b", "deep_a")
LADDER = "ladder"
OF_ALL = [LADDER, *STRATEGIES]
# What each strategy can be forced on: only deep_b has arguments on the stack.
PROBED = {"in-stack": {"deep_a", "deep_c"}, "copied": {"deep_b"}}


def start_chain(
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    flags: Sequence[str] = (),
    library_flags: Sequence[str] = (),
) -> Talker:
    """A new target."""
    library = compile_target("deep", "-shared", "-fPIC", *library_flags)
    program = compile_target("stacks", str(library), "-rdynamic", *flags)
    return Talker(spawn(program, stdin=subprocess.PIPE, stderr=subprocess.PIPE))


def probe(talker: Talker, strategy: str) -> Probed:
    """A session on its chain."""
    return Probed(talker.pid, ["deep-*:deep_*"], strategy=None if strategy == LADDER else strategy)
