# SPDX-License-Identifier: Apache-2.0
"""Events that are not closed yet when the process ends: another one has them, and nobody waits for that."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

from tests.support.probed import wait_until

# A pipe stands for the event: it says when its last user has closed it. `sh` stands for the other process, which ends
# when the test says so.
ENDS = """
import sys
from otel_nfprobe.linux import closing
closing._is_closing = {busy}  # the thread has not come to it
sys.executable = sys.argv[2]
closing.close_events([int(sys.argv[1])])
print("ended", flush=True)
"""


def end_with(folder: Path, busy: bool) -> int:
    """A process that ends after it has closed an event. Returns the descriptor that says when its last user has."""
    other = folder / "other"
    other.write_text(f"#!/bin/sh\nread all\nwhile [ ! -e {folder}/go ]; do sleep 0.05; done\n")
    other.chmod(0o755)
    reading, writing = os.pipe()
    words = [sys.executable, "-c", ENDS.format(busy=busy), str(writing), str(other)]
    done = subprocess.run(words, pass_fds=[writing], capture_output=True, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
    return reading


def is_closed(reading: int) -> bool:
    poll = select.poll()
    poll.register(reading, 0)
    return bool(poll.poll(0))


def test_what_is_left_at_the_end_is_closed_by_another_process(tmp_path: Path) -> None:
    reading = end_with(tmp_path, busy=True)
    assert not is_closed(reading)
    (tmp_path / "go").touch()
    assert wait_until(lambda: is_closed(reading))
    os.close(reading)


def test_a_thread_closes_them(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    reading = end_with(tmp_path, busy=False)
    assert wait_until(lambda: is_closed(reading))
    os.close(reading)
