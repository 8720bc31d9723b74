# SPDX-License-Identifier: Apache-2.0
"""Files that the process that reads ELF files has an accident with (faulty_worker.py)."""

from __future__ import annotations

import sys
from pathlib import Path

FAULTY = Path(__file__).with_name("faulty_worker.py")
LIBZ = next(Path("/lib").glob("*/libz.so.1")).resolve()
MARK = "this file is not to be read"


def faulty(accident: str, questions: str = "hsr") -> list[str]:
    """The command of a process that has an accident with each file that holds the mark."""
    return [sys.executable, "-I", "-S", str(FAULTY), accident, MARK, questions]


def have_accident(path: Path, accident: str, questions: str = "hsr") -> None:
    """Makes a file one that `faulty_parser` has an accident with."""
    path.write_bytes(LIBZ.read_bytes() + f"{MARK} {accident} {questions}".encode())
