# SPDX-License-Identifier: Apache-2.0
"""The C core's instructions and scans are those of iced-x86, byte for byte, or it says that it does not know.

NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_instructions.py looks at more of them.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from itertools import islice, product
from pathlib import Path

import pytest
from iced_x86 import Decoder, FlowControl

from otel_nfprobe.arch.code_facts import FunctionScan
from otel_nfprobe.arch.scans import Scans
from otel_nfprobe.arch.x86_64.relocate import JUMP_BYTES
from otel_nfprobe.arch.x86_64.scan import scan_function
from otel_nfprobe.arch.x86_64.sites import ENDBR
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.ehframe import DEREFERENCED, ENTRY_BYTES, Frame
from otel_nfprobe.elf.elf import ElfImage
from tests.fuzz.instruction_oracle import core_names, core_says, oracle_names, oracle_says
from tests.fuzz.mutate import Layout
from tests.fuzz.seeds import seeds

MAPS = (b"", b"\x0f", b"\x0f\x38", b"\x0f\x3a")
PREFIXES = (b"\x66", b"\xf2", b"\xf3", b"\xf0", b"\x67", b"\x2e", b"\x3e", b"\x64")
REX = (b"", b"\x40", b"\x41", b"\x42", b"\x44", b"\x48", b"\x4c", b"\x4f")
ALIGNED = Path(__file__).resolve().parents[1] / "targets" / "aligned.cpp"
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "vector-opcodes"
TAIL = bytes((0x24, 0x82, 0x33, 0x84, 0x55, 0x66, 0x77, 0x88, 0x99, 0xAA, 0xBB, 0xCC, 0xDD, 0xEE))
FIELDS = [field.name for field in fields(FunctionScan)]


def _check(codes: Iterator[bytes]) -> int:
    """Returns how many of the instructions the C core knows."""
    known = 0
    for code in codes:
        said = core_says(code)
        if said is not None:
            known += 1
            assert said == oracle_says(code), code.hex()
            assert not oracle_names(code) & ~core_names(code), code.hex()
    return known


@pytest.mark.parametrize("prefix", [b"", b"\x66", b"\xf2", b"\xf3"], ids=["none", "66", "f2", "f3"])
def test_every_opcode(prefix: bytes) -> None:
    """With every form of operand, without and with REX.W."""
    known = _check(
        (prefix + rex + escape + bytes((opcode, modrm)) + TAIL)[:15]
        for rex in (b"", b"\x48")
        for escape in MAPS
        for opcode in range(256)
        for modrm in range(0, 256, 1 if escape == b"" else 3)
    )
    assert known > 4000


def _random_code(chance: random.Random) -> bytes:
    """Prefixes, an opcode, and anything."""
    prefixes = b"".join(chance.choices(PREFIXES, k=chance.choice((0, 0, 1, 1, 2, 3))))
    return (prefixes + chance.choice(REX) + chance.choice(MAPS) + chance.randbytes(15))[: chance.choice((15, 15, 9, 4))]


def test_random_instructions() -> None:
    known = 0
    for seed in seeds(20):
        chance = random.Random(seed)
        known += _check(_random_code(chance) for _ in range(3000))
        known += _check(chance.randbytes(15) for _ in range(1000))
    assert known > 10_000


def _vector_code(chance: random.Random) -> bytes:
    """A VEX or EVEX prefix, an opcode, ModRM, and anything; the bits that most instructions need are often there."""
    kind, opcode_map, opcode = chance.choice((0xC4, 0xC5, 0x62, 0x62)), chance.choice((1, 2, 3)), chance.randrange(256)
    usual, second = chance.random() < 0.7, chance.randrange(256)
    extensions = chance.choice((0xF0, 0xF0, chance.randrange(256) & 0xF0))
    if usual:
        second |= 0x78  # vvvv is not used
    if kind == 0xC4:
        head = bytes((kind, extensions & 0xE0 | opcode_map, second))
    elif kind == 0xC5:
        head = bytes((kind, second))
    else:
        third = chance.choice((0x08, 0x28, 0x48)) | chance.choice((0, 0, 0x10, 0x81, 0x01, 0x90))
        head = bytes((kind, extensions | opcode_map, second | 4, third if usual else chance.randrange(256)))
    prefix = chance.choice((b"", b"", b"", b"\x64", b"\x66", b"\xf3", b"\x67", b"\x41"))
    return (prefix + head + bytes((opcode,)) + chance.randbytes(10))[: chance.choice((15, 15, 15, 6))]


def test_random_vector_instructions() -> None:
    known = 0
    for seed in seeds(20):
        chance = random.Random(seed)
        known += _check(_vector_code(chance) for _ in range(5000))
    assert known > 3000


@pytest.mark.parametrize("kind", [0xC4, 0x62])
@pytest.mark.parametrize("extensions", [0xE0, 0x00], ids=["low", "high"])
def test_every_vector_opcode(kind: int, extensions: int) -> None:
    """With each prefix, W, length, broadcasts, masks and kinds of operands."""
    known = 0
    lasts = (
        (b"",) if kind == 0xC4 else [bytes((length << 5 | rest,)) for length in range(3) for rest in (8, 0x18, 9, 0x89)]
    )
    for opcode_map, prefix, wide, vvvv, last in product((1, 2, 3), range(4), (0, 0x80), (0x78, 0x48), lasts):
        lengths = (0, 4) if kind == 0xC4 else (4,)
        heads = [
            bytes((kind, extensions | (kind == 0x62) << 4 | opcode_map, wide | vvvv | length | prefix))
            for length in lengths
        ]
        modrms = (0x01, 0x44, 0x85, 0x05, 0xC1, 0xD8, 0xF2)
        known += _check(
            (head + last + bytes((opcode, modrm)) + TAIL)[:15]
            for head in heads
            for opcode in range(256)
            for modrm in modrms
        )
    assert known > 10_000


def _check_head(image: ElfImage, frame: Frame, lengths: tuple[int, ...]) -> None:
    """The first instructions, without endbr64, have these lengths and only go on to the next one."""
    code = image.read(frame.start, frame.size)
    skipped = len(ENDBR) if code.startswith(ENDBR) else 0
    first = list(islice(Decoder(64, code[skipped:]), len(lengths)))
    assert [item.len for item in first] == list(lengths)
    assert all(item.flow_control == FlowControl.NEXT for item in first)
    assert not lengths or sum(lengths) - lengths[-1] < JUMP_BYTES <= sum(lengths)


def _compare(image: ElfImage) -> tuple[int, int]:
    """Compares all functions. Returns their number, and how many the C core knows."""
    frames = image.frames.frames
    scans = Scans(image, frames)
    unknown = set(scans.unknown)
    for index, frame in enumerate(frames):
        _check_head(image, frame, scans.heads[index])
        if index not in unknown:
            rows = [row._replace(address=frame.start + row.address) for row in scans.entry_rows(index)]
            assert tuple(rows) == frame.rules(frame.start + ENTRY_BYTES).rows
            found, expected = scans.at(index), scan_function(image, frame)
            for name in FIELDS:
                assert getattr(found, name) == getattr(expected, name), f"{image.path} {frame.start:#x} {name}"
    return len(frames), len(frames) - len(unknown)


@pytest.mark.parametrize("name", ["libc.so.6", "libz.so.1", "libstdc++.so.6"])
def test_functions_of_libraries(name: str) -> None:
    library = next(Path("/usr/lib").glob(f"*/{name}"))
    functions, known = _compare(ElfImage(str(library), library.read_bytes()))
    assert known > functions * 0.9


@pytest.mark.parametrize("flags", ["-O2", "-O3 -march=skylake-avx512", "-Os", "-O0", "-O2 -fno-plt"])
def test_functions_that_align_their_stack(flags: str, tmp_path: Path) -> None:
    """Compiled ones; the C core judges most of them."""
    library = tmp_path / "aligned.so"
    words = ["g++", "-shared", "-fPIC", *flags.split(), "-o", library, ALIGNED]
    subprocess.run(words, check=True)
    image = ElfImage(str(library), library.read_bytes())
    functions, known = _compare(image)
    assert known > functions / 2
    aligned = [
        frame for frame in image.frames.frames if any(row.register == DEREFERENCED for row in frame.rules().rows)
    ]
    assert len(aligned) > 10


def test_the_header_of_vector_instructions_is_up_to_date() -> None:
    words = [sys.executable, str(SCRIPT), "--check"]
    assert subprocess.run(words, check=False).returncode == 0, "scripts/vector-opcodes"


def test_functions_with_damage() -> None:
    """Code and frame rules of a library, with random bytes among them."""
    library = next(Path("/usr/lib").glob("*/libz.so.1"))
    good = library.read_bytes()
    text, rows = Layout(good).named(".text"), Layout(good).named(".eh_frame")
    known = 0
    for seed in seeds(12):
        chance, data = random.Random(seed), bytearray(good)
        for offset, size in [text] * 400 + [rows] * 3:
            data[offset + chance.randrange(size)] = chance.randrange(256)
        with suppress(NfprobeError):  # it has no frames any more
            known += _compare(ElfImage(f"{library} with seed {seed}", bytes(data)))[1]
    assert known > 100
