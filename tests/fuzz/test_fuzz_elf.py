# SPDX-License-Identifier: Apache-2.0
"""Damaged ELF files: each is read, or refused with a sentence; no crash of a parser, no hang, no traceback.

NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_elf.py reads more of them, NFPROBE_FUZZ_SEED=1000000 others.
A failure names the seed: mutate(Layout(good), seed) is the file.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.elf.elfparser import HEAD, RELOCATIONS, SYMBOLS, ElfParser
from otel_nfprobe.elf.elfplain import read_plain
from otel_nfprobe.elf.elftables import read_head, read_relocations, read_symbols
from otel_nfprobe.elf.filecontent import Content
from tests.fuzz.mutate import Layout, mutate
from tests.fuzz.seeds import FIRST, SECONDS, seeds

READERS: dict[bytes, Callable[..., Any]] = {HEAD: read_head, SYMBOLS: read_symbols, RELOCATIONS: read_relocations}
ROOT = Path(__file__).resolve().parents[2]
CHILD = "tests.fuzz.reading_child"
EVERYDAY, EVERYDAY_SECONDS = 120, 30
PATIENCE_S = 300
LIBZ = next(Path("/lib").glob("*/libz.so.1"))


@pytest.fixture(autouse=True)
def _nothing_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept by build id would be right for the good file only."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")


def _good(folder: Path, kind: str, compile_target: Callable[..., Path]) -> Path:
    if kind == "library":
        return Path(shutil.copy(LIBZ.resolve(), folder / "libz.so"))
    flags = ["-g"] if kind == "debug" else []
    program = Path(shutil.copy(compile_target("semantics", *flags), folder / "program"))
    if kind == "stripped":
        subprocess.run(["strip", str(program)], check=True)
    return program


def _read(source: Path, first: int, last: int, seconds: float) -> Iterator[str]:
    """Findings of a child, and the case at which it died, if it did."""
    words = [sys.executable, "-m", CHILD, str(source), str(first), str(last), str(seconds)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=False)
    lines = done.stdout.splitlines()
    yield from (line for line in lines if line.startswith("finding"))
    if done.returncode:
        yield f"status {done.returncode} at {lines[-1] if lines else 'the beginning'}: {done.stderr[-2000:]}"


@pytest.mark.parametrize("kind", ["program", "stripped", "debug", "library"])
def test_damaged_files(tmp_path: Path, compile_target: Callable[..., Path], kind: str) -> None:
    source = _good(tmp_path, kind, compile_target)
    count = EVERYDAY // 4 if kind in ("library", "debug") else EVERYDAY
    assert list(_read(source, 0, count, EVERYDAY_SECONDS)) == []
    if SECONDS:
        assert list(_read(source, max(FIRST, count), 1 << 60, SECONDS)) == []


@pytest.mark.parametrize("kind", ["stripped", "library"])
def test_tables_of_damaged_files_are_those_of_lief(
    tmp_path: Path, compile_target: Callable[..., Path], kind: str
) -> None:
    """Or left to it."""
    layout, parser, known = Layout(_good(tmp_path, kind, compile_target).read_bytes()), ElfParser(), 0
    try:
        for seed in seeds(60):
            content = Content(mutate(layout, seed))
            for question, read in READERS.items():
                parts = read_plain(question, content)
                if parts is not None:
                    expected = parser.ask(question, content)
                    assert expected is not None, (seed, question)
                    assert _unordered(read(parts)) == _unordered(read(expected)), (seed, question)
                    known += 1
    finally:
        parser.end()
    assert known > 60


def _unordered(found: Any) -> Any:
    return [sorted(part) if isinstance(part, list) else part for part in found]


def test_command_line_on_damaged_files(tmp_path: Path, compile_target: Callable[..., Path], nfprobe: Any) -> None:
    layout = Layout(compile_target("semantics").read_bytes())
    damaged = tmp_path / "damaged"
    for seed in seeds(2):
        damaged.write_bytes(mutate(layout, seed + 5000))
        done = nfprobe.run("functions", damaged, timeout=PATIENCE_S)
        assert done.returncode in range(4), (seed, done.stderr)
        assert "Traceback" not in done.stderr, (seed, done.stderr)
        assert "unexpected" not in done.stderr, (seed, done.stderr)
