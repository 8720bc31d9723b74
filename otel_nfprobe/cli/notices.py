# SPDX-License-Identifier: Apache-2.0
"""Messages to the user while a verb works: lines on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

from otel_nfprobe.base.printable import printable
from otel_nfprobe.cli.waiting import erase


def notify(sentence: str, next_command: str = "") -> None:
    """Prints a message to the user on standard error."""
    print_line(f"nfprobe: {printable(sentence)}" + (f"\nnext: {printable(next_command)}" if next_command else ""))


def print_line(text: str, end: str = "\n") -> None:
    """Prints on standard error; a closed terminal, or a full disk, must not end a session improperly."""
    erase()
    with suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)
