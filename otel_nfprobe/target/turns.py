# SPDX-License-Identifier: Apache-2.0
"""Turns: serializes monitors that work on one target at the same time."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from otel_nfprobe.base.errors import EndedError, NfprobeError
from otel_nfprobe.target.target import Target

TURN_PATIENCE_S = 30.0


@contextmanager
def take_turn(target: Target) -> Iterator[None]:
    """Keeps other monitors from injecting into this target or cleaning up in it inside the `with`.

    Raises:
        EndedError: the process has ended.
        NfprobeError: the other monitor does not finish.
    """
    try:
        folder = os.open(f"/proc/{target.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise EndedError.of(target.pid) from error
    try:
        deadline = time.monotonic() + TURN_PATIENCE_S
        while not _try_lock(folder):
            if time.monotonic() > deadline:
                raise NfprobeError(
                    f"Another nfprobe is working on process {target.pid} and does not finish.",
                    f"nfprobe status {target.pid}",
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(folder)


def _try_lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
