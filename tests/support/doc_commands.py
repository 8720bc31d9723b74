# SPDX-License-Identifier: Apache-2.0
"""The command lines that the documents show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "options.md"),  # of the parsers themselves
    *sorted((ROOT / "examples").glob("*/README.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"(?:\$ )?(?:sudo )?(?:\.venv/bin/)?(nfprobe (?:[a-z]+|--version)\b.*)")


class Shown(NamedTuple):
    """A command line, from `nfprobe` on, and the page that it is on."""

    page: Path
    line: str


def lines_to_type() -> Iterator[Shown]:
    """Those in blocks, which a reader copies as they are."""
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text()):
            if language:  # text that is looked up, diagrams, YAML
                continue
            for line in block.replace("\\\n", " ").splitlines():
                if found := LINE.fullmatch(line):
                    yield Shown(page, re.sub(r"\s+# .*", "", found[1]))


def lines_in_prose() -> Iterator[Shown]:
    """Those in running text: some have placeholders, or are parts."""
    for page in PAGES:
        for text in re.findall(r"`([^`]+)`", FENCE.sub("", page.read_text())):
            if found := LINE.fullmatch(" ".join(text.split())):
                yield Shown(page, found[1])
