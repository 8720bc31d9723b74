# SPDX-License-Identifier: Apache-2.0
"""What the mailbox in the session's memory answers, written over by the target: its code stays whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from otel_nfprobe._core import ffi
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.leftover import session_descriptors
from tests.integration.test_damaged_table import GLOBS, RING_BYTES, Whole
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

NO_SUCH_PROCESS, NO_ERRNO, POSITIVE = -3, -(1 << 31), 7
SESSIONS_DESCRIPTORS = 30  # that six sessions may leave to the garbage collector, and not those of events


WRITE = """
import mmap, os, struct, sys
place, answer = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096), struct.pack("<i", int(sys.argv[3]))
start = int(sys.argv[2])
print("ready", flush=True)
while True:
    place[start : start + 4] = answer
"""


@contextmanager
def answers(pid: int, answer: int) -> Iterator[None]:
    """Whatever the helper thread is asked, its answer is written over."""
    path = f"/proc/{pid}/fd/{session_descriptors(pid)[-1]}"
    place = ffi.offsetof("struct nfp_session_header", "result")
    words = [sys.executable, "-c", WRITE, path, str(place), str(answer)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline()
        try:
            yield
        finally:
            writer.kill()


@pytest.mark.parametrize("answer", [NO_SUCH_PROCESS, NO_ERRNO, POSITIVE])
def test_code_is_whole_whatever_the_helper_thread_is_said_to_answer(
    answer: int, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    talker = Talker(spawn(compile_target("processes"), stdin=subprocess.PIPE))
    before = Whole(talker.pid)
    with Probed(talker.pid, GLOBS, ring_bytes=RING_BYTES):  # leaves a session that the next one takes up
        assert talker.ask("steps 10") == "right"
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        probed = Probed(talker.pid, GLOBS, ring_bytes=RING_BYTES)
        with answers(talker.pid, answer), suppress(NfprobeError), probed:
            assert talker.ask("steps 10") == talker.ask("spawns 3") == "right"
        assert talker.ask("steps 10") == talker.ask("spawns 3") == "right"
    with Probed(talker.pid, GLOBS, ring_bytes=RING_BYTES) as probed:
        assert talker.ask("steps 10") == "right"
    # Events are closed by a thread of their own, since the kernel takes long for some.
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors + SESSIONS_DESCRIPTORS)
    assert probed.not_restored == []
    assert before.is_as_before()
