# SPDX-License-Identifier: Apache-2.0
"""A running `nfprobe agent`."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.probed import wait_until

PATIENCE_S = 120.0


class RunningAgent:
    """An agent, what it says, and what its page says."""

    def __init__(self, file: Path) -> None:
        words = [sys.executable, "-m", "otel_nfprobe", "agent", "--config", str(file)]
        self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        self.said: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        assert wait_until(lambda: self._find(r"on port (\d+)") is not None, PATIENCE_S)
        found = self._find(r"on port (\d+)")
        assert found is not None
        self._base = f"http://127.0.0.1:{found[1]}"

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def _find(self, pattern: str) -> re.Match[str] | None:
        return next((found for line in list(self.said) if (found := re.search(pattern, line))), None)

    def has_said(self, pattern: str) -> bool:
        return wait_until(lambda: self._find(pattern) is not None, PATIENCE_S)

    def ask(self, path: str) -> tuple[int, str]:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(self._base + path, timeout=30) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def shows(self, sample: str, value: float) -> bool:
        """Waits until its page has this value."""
        return wait_until(lambda: f"{sample} {value}\n" in self.ask("/metrics")[1], PATIENCE_S)
