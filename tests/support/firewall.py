# SPDX-License-Identifier: Apache-2.0
"""examples/firewall as the tests run it, and what nfprobe has to say when something is wrong."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.target.leftover import session_descriptors
from otel_nfprobe.target.target import Target

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "firewall"
DESCRIPTION = SOURCE / "firewall.yaml"
DEAD = "http://127.0.0.1:9"  # nobody listens there


class Firewall:
    """A running firewall, and how it was before anything was done to it."""

    def __init__(self, binary: Path, rate: int, *options: str) -> None:
        words = [str(binary), "--rate", str(rate), *options]
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.pid = self.process.pid
        deadline = time.monotonic() + 60
        while len(os.listdir(f"/proc/{self.pid}/task")) < 3:  # main, worker, generator
            assert time.monotonic() < deadline, "the firewall has no generator"
            time.sleep(0.005)
        self.target = Target(self.pid)
        self.modules = self.target.modules()
        self.text = text_digests(self.target, self.modules)
        self.threads = self.thread_ids()

    def thread_ids(self) -> list[str]:
        return sorted(os.listdir(f"/proc/{self.pid}/task"))

    def assert_restored(self) -> None:
        """Every byte of code as it was, no probe armed, no thread of ours, and it works on."""
        assert self.process.poll() is None, "the target has ended"
        assert text_digests(self.target, self.modules) == self.text
        deadline = time.monotonic() + 60
        while self.thread_ids() != self.threads:
            assert time.monotonic() < deadline, "the helper thread is still there"
            time.sleep(0.01)
        assert main(["status", str(self.pid)]) == 1

    def assert_untouched(self) -> None:
        """Nothing of ours was ever there."""
        assert self.thread_ids() == self.threads
        assert text_digests(self.target, self.modules) == self.text
        assert "nfprobe" not in Path(f"/proc/{self.pid}/maps").read_text()
        assert session_descriptors(self.pid) == []

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def assert_told(errors: str, *words: str) -> None:
    """One sentence, then what to type next; no traceback, nothing unexpected."""
    lines = errors.splitlines()
    assert len(lines) == 2, errors
    assert lines[0].startswith("nfprobe: "), errors
    assert lines[0].endswith("."), errors
    assert "unexpected" not in lines[0], errors
    assert lines[1].startswith("next: "), errors
    assert len(lines[1]) > len("next: "), errors
    for word in words:
        assert word in lines[0], errors


def assert_no_traceback(errors: str) -> None:
    assert "Traceback" not in errors, errors
    assert "unexpected" not in errors, errors


def fails(capfd: pytest.CaptureFixture[str], status: int, *words: object, said: str = "") -> None:
    """Runs a command in this process: it fails with the status and says so."""
    capfd.readouterr()
    assert main([str(word) for word in words]) == status
    captured = capfd.readouterr()
    assert captured.out == ""
    assert_told(captured.err, said)
