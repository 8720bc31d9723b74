# SPDX-License-Identifier: Apache-2.0
"""Where trampolines may lie: free memory as the maps of processes show it."""

from __future__ import annotations

from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.probes.arena import GUARD_BYTES, STACK_ROOM_BYTES, find_gaps
from otel_nfprobe.target.target import Mapping

MIB = 1 << 20
LIBRARY = 0x7F2960E00000
STACK = 0x7FFD00000000


def _mapping(start: int, end: int, path: str = "") -> Mapping:
    return Mapping(start, end, "r-xp", 0, "00:00", 0, path)


def _maps(linker_end: int, stack: int = STACK) -> list[Mapping]:
    """A program whose libraries lie among reserved memory without a hole, as those of a Java machine may."""
    return [
        _mapping(0x55AB618C1000, 0x55AB618C5000, "/usr/bin/java"),
        _mapping(0x55AB7C400000, 0x55AB7C450000, "[heap]"),
        _mapping(LIBRARY - 4 * of_host().jump_reach_bytes, LIBRARY),
        _mapping(LIBRARY, LIBRARY + 20 * MIB, "/usr/lib/libjvm.so"),
        _mapping(LIBRARY + 20 * MIB, linker_end, "/usr/lib/ld-linux-x86-64.so.2"),
        _mapping(stack, stack + MIB, "[stack]"),
    ]


def test_the_lower_end_of_the_gap_below_the_stack() -> None:
    """Its upper end is out of reach. Nothing else is free."""
    end = LIBRARY + 30 * MIB + 0x8000  # not where a guard ends
    (address,) = find_gaps(_maps(end), LIBRARY, LIBRARY + 20 * MIB, 16 * MIB)
    assert end + GUARD_BYTES <= address < end + 2 * GUARD_BYTES
    assert address % GUARD_BYTES == 0


def test_a_stack_keeps_room_to_grow() -> None:
    end = LIBRARY + 30 * MIB
    stack = end + STACK_ROOM_BYTES + 17 * MIB
    assert find_gaps(_maps(end, stack), LIBRARY, LIBRARY + 20 * MIB, 16 * MIB)
    assert not find_gaps(_maps(end, stack), LIBRARY, LIBRARY + 20 * MIB, 18 * MIB)


def test_not_where_the_heap_will_begin() -> None:
    """A program that has not allocated yet has none, and it begins anywhere behind the program."""
    program, library = 0x400000, 0x7F0000000000
    maps = [_mapping(program, program + MIB, "/usr/bin/program"), _mapping(library, library + MIB)]
    (address,) = find_gaps(maps, program, program + MIB, 2 * MIB)
    assert address + 2 * MIB + GUARD_BYTES <= program
