# SPDX-License-Identifier: Apache-2.0
"""A command that takes long says on a terminal what it waits for; nothing of that stays, or goes anywhere else."""

from __future__ import annotations

import io
import sys
import threading
from contextlib import suppress

import pytest

from otel_nfprobe.base.printable import PrintableStream
from otel_nfprobe.cli import waiting
from otel_nfprobe.cli.notices import notify
from otel_nfprobe.cli.waiting import Waiting


class Terminal(io.StringIO):
    """Notes when something was written."""

    def __init__(self, is_terminal: bool = True) -> None:
        super().__init__()
        self.is_terminal, self.written = is_terminal, threading.Event()

    def isatty(self) -> bool:
        return self.is_terminal

    def flush(self) -> None:
        self.written.set()

    def screen(self) -> list[str]:
        """What a person sees: each line, with what was written over others."""
        lines = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            lines.append("".join(cells).rstrip())
        return lines


def make_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool = True) -> Terminal:
    """Standard error from now on; in a test's body, since pytest replaces it after fixtures."""
    stream = Terminal(is_terminal)
    monkeypatch.setattr(sys, "stderr", PrintableStream(stream))
    monkeypatch.setattr(waiting, "SHOWN_EACH_S", 0.005)
    monkeypatch.delenv("NFPROBE_PROGRESS", raising=False)
    return stream


def await_line(terminal: Terminal) -> None:
    terminal.written.clear()
    assert terminal.written.wait(30)


def test_the_line_is_written_in_place_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with Waiting("reading a long name that is written over") as line:
        await_line(terminal)
        assert "s  reading a long name" in terminal.screen()[-1]
        line.say(lambda: "sending")
        await_line(terminal)
        await_line(terminal)
        assert terminal.screen()[-1].endswith("s  sending")
    assert terminal.screen() == [""]


def test_messages_stand_on_lines_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with Waiting("reading"):
        await_line(terminal)
        notify("something happened.")
    assert terminal.screen()[0] == "nfprobe: something happened."
    assert terminal.screen()[-1] == ""


def test_a_failure_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with suppress(KeyboardInterrupt), Waiting("reading"):
        await_line(terminal)
        raise KeyboardInterrupt
    assert terminal.screen() == [""]


@pytest.mark.parametrize("reason", ["no terminal", "variable"])
def test_nothing_is_written_elsewhere(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch, is_terminal=reason != "no terminal")
    if reason == "variable":
        monkeypatch.setenv("NFPROBE_PROGRESS", "no")
    with Waiting("reading"):
        assert not terminal.written.wait(0.1)
    assert terminal.getvalue() == ""


def test_a_name_cannot_command_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    with Waiting("reading a\x1b[2Jb"):
        await_line(terminal)
    assert "\x1b" not in terminal.getvalue()
    assert "\\x1b[2Jb" in terminal.getvalue()
