# SPDX-License-Identifier: Apache-2.0
"""Attached: one `nfprobe attach` that the agent has started, and what became of it.

A process of its own: what goes wrong in one session harms no other, and the agent itself never touches a target.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from otel_nfprobe.agent.processes import Process
from otel_nfprobe.agent.rules import Rule
from otel_nfprobe.base.environment_variables import NFPROBE_PROGRESS

REFUSED = 3  # exit status: this target cannot be probed


class Attached:
    """A session.

    Attributes:
        process: the target.
        rule: by which it is measured.
        summary: its summary object once it has ended with one, else None.
    """

    def __init__(self, process: Process, rule: Rule, say: Callable[[str], None]) -> None:
        self.process, self.rule = process, rule
        self.started_at = time.monotonic()
        self.summary: dict[str, Any] | None = None
        self._prefix = f"{rule.name}: {process.shown_name} {process.pid}"
        self._say = say
        words = [sys.executable, "-m", "otel_nfprobe", "attach", str(process.pid), *rule.options, "--json"]
        self._child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, NFPROBE_PROGRESS: "no", **rule.environment},
            start_new_session=True,  # a signal to the agent's group is the agent's to pass on
        )
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_summary, args=(self._child.stdout,), daemon=True),
            threading.Thread(target=self._read_words, args=(self._child.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def status(self) -> int | None:
        """Exit status once it has ended and all that it said was read, else None."""
        status = self._child.poll()
        if status is None:
            return None
        for reader in self._readers:
            reader.join()
        return status

    @property
    def was_refused(self) -> bool:
        """Whether there is no use in trying this process again."""
        return self._child.poll() == REFUSED

    @property
    def was_too_dear(self) -> bool:
        """Whether it ended since its probes cost more than they may."""
        return bool(self.summary and self.summary.get("budget", {}).get("exceeded"))

    def end(self) -> None:
        """Asks it to detach; `status` says when it has."""
        if self._child.poll() is None:
            self._child.terminate()

    def kill(self) -> None:
        """For one that does not end; the next session on the target cleans up after it."""
        self._child.kill()
        self._child.wait()

    def _read_summary(self, output: IO[str]) -> None:
        for line in output:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                self.summary = value

    def _read_words(self, output: IO[str]) -> None:
        for line in output:
            if words := line.strip():
                self._say(f"{self._prefix}: {words.removeprefix('nfprobe: ')}")
