# SPDX-License-Identifier: Apache-2.0
"""What a verb says to a person while it works: lines on standard error."""

from __future__ import annotations

import select
import sys
from contextlib import suppress
from typing import TextIO

from otel_nfprobe.base.printable import printable


def notify(sentence: str, next_command: str = "") -> None:
    """Tells a person what happens, on standard error."""
    print_line(f"nfprobe: {printable(sentence)}" + (f"\nnext: {printable(next_command)}" if next_command else ""))


def print_line(text: str, end: str = "\n") -> None:
    """Prints on standard error; a terminal that is gone, or a full disk, must not end a session out of order."""
    with suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def has_room(stream: TextIO) -> bool:
    """Whether a line can be written without waiting for whoever reads it: a terminal that is held, a pipe."""
    try:
        return bool(select.select([], [stream], [], 0)[1])
    except (OSError, ValueError):  # it is no file
        return True
