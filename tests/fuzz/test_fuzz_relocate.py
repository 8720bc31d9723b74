# SPDX-License-Identifier: Apache-2.0
"""Moved code does what it did: random functions run before and after they were moved, in a child process.

NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_relocate.py runs through more of them. A failure names the
seed; `random_assembly(seed)` is the source, relocation_child.py shows what differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from otel_nfprobe.arch.x86_64.relocate import relocate
from tests.fuzz.random_assembly import random_assembly
from tests.fuzz.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]
CHILD = "tests.fuzz.relocation_child"
PATIENCE_S = 120


def _library(folder: Path, seed: int) -> Path:
    source, library = folder / f"random{seed}.s", folder / f"random{seed}.so"
    source.write_text(random_assembly(seed))
    words = ["gcc", "-shared", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack", "-o", str(library), str(source)]
    subprocess.run(words, check=True)
    return library


@pytest.mark.parametrize("strategy", ["relocated", "in-stack", "entry"])
def test_same_results(tmp_path: Path, strategy: str) -> None:
    """Registers, flags, memory and numbers of calls; as many exits as entries; most functions are moved."""
    moved = functions = 0
    for seed in seeds(8 if strategy == "relocated" else 3):
        words = [sys.executable, "-m", CHILD, str(_library(tmp_path, seed)), strategy, str(seed)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, f"seed {seed}: {done.returncode} {done.stderr[-2000:]}"
        said = json.loads(done.stdout)
        assert said["problems"] == [], f"seed {seed}"
        moved, functions = moved + said["moved"], functions + said["names"]
    assert moved > functions * (0.8 if strategy == "relocated" else 0.3)


@pytest.mark.parametrize("code", ["488d05f9ffffff", "ebfe", "74fe", "e3fe", "e8fbffffff"])
def test_an_instruction_that_means_itself_still_means_the_original(code: str) -> None:
    """lea, jmp, je, jrcxz, call of the instruction's own address."""
    from iced_x86 import Decoder

    copy, offsets = relocate(bytes.fromhex(code), 0x401000, 0x500000, 0x401000 + len(code) // 2)
    assert offsets[0] == 0
    targets = {
        instruction.ip_rel_memory_address if instruction.is_ip_rel_memory_operand else instruction.near_branch_target
        for instruction in Decoder(64, copy, ip=0x500000)
    }
    assert 0x401000 in targets
