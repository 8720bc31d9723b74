# SPDX-License-Identifier: Apache-2.0
"""The dynamic linker's list is the target's: torn, looped or random, it must be read in bounded time."""

from __future__ import annotations

import contextlib
import random
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.linkmap import NODES_MAX, LinkMap

DEBUG = 0x1000
WORD_MAX = 1 << 64


class Memory:
    """A target that has a dynamic linker and these words; all else is unmapped."""

    pid = 1

    def __init__(self, words: dict[int, int]) -> None:
        self.words = words
        self.reads = 0

    def modules(self) -> list[Any]:
        exports = {"_r_debug": SimpleNamespace(address=DEBUG)}
        return [
            SimpleNamespace(
                is_dynamic_linker=True, is_musl=False, base=0, image=SimpleNamespace(find_export=exports.get)
            )
        ]

    def read(self, address: int, size: int) -> bytes:
        self.reads += 1
        words = range(address, address + size, 8)
        if any(word not in self.words for word in words):
            raise NfprobeError("not mapped")
        return b"".join(struct.pack("<Q", self.words[word]) for word in words)

    def read_word(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")


def debug_words(first: int, version: int = 1, state: int = 0, following: int = 0) -> dict[int, int]:
    return dict(zip(range(DEBUG, DEBUG + 48, 8), (version, first, 0, state, 0, following), strict=True))


def node_words(address: int, base: int, following: int) -> dict[int, int]:
    return dict(zip(range(address, address + 40, 8), (base, 0, base + 8, following, 0), strict=True))


def read(words: dict[int, int]) -> tuple[bool, object]:
    return LinkMap(Memory(words)).read()  # type: ignore[arg-type]


def test_another_module_is_another_value() -> None:
    one = {**debug_words(0x2000), **node_words(0x2000, 0x10000, 0)}
    two = {**debug_words(0x2000), **node_words(0x2000, 0x10000, 0x3000), **node_words(0x3000, 0x20000, 0)}
    assert read(one) == read(dict(one))
    assert read(one) != read(two)
    assert read(one)[0]
    assert not read({**one, **debug_words(0x2000, state=1)})[0]


def test_other_namespaces_count() -> None:
    words = {**debug_words(0x2000, 2, 0, 0x4000), **node_words(0x2000, 0x10000, 0)}
    words |= {address - DEBUG + 0x4000: value for address, value in debug_words(0x3000, 2).items()}
    words |= node_words(0x3000, 0x30000, 0)
    more = {**words, **node_words(0x3000, 0x30000, 0x5000), **node_words(0x5000, 0x50000, 0)}
    assert read(words) != read(more)


def test_a_program_has_started_when_its_linker_is_at_rest() -> None:
    def has_started(words: dict[int, int]) -> bool:
        return LinkMap(Memory(words)).has_started()  # type: ignore[arg-type]

    assert has_started(debug_words(0x2000))
    assert not has_started(debug_words(0x2000, state=1))  # it loads, or relocates
    assert not has_started(debug_words(0x2000, version=0))
    assert not has_started(debug_words(0))
    with pytest.raises(NfprobeError):
        has_started({})


def test_loops_end() -> None:
    words = {**debug_words(0x2000, 2, 0, DEBUG), **node_words(0x2000, 1, 0x3000), **node_words(0x3000, 2, 0x2000)}
    memory = Memory(words)
    LinkMap(memory).read()  # type: ignore[arg-type]
    assert memory.reads < 100


def test_an_endless_list_is_cut() -> None:
    words = debug_words(0x2000)
    for number in range(2 * NODES_MAX):
        words |= node_words(0x2000 + number * 64, number, 0x2000 + (number + 1) * 64)
    memory = Memory(words)
    LinkMap(memory).read()  # type: ignore[arg-type]
    assert memory.reads <= NODES_MAX + 2


def test_unmapped_pointers_are_refused() -> None:
    for first in (0x9999, WORD_MAX - 1, 1):
        with pytest.raises(NfprobeError):
            read(debug_words(first))


def test_random_words() -> None:
    """Ends, with an answer or with the one kind of error, whatever the words are."""
    rng = random.Random(4)
    for _ in range(300):
        places = [DEBUG, *(0x2000 + 8 * rng.randrange(64) for _ in range(20))]
        words = {}
        for place in range(DEBUG, 0x2400, 8):
            words[place] = rng.choice([0, 1, 2, rng.randrange(WORD_MAX), *places])
        memory = Memory(words)
        with contextlib.suppress(NfprobeError):
            LinkMap(memory).read()  # type: ignore[arg-type]
        assert memory.reads <= 20 * (NODES_MAX + 2)
