# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of relocated bodies: at each instruction of a copy what readelf says of the function there.

NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_unwind.py runs through more programs.
"""

from __future__ import annotations

import random
import re
import subprocess
from bisect import bisect_right
from pathlib import Path

from otel_nfprobe.arch.branches import scan_module
from otel_nfprobe.arch.x86_64.body import build_body, find_exits
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import functions_of
from otel_nfprobe.probes.analysis import plan_functions
from otel_nfprobe.probes.trampoline import Frames
from tests.fuzz.random_assembly import random_assembly
from tests.fuzz.random_c import random_program
from tests.fuzz.seeds import seeds

FLAGS = ("-O0", "-O1", "-O2", "-Os", "-O3", "-O2 -fcf-protection", "-O2 -fno-omit-frame-pointer")
COPY_ADDRESS, COPY_STEP = 0x20000000, 0x20000
_FRAME = re.compile(r"FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")

Row = dict[str, str]


class Rules:
    """What readelf says: the CFA and the saved registers by address."""

    def __init__(self, path: Path) -> None:
        command = ["readelf", "--debug-dump=frames-interp", "-W", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.starts: list[int] = []
        self.frames: list[tuple[int, list[tuple[int, Row]]]] = []
        commons: dict[str, list[tuple[int, Row]]] = {}
        columns: list[str] = []
        rows: list[tuple[int, Row]] = []
        for line in text.splitlines():
            words = line.split()
            found = _FRAME.search(line)
            if found:  # without rows of its own it has that of its common entry
                rows = [(0, commons[found[1]][0][1])]
                self.starts.append(int(found[2], 16))
                self.frames.append((int(found[3], 16), rows))
            elif " CIE " in line:
                rows = commons.setdefault(words[0], [])
            elif words and words[0] == "LOC":
                columns = words[1:]
            elif re.match(r"[0-9a-f]{16} ", line):
                row = {name: rule for name, rule in zip(columns, words[1:], strict=True) if rule != "u"}
                rows.append((int(words[0], 16), row))
        order = sorted(range(len(self.starts)), key=self.starts.__getitem__)
        self.starts, self.frames = [self.starts[i] for i in order], [self.frames[i] for i in order]

    def at(self, address: int) -> Row:
        """The rules at an instruction."""
        index = bisect_right(self.starts, address) - 1
        assert index >= 0, hex(address)
        end, rows = self.frames[index]
        assert address < end, hex(address)
        return [row for place, row in rows if place <= address][-1]


def _make(folder: Path, seed: int) -> Path:
    chance = random.Random(seed)
    library = folder / f"unwind{seed}.so"
    if chance.random() < 0.3:
        source, flags = folder / f"unwind{seed}.s", ["-Wl,-Bsymbolic"]
        source.write_text(random_assembly(seed))
    else:
        source, flags = folder / f"unwind{seed}.c", ["-w", "-fPIC", *chance.choice(FLAGS).split()]
        source.write_text(random_program(seed, 40))
    subprocess.run(["gcc", "-shared", *flags, str(source), "-o", str(library)], check=True)
    return library


def _rules_of_copies(folder: Path, rows: bytes) -> Rules:
    """The rows that would be registered, read as the section of an object file."""
    section, holder = folder / "rows", folder / "rows.o"
    section.write_bytes(rows)
    subprocess.run(["as", "-o", str(holder), "/dev/null"], check=True)
    words = ["objcopy", "--add-section", f".eh_frame={section}", "--set-section-flags", ".eh_frame=alloc,readonly,data"]
    subprocess.run([*words, str(holder)], check=True)
    return Rules(holder)


def _check(folder: Path, path: Path) -> int:
    """Compares all functions of a library. Returns the number of compared instructions."""
    module = Module.from_file(path)
    scan = scan_module(module.image)
    frames, copies = Frames(), []
    for plan in plan_functions(functions_of(module), None, "relocated"):
        if plan.strategy is None:
            continue
        index = scan.index_of(plan.offset)
        address = COPY_ADDRESS + COPY_STEP * len(copies)
        exits = len(find_exits(scan, index))
        body = build_body(scan, index, 0, address + 64 * exits, lambda number, at=address: at + 64 * number)  # type: ignore[misc]
        frames.add_body(address + 64 * exits, body)
        copies.append((plan.name, address + 64 * exits, body))
    original, copied = Rules(path), _rules_of_copies(folder, frames.encode())
    compared = 0
    for name, address, body in copies:
        for old, place in body.places.items():
            if old < 4096:
                continue
            assert copied.at(address + place) == original.at(old), (path, name, hex(old))
            compared += 1
    return compared


def test_rows_of_copies(tmp_path: Path) -> None:
    compared = sum(_check(tmp_path, _make(tmp_path, seed)) for seed in seeds(3))
    assert compared > 1000


def test_rows_of_a_library_that_nobody_here_wrote(tmp_path: Path) -> None:
    assert _check(tmp_path, next(Path("/lib").glob("*/libz.so.1"))) > 5000
