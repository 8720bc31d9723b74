# SPDX-License-Identifier: Apache-2.0
"""A line on a terminal that says what a command waits for, once it takes longer than a second; erased at the end.

It is written by a thread, in place, on standard error; nothing is written where that is no terminal, or where
NFPROBE_PROGRESS is `no`. Whatever else is written there calls `erase` first.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from otel_nfprobe.base.environment_variables import NFPROBE_PROGRESS

SHOWN_EACH_S = 1.0
COLUMNS = 80

_lock = threading.Lock()
_shown = 0  # characters of the line that stands there


class Waiting:
    """What a command is doing, while the context is open.

    Args:
        text: what it waits for, or a function that returns that; called by the thread.
    """

    def __init__(self, text: str | Callable[[], str]) -> None:
        self._text = text
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Waiting:
        if os.environ.get(NFPROBE_PROGRESS) != "no" and sys.stderr.isatty():
            self._began_s = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="waiting", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            erase()

    def say(self, text: str | Callable[[], str]) -> None:
        """Waits for something else from now on."""
        self._text = text

    def _run(self) -> None:
        while not self._ended.wait(SHOWN_EACH_S):
            text = self._text if isinstance(self._text, str) else self._text()
            _show(f"{time.monotonic() - self._began_s:5.0f} s  {text}")


def erase() -> None:
    """Erases the line."""
    with _lock:
        _write("")


def has_room(stream: TextIO) -> bool:
    """Returns whether a line can be written without blocking on its reader: a stopped terminal, a pipe."""
    try:
        return bool(select.select([], [stream], [], 0)[1])
    except (OSError, ValueError):  # not a file
        return True


def _show(line: str) -> None:
    with _lock:
        if has_room(sys.stderr):
            _write(line[: _columns() - 1])


def _write(line: str) -> None:
    global _shown
    if not (line or _shown):
        return
    with suppress(OSError):
        for text in ("\r", line.ljust(_shown), "" if line else "\r"):  # a carriage return alone is not escaped
            sys.stderr.write(text)
        sys.stderr.flush()
    _shown = len(line)


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS
