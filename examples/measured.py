# SPDX-License-Identifier: Apache-2.0
"""What the example scripts share: they call nfprobe as a person types it, and show what they call."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def find_nfprobe() -> list[str]:
    """The words that start nfprobe: of the checkout, of the PATH, or of this interpreter's packages."""
    built = ROOT / ".venv" / "bin" / "nfprobe"
    if os.access(built, os.X_OK):
        return [str(built)]
    installed = shutil.which("nfprobe")
    return [installed] if installed else [sys.executable, "-m", "otel_nfprobe"]


def show(words: Sequence[object]) -> None:
    """Prints a command of nfprobe, on standard error."""
    print("$ nfprobe", shlex.join(map(str, words)), file=sys.stderr, flush=True)


def run_nfprobe(*words: object, quiet: bool = False) -> str:
    """Runs nfprobe to its end. Returns its standard output; what it says to people goes to standard error.

    Raises:
        SystemExit: it failed, and has said why.
    """
    show(words)
    done = subprocess.run([*find_nfprobe(), *map(str, words)], capture_output=True, text=True)
    if done.returncode or not quiet:
        sys.stderr.write(done.stderr)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def read_report(recording: Path, *options: object) -> dict[str, Any]:
    """The object of `nfprobe report RECORDING --json`."""
    report: dict[str, Any] = json.loads(run_nfprobe("report", recording, "--json", *options))
    return report


def build_firewall(folder: Path) -> Path:
    """Builds examples/firewall. Returns the program, stripped."""
    subprocess.run(["make", "--quiet", "-C", ROOT / "examples" / "firewall", f"BUILD={folder.resolve()}"], check=True)
    return folder.resolve() / "stripped" / "firewall"


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows as aligned text, the first underlined; the first column to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
