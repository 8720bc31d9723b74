# SPDX-License-Identifier: Apache-2.0
"""The filter interpreter against the kernel, and what is made of a filter's answer."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import struct
from pathlib import Path

import pytest

from otel_nfprobe.arch.code_facts import Call, Need
from otel_nfprobe.arch.x86_64.calls import injection_calls
from otel_nfprobe.linux.bpf import FilterError, Instruction, SystemCall, run_filter
from otel_nfprobe.probes.preflight import first_forbidden, judge
from tests.support.filters import ALLOW, KILL_PROCESS, answer, install

GETPID = 39
LOAD_NUMBER = Instruction(0x20, 0, 0, 0)
ALLOW_OTHERS = (LOAD_NUMBER, Instruction(0x15, 1, 0, GETPID), Instruction(0x06, 0, 0, ALLOW))
ARGUMENT_WORDS = range(16, 64, 4)
ARITHMETIC = (0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0xA4)  # with a constant; + 8: with the index register
COMPARISONS = (0x15, 0x25, 0x35, 0x45)
PROGRAMS = 60


def constant(action: int) -> tuple[Instruction, ...]:
    return (Instruction(0x06, 0, 0, action),)


def random_program(chance: random.Random) -> list[Instruction]:
    """Computes something from the arguments of getpid and answers it as errno; lets other calls through."""
    body = [Instruction(0x02, 0, 0, word) for word in range(4)]  # the kernel wants scratch words written first
    for _ in range(chance.randrange(4, 30)):
        value = chance.getrandbits(chance.choice((3, 8, 32)))
        kind = chance.randrange(8)
        if kind == 0:
            body.append(Instruction(0x20, 0, 0, chance.choice(ARGUMENT_WORDS)))
        elif kind == 1:
            body.append(chance.choice((Instruction(0x07, 0, 0, 0), Instruction(0x87, 0, 0, 0))))
        elif kind == 2:
            body.append(Instruction(chance.choice((0x60, 0x61, 0x02, 0x03)), 0, 0, chance.randrange(4)))
        elif kind == 3:
            body.append(Instruction(chance.choice((0x00, 0x01)), 0, 0, value))
        elif kind == 4:
            body.append(Instruction(chance.choice((0x80, 0x81, 0x84)), 0, 0, 0))
        elif kind == 5:
            code = chance.choice(COMPARISONS) + chance.choice((0, 8))
            body.append(Instruction(code, chance.randrange(3), chance.randrange(3), value))
        else:
            code = chance.choice(ARITHMETIC)
            value = value % 31 if code in (0x64, 0x74) else value or 1
            # A shift by 32 or more is not defined in the kernel, a division by a register may be by zero.
            code += chance.choice((0, 8)) if code not in (0x64, 0x74, 0x34) else 0
            body.append(Instruction(code, 0, 0, value))
    body += [Instruction(0x05, 0, 0, 0)] * 2  # where the last jumps may lead
    end = [Instruction(0x54, 0, 0, 0x3FF), Instruction(0x44, 0, 0, answer(0)), Instruction(0x16, 0, 0, 0)]
    return [*ALLOW_OTHERS, *body, *end]


def ask_kernel(program: list[Instruction], arguments: tuple[int, ...], folder: Path) -> int:
    """errno of getpid under the filter, in a child process."""
    path = folder / "filter"
    path.write_bytes(b"".join(struct.pack("<HBBI", *instruction) for instruction in program))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            install(path)
            libc = ctypes.CDLL(None, use_errno=True)
            result = libc.syscall(ctypes.c_long(GETPID), *(ctypes.c_ulong(argument) for argument in arguments))
            os.write(writer, str(ctypes.get_errno() if result == -1 else 0).encode())
        except AssertionError as error:
            os.write(writer, f"refused {error}".encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as text:
        said = text.read()
    os.waitpid(child, 0)
    assert said.isdigit(), f"{said}: {program}"
    return int(said)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_as_the_kernel_runs_it(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    program = random_program(chance)
    arguments = tuple(chance.getrandbits(chance.choice((4, 32, 64))) for _ in range(6))
    word = run_filter(program, SystemCall(GETPID, arguments))
    assert word & 0xFFFF0000 == answer(0)
    assert word & 0xFFFF == ask_kernel(program, arguments, tmp_path)


@pytest.mark.parametrize(
    "program",
    [
        (),
        (Instruction(0x05, 0, 0, 0xFFFFFFFF),),
        (Instruction(0x20, 0, 0, 62), Instruction(0x06, 0, 0, ALLOW)),
        (Instruction(0x20, 0, 0, 64), Instruction(0x06, 0, 0, ALLOW)),
        (Instruction(0x60, 0, 0, 16), Instruction(0x06, 0, 0, ALLOW)),
        (Instruction(0xB4, 0, 0, 1), Instruction(0x06, 0, 0, ALLOW)),
        (Instruction(0x55, 9, 9, 1), Instruction(0x06, 0, 0, ALLOW)),
    ],
)
def test_a_malformed_program_counts_as_one_that_kills(program: tuple[Instruction, ...]) -> None:
    with pytest.raises(FilterError):
        run_filter(program, SystemCall(0, ()))
    assert judge([program], SystemCall(0, ())).action == KILL_PROCESS


def test_random_bytes_end_in_an_action_or_an_error() -> None:
    chance = random.Random(4)
    for _ in range(3000):
        raw = chance.randbytes(8 * chance.randrange(1, 40))
        program = [Instruction(*struct.unpack_from("<HBBI", raw, at)) for at in range(0, len(raw), 8)]
        try:
            assert 0 <= run_filter(program, SystemCall(chance.randrange(500), (1, 2, 3))) < 1 << 32
        except FilterError:
            continue


@pytest.mark.parametrize(
    ("actions", "strongest"),
    [
        ((ALLOW, answer(errno.EPERM)), answer(0)),
        ((0, answer(errno.EPERM), ALLOW), 0),
        ((0, KILL_PROCESS), KILL_PROCESS),
        ((0x00030000, answer(1)), 0x00030000),
        ((0x7FC00000, ALLOW), 0x7FC00000),
        ((0x12340000,), KILL_PROCESS),  # unknown actions kill
    ],
)
def test_the_strongest_action_counts(actions: tuple[int, ...], strongest: int) -> None:
    for order in (actions, actions[::-1]):
        assert judge([constant(action) for action in order], SystemCall(0, ())).action == strongest


def test_what_a_call_can_live_with() -> None:
    def forbids(action: int, need: Need) -> bool:
        return judge([constant(action)], SystemCall(0, ())).forbids(Call("x", 0, (), need))

    for action in (ALLOW, 0x7FFC0000):
        assert not any(forbids(action, need) for need in Need)
    for action in (0, KILL_PROCESS, 0x00030000):
        assert all(forbids(action, need) for need in Need)
    assert forbids(answer(errno.EPERM), Need.ESSENTIAL)
    assert forbids(answer(errno.EPERM), Need.OR_ENOSYS)
    assert not forbids(answer(errno.ENOSYS), Need.OR_ENOSYS)
    assert not forbids(0x7FF00000, Need.OR_ENOSYS)  # SECCOMP_RET_TRACE without a tracer answers ENOSYS
    assert not forbids(answer(errno.EPERM), Need.OPTIONAL)
    assert forbids(0x7FC00000, Need.ESSENTIAL)


def test_the_first_forbidden_call_is_named() -> None:
    calls = injection_calls(False, True)
    assert first_forbidden([constant(ALLOW)], calls) is None
    found = first_forbidden([constant(answer(errno.EACCES))], calls)
    assert found is not None
    assert found[0] is calls[0]
    assert found[1].describe() == "answers EACCES to"
