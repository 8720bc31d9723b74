# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md says where things are: of files that exist, and of packages as they import each other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FILES = re.findall(r"`([\w/{},*.]+/[\w/{},*.]*)`", PAGE.split("## Who does what")[1])


def spread(text: str) -> list[str]:
    """a/{b,c}.h names two files."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", text)
    return [found[1] + part + found[3] for part in found[2].split(",")] if found else [text]


def test_the_packages_are_as_they_import_each_other() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "package-picture"), "--check"]
    assert subprocess.run(words, check=False).returncode == 0, "run scripts/package-picture"


def test_the_stub_is_of_the_core_that_is_built() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "core-stub"), "--check"]
    assert subprocess.run(words, check=False).returncode == 0, "run scripts/core-stub"


def test_every_file_that_is_named_is_there() -> None:
    assert len(FILES) > 150
    named = [name for text in FILES for name in spread(text)]
    missing = [name for name in named if not any([*ROOT.glob(name), *(ROOT / "otel_nfprobe").glob(name)])]
    assert missing == []
