# SPDX-License-Identifier: Apache-2.0
"""The two BPF programs of a measured kernel function. Pure.

    entry: is it our process? -> starts[key] = now
    exit:  is it our process? -> now - starts[key], and the thread, into the ring

The key of a function call is the address at which the kernel keeps its arguments for programs: the same at entry and
exit, and distinct for each concurrent call. So recursive calls and calls inside interrupts pair exactly, and entries
whose exit never came are overwritten. The key of a system call is its thread, which makes one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_nfprobe.kernel.assembler import (
    JUMP_DIFFERENT,
    JUMP_DIFFERENT_WORD,
    JUMP_EQUAL,
    MAP,
    Assembler,
)

# BPF helper functions (enum bpf_func_id).
LOOKUP, UPDATE, DELETE, NOW_NS, CURRENT, CURRENT_IN_NAMESPACE, OUTPUT = 1, 2, 3, 5, 14, 120, 130
NO_WAKEUP = 1  # for OUTPUT: the reader polls
RECORD_BYTES = 16

# Offsets of the words in the counts' value.
ENTERED, LEFT, LOST, CROWDED = 0, 8, 16, 24
COUNT_BYTES = 32

# Offsets in the stack frame.
_WHO, _WHO_PROCESS, _KEY, _START, _DURATION, _THREAD = -8, -4, -16, -24, -40, -32


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose calls are measured.

    Attributes:
        pid: in the process's own PID namespace.
        device, inode: of its PID namespace, /proc/PID/ns/pid, as in the kernel.
    """

    pid: int
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Maps:
    """Descriptors of the maps shared by both programs."""

    starts: int
    counts: int
    ring: int


def write_entry(maps: Maps, whose: Whose | None, system_call: int | None = None) -> bytes:
    """Assembles the program at the entry.

    Args:
        whose: None: all processes.
        system_call: its number, for the tracepoint sys_enter; None: for a function's entry.
    """
    code = Assembler()
    code.copy(6, 1)
    if system_call is not None:
        code.load(1, 6, 8)  # arguments of sys_enter: registers, number
        code.jump("out", JUMP_DIFFERENT, 1, system_call)
    _filter(code, whose)
    code.store(10, _KEY, 6 if system_call is None else 9)
    code.clear(10, _START)
    _point(code, maps.starts, _KEY)
    code.address(3, _START)
    code.move(4, 0)
    code.call(UPDATE)
    code.jump("crowded", JUMP_DIFFERENT, 0, 0)
    _point(code, maps.starts, _KEY)
    code.call(LOOKUP)
    code.jump("out", JUMP_EQUAL, 0, 0)
    code.copy(7, 0)
    code.count(maps.counts, ENTERED)
    code.call(NOW_NS)
    code.store(7, 0, 0)
    code.leave()
    code.label("crowded")
    code.count(maps.counts, CROWDED)
    code.label("out")
    code.leave()
    return code.assemble()


def write_exit(maps: Maps, whose: Whose | None, system_call: int | None = None) -> bytes:
    """Assembles the program at the exit; for a system call, at the tracepoint sys_exit."""
    code = Assembler()
    code.copy(6, 1)
    _filter(code, whose)
    code.call(NOW_NS)
    code.copy(7, 0)
    code.store(10, _KEY, 6 if system_call is None else 9)
    _point(code, maps.starts, _KEY)
    code.call(LOOKUP)
    code.jump("out", JUMP_EQUAL, 0, 0)  # another system call, or entered before the probes were attached
    code.load(8, 0, 0)
    code.subtract(7, 8)
    code.store(10, _DURATION, 7)
    code.store(10, _THREAD, 9)
    _point(code, maps.starts, _KEY)
    code.call(DELETE)
    code.count(maps.counts, LEFT)
    _point(code, maps.ring, _DURATION)
    code.move(3, RECORD_BYTES)
    code.move(4, NO_WAKEUP)
    code.call(OUTPUT)
    code.jump("out", JUMP_EQUAL, 0, 0)
    code.count(maps.counts, LOST)
    code.label("out")
    code.leave()
    return code.assemble()


def _filter(code: Assembler, whose: Whose | None) -> None:
    """Skips other processes; leaves the thread ID in register 9."""
    if whose is None:
        code.call(CURRENT)
        code.copy(9, 0)
        return
    code.clear(10, _WHO)
    code.wide(1, whose.device)
    code.wide(2, whose.inode)
    code.address(3, _WHO)
    code.move(4, 8)
    code.call(CURRENT_IN_NAMESPACE)
    code.jump("out", JUMP_DIFFERENT, 0, 0)  # it is in another PID namespace
    code.load(1, 10, _WHO_PROCESS, is_word=True)
    code.jump("out", JUMP_DIFFERENT_WORD, 1, whose.pid)
    code.load(9, 10, _WHO, is_word=True)


def _point(code: Assembler, map_descriptor: int, place: int) -> None:
    """Loads a map and a stack slot as the first two arguments."""
    code.wide(1, map_descriptor, MAP)
    code.address(2, place)
