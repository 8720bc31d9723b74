# SPDX-License-Identifier: Apache-2.0
"""A target that writes thread numbers of other processes into its thread table: nothing is opened for these."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.causes import absence_events
from otel_nfprobe.counters import perf
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.linux import perfring
from otel_nfprobe.profiling import profiler
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

BUSY = "while True: pass"
GLOBS = ["foreign_threads*:step"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The thread numbers that perf events were opened for."""
    numbers: set[int] = set()

    def note(attributes: bytes, tid: int, *rest: Any, **options: Any) -> int:
        numbers.add(tid or os.getpid())
        return perfring.open_event(attributes, tid, *rest, **options)

    for module in (absence_events, profiler, perf):
        monkeypatch.setattr(module, "open_event", note)
    return numbers


def test_nothing_is_opened_for_threads_of_others(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], opened: set[int]
) -> None:
    talker = Talker(spawn(compile_target("foreign_threads"), stdin=subprocess.PIPE))
    victim = spawn(sys.executable, "-c", BUSY)
    session = Probed(talker.pid, GLOBS)
    session.monitor.software_counters = choose_counters("context-switches,task-clock").software
    session.monitor.profile_hertz = 99
    with session as probed:
        assert talker.ask("work 1000") == "right"
        software = probed.monitor.software
        assert wait_until(lambda: talker.pid in software._threads)
        assert talker.ask(f"name {victim.pid}") == "done"
        assert wait_until(lambda: talker.pid not in software._threads)  # nobody names it any more
        time.sleep(1.5)  # as often as everything is looked at
        assert software._threads == {}
        assert talker.ask("work 1000") == "right"
    own = {talker.pid, *(thread.tid for thread in probed.target.threads())}
    assert talker.pid in opened
    assert victim.pid not in opened
    opened.discard(-1)  # events of CPUs, which tell of one thread
    assert opened <= own | {probed.monitor.attachment.session.header.helper_tid}
    assert probed.not_restored == []
