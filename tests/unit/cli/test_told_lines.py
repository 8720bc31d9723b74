# SPDX-License-Identifier: Apache-2.0
"""What a verb tells on standard error is one line a sentence, also where another session chose the words."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import otel_nfprobe.cli
from otel_nfprobe.cli import counters
from otel_nfprobe.cli.main import main
from otel_nfprobe.shm.control import Answer, AnswerError

CLI = Path(otel_nfprobe.cli.__file__).parent
FORGED = "good\nnfprobe: all is well \x1b[2J\u202e"
SHOWN = "good\\x0anfprobe: all is well \\x1b[2J\\u202e"


class _Target:
    def __init__(self, pid: int) -> None:
        self.pid = pid


def run(monkeypatch: pytest.MonkeyPatch, answer: Answer, refused: bool = False) -> int:
    """`nfprobe counters` where the session on a process answers so."""

    def ask(inode: int, request: dict[str, Any]) -> Answer:
        if refused:
            raise AnswerError(answer)
        return answer

    monkeypatch.setattr(counters, "ask", ask)
    monkeypatch.setattr(counters, "Target", _Target)
    monkeypatch.setattr(counters, "find_held_session", lambda target: 1)
    return main(["counters", "17"])


def test_answer_of_another_session(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"pid": 17, "said": [FORGED], "counters": [FORGED], "software": [FORGED], "changes": 0}
    assert run(monkeypatch, answer) == 0
    shown = capsys.readouterr()
    assert shown.err == f"nfprobe: {SHOWN}\n"
    assert shown.out == f"17: probes read {SHOWN}; read at intervals: {SHOWN}\n"


def test_refusal_of_another_session(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, {"error": FORGED, "next": FORGED, "status": 1}, refused=True) == 1
    assert capsys.readouterr().err == f"nfprobe: {SHOWN}\nnext: {SHOWN}\n"


def test_every_verb_tells_by_one_way() -> None:
    """`tell` of main.py, and `notify` of notices.py for sessions: only log.py, which both use, begins such a line."""
    found = {
        path.name
        for path in CLI.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _begins_sentence(node.value)
    }
    assert found == {"log.py"}


def _begins_sentence(text: str) -> bool:
    return text.lstrip("\n").startswith(("nfprobe: ", "next: "))
