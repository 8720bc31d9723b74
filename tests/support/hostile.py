# SPDX-License-Identifier: Apache-2.0
"""Hostile targets (tests/targets/hostile.c), what must stay as it is whatever they do, and commands that must end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_nfprobe.target.target import Target
from tests.support.probed import Talker

ROOT = Path(__file__).resolve().parents[2]
INCLUDES = (f"-I{ROOT / 'native'}", "-Wno-missing-field-initializers")
BOUND_S = 180.0  # far more than any of these takes, on a busy machine too: whoever hangs, hangs
PEAK_BYTES = 1 << 30


# A process that a large one starts counts that one's memory as its own until it executes its program: so a small one
# starts it.
PEAK = """
import os, subprocess, sys
_, status, usage = os.wait4(subprocess.Popen(sys.argv[2:]).pid, 0)
os.write(int(sys.argv[1]), str(usage.ru_maxrss * 1024).encode())
sys.exit(os.waitstatus_to_exitcode(status) & 255)
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended: its status, what it said, the most memory that it had."""

    status: int
    output: str
    errors: str
    peak_bytes: int

    def assert_told(self, status: int, said: str = "") -> None:
        """It has ended in order, with a sentence and not with an exception."""
        assert self.status == status, self
        assert said in self.errors, self
        assert "unexpected" not in self.errors, self
        assert "Traceback" not in self.errors, self
        assert self.peak_bytes < PEAK_BYTES


class Bait:
    """Files of root's that everybody may read: they must stay as they are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file, self.fifo = folder / "file", folder / "fifo"
        self.file.write_bytes(b"root's own\n" * 100)
        self.file.chmod(0o644)
        os.mkfifo(self.fifo)
        self.fifo.chmod(0o666)
        self._before = self._look()

    def _look(self) -> tuple[bytes, int, int]:
        status = self.file.stat()
        return self.file.read_bytes(), status.st_mtime_ns, self.fifo.stat().st_mtime_ns

    def assert_untouched(self) -> None:
        assert self._look() == self._before


def run(*words: object, **options: Any) -> Ended:
    """Runs nfprobe to its end, which must come."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        command = [sys.executable, "-m", "otel_nfprobe", *map(str, words)]
        measured, said = os.pipe()
        words = [sys.executable, "-c", PEAK, str(said), *map(str, command)]
        options = {"pass_fds": (said,), "start_new_session": True} | options
        process = subprocess.Popen(words, stdout=output, stderr=errors, **options)
        os.close(said)
        timer = threading.Timer(BOUND_S, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        status = process.wait()
        timer.cancel()
        with open(measured) as measured_file:
            peak_bytes = int(measured_file.read() or 0)
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read().decode())
        return Ended(status, *texts, peak_bytes)


def attach(talker: Talker, *options: object) -> Ended:
    words = ("--adapter", "none", "--functions", "hostile-*:step", "--for", "0.3s", "--ring-size", "64KiB", "--json")
    return run("attach", talker.pid, *words, *options)


def assert_lives(talker: Talker) -> None:
    """The target is as it was and goes on."""
    assert talker.ask("step 1000") == "right"
    assert not has_probes(talker.pid)


def has_probes(pid: int) -> bool:
    """Whether the program's code differs from its file."""
    target = Target(pid)
    program = target.modules()[0]
    with open(f"/proc/{pid}/exe", "rb") as file:
        for mapping in target.maps():
            if (mapping.start, mapping.end) in program.executable_ranges:
                file.seek(mapping.offset)
                content = file.read(mapping.end - mapping.start)
                if target.read(mapping.start, len(content)) != content:
                    return True
    return False
