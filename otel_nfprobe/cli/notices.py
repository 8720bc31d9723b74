# SPDX-License-Identifier: Apache-2.0
"""Messages to the user while a verb works: lines on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from otel_nfprobe.cli.log import Level, format_message, is_json, is_shown
from otel_nfprobe.cli.waiting import erase


def notify(sentence: str, next_command: str = "") -> None:
    """Prints a message to the user on standard error."""
    level = Level.WARNING if next_command else Level.INFO
    if is_shown(level):
        print_line(format_message(sentence, next_command, level))


def notify_progress(line: str, end: str) -> None:
    """Prints how far a command is, on a line that the next one may replace."""
    if is_shown(Level.INFO):
        print_line(format_message(line.strip(), "", Level.INFO) if is_json() else line, "\n" if is_json() else end)


def notify_summary(text: str, summary: dict[str, Any]) -> None:
    """Prints the summary of a session: the text for people, or all of it as JSON."""
    if is_json():
        text = format_message("the session has ended", "", Level.INFO, summary=summary)
    print_line(text)


_held: list[str] | None = None  # lines that wait until a page is off the terminal


@contextmanager
def hold_messages() -> Iterator[list[str]]:
    """Keeps messages back while something else is on the terminal; they are printed at the end of the context.

    Yields:
        those that wait so far; the list grows.
    """
    global _held
    held = _held = []
    try:
        yield held
    finally:
        _held = None
        for line in held:
            print_line(line)


def print_line(text: str, end: str = "\n") -> None:
    """Prints on standard error; a closed terminal, or a full disk, must not end a session improperly."""
    if _held is not None:
        _held.append(text)
        return
    erase()
    with suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)
