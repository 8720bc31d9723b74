# SPDX-License-Identifier: Apache-2.0
"""Runs a monitor in a child process that is another user with few capabilities."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable, Iterable

from otel_nfprobe.elf.elfparser import parser

NOBODY = 65534
PR_SET_DUMPABLE, PR_SET_KEEPCAPS = 4, 8
CAPABILITY_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
NUMBERS = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_CHECKPOINT_RESTORE": 40,
}


def run_as(user: int, capabilities: Iterable[str], work: Callable[[], str]) -> str:
    """What `work` returned, or the error that it raised, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            parser.start()  # the tests' Python may lie where that user cannot read
            become(user, capabilities)
            answer = work()
        except BaseException:
            answer = traceback.format_exc()
        os.write(writer, answer.encode()[:60000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as text:
        answer = text.read()
    os.waitpid(child, 0)
    return answer


def become(user: int, capabilities: Iterable[str]) -> None:
    """Changes this process for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    mask = sum(1 << NUMBERS[name] for name in capabilities)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    sets = (ctypes.c_uint32 * 6)(low, low, low, high, high, high)
    assert libc.capset(header, sets) == 0, os.strerror(ctypes.get_errno())
    assert libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
