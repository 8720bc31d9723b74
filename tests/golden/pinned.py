# SPDX-License-Identifier: Apache-2.0
"""Compares what nfprobe puts out with what it put out when it was pinned (expected/). `make golden` pins anew."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

EXPECTED = Path(__file__).resolve().parent / "expected"
LINES_SHOWN = 60


def is_pinning() -> bool:
    """Whether this run pins what it finds."""
    return os.environ.get("NFPROBE_GOLDEN") == "write"


def check(name: str, text: str, folder: Path = EXPECTED) -> None:
    """Compares text with the file of this name, or writes it.

    Raises:
        AssertionError: they differ; it says where, and what to type.
    """
    path = folder / name
    if is_pinning():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    compare(name, path.read_text(encoding="utf-8") if path.exists() else "", text)


def compare(name: str, pinned: str, text: str) -> None:
    """Two texts, byte by byte."""
    if text == pinned:
        return
    lines = difflib.unified_diff(pinned.splitlines(True), text.splitlines(True), f"pinned/{name}", f"now/{name}", n=1)
    shown = "".join(line if line.endswith("\n") else line + "\n" for line in list(lines)[:LINES_SHOWN])
    raise AssertionError(
        f"{name} is not what was pinned:\n{shown}If it is meant to change: make golden, and look at the diff."
    )
