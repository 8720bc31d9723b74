# SPDX-License-Identifier: Apache-2.0
"""docs/it-failed.md has each sentence that the program can end with, and none that it cannot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.error_sentences import VARIES, Sentences, pattern_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "it-failed.md"
# Made by argparse, by main and by EndedError.of.
MADE_OTHERWISE = {
    f"Unrecognized arguments: {VARIES}.",
    f"The following arguments are required: {VARIES}.",
    f"Argument {VARIES}: {VARIES}.",
    f"The output cannot be written: {VARIES}.",
    f"{VARIES} (unexpected; NFPROBE_DEBUG=1 shows where)",
    f"Process {VARIES} has ended.",
}
# Whole sentences that come from elsewhere, where each is found for itself.
FROM_ELSEWHERE = {
    "otel_nfprobe/agent/rules.py",  # of an option that a rule gives to attach
    "otel_nfprobe/cli/main.py",  # argparse's
    "otel_nfprobe/cli/query.py",  # DuckDB's
    "otel_nfprobe/elf/elf.py",  # an earlier error of the same file
    "otel_nfprobe/elf/symbols.py",
    "otel_nfprobe/export/sdk_transport.py",  # of an exporter of the SDK
    "otel_nfprobe/linux/descriptors.py",
    "otel_nfprobe/monitor/trial.py",  # what could not be restored
}
LETTERS_MIN = 7  # a pattern with fewer would match anything


def entries() -> list[str]:
    blocks = re.findall(r"^```text\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.fixture(scope="module")
def sentences() -> dict[str, str]:
    return Sentences().find()


def is_open(text: str) -> bool:
    return not re.search(r"[a-z]", text)


def test_each_sentence_is_listed(sentences: dict[str, str]) -> None:
    patterns = [pattern_of(entry) for entry in entries()]
    missing = {
        f"{where}: {text}"
        for text, where in sentences.items()
        if not is_open(text) and not any(pattern.fullmatch(text) for pattern in patterns)
    }
    assert not missing, "say in docs/it-failed.md what it means and what to do"


def test_nothing_else_is_listed(sentences: dict[str, str]) -> None:
    for entry in entries():
        assert entry in MADE_OTHERWISE or any(map(pattern_of(entry).fullmatch, sentences)), entry


def test_an_entry_says_something() -> None:
    found = entries()
    assert len(found) == len(set(found)) > 200
    for entry in found:
        assert len(re.sub(r"[^a-zA-Z]", "", entry)) >= LETTERS_MIN, entry


def test_sentences_from_elsewhere_are_known(sentences: dict[str, str]) -> None:
    """A new error whose words cannot be read out of the source must say here where they are."""
    assert {where.rpartition(":")[0] for text, where in sentences.items() if is_open(text)} <= FROM_ELSEWHERE


def test_a_new_refusal_fails() -> None:
    patterns = [pattern_of(entry) for entry in entries()]
    new = f"Process {VARIES} ({VARIES}) is of a colour that no probe likes."
    assert not any(pattern.fullmatch(new) for pattern in patterns)
