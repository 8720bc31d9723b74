# SPDX-License-Identifier: Apache-2.0
"""NFPROBE_LOG: messages as text or as JSON, from a level on."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from otel_nfprobe.cli.log import Level, is_shown
from otel_nfprobe.cli.main import main, tell
from otel_nfprobe.cli.notices import notify, notify_progress, notify_summary


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_text_is_the_default(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "text", "info"):
        monkeypatch.setenv("NFPROBE_LOG", value)
        notify("one", "ls")
        tell("two")
        notify_progress("  1 s", "\r")
        notify_summary("three\nfour", {"calls": 1})
        assert capsys.readouterr().err == "nfprobe: one\nnext: ls\nnfprobe: two\n  1 s\rthree\nfour\n"


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFPROBE_LOG", "json")
    before = datetime.now(timezone.utc)
    notify("a \x1b name\nof two lines")
    tell("two", "ls")
    notify_progress("  1 s ", "\r")
    notify_summary("three\nfour", {"calls": 1})
    found = written(capsys)
    times = [datetime.fromisoformat(str(message.pop("time")).replace("Z", "+00:00")) for message in found]
    assert all(abs((time - before).total_seconds()) < 60 for time in times)
    assert found == [
        {"level": "info", "message": "a \x1b name\nof two lines"},
        {"level": "warning", "message": "two", "next_command": "ls"},
        {"level": "info", "message": "1 s"},
        {"level": "info", "message": "the session has ended", "summary": {"calls": 1}},
    ]


@pytest.mark.parametrize(("value", "shown"), [("warning", 2), ("json,error", 1), ("Error", 1), (" json , info ", 3)])
def test_levels(monkeypatch: pytest.MonkeyPatch, value: str, shown: int) -> None:
    monkeypatch.setenv("NFPROBE_LOG", value)
    assert [level for level in Level if is_shown(level)] == list(Level)[-shown:]


def test_an_error_is_shown_at_every_level(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NFPROBE_LOG", "json,error")
    assert main(["report", "/no/such/recording"]) == 2
    (message,) = written(capsys)
    assert (message["level"], "/no/such/recording" in str(message["message"])) == ("error", True)
    assert message["next_command"]


def test_a_value_that_means_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NFPROBE_LOG", "jsno")
    assert main(["report", "/no/such/recording"]) == 2
    assert "NFPROBE_LOG=jsno is none of text, json, info, warning, error." in capsys.readouterr().err
