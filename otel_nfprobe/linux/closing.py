# SPDX-License-Identifier: Apache-2.0
"""Closing: perf events are closed while nobody waits for it.

The last user of a tracepoint waits in `close` until no CPU is in it any more: 25 to 50 ms for each, one after the
other, 0.7 s for all of a session's on a quiet machine. So a thread of its own closes them. What it has not come to at
the end of this process is left to another process, which has the descriptors, too: that one is the last user and waits.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress

from otel_nfprobe._core import lib

_HOLDER = "import os; os.read(0, 1)  # nfprobe: closes perf events when its parent has ended"

_waiting: list[int] = []  # descriptors of stopped events
_is_closing = False  # there is a thread that closes them
_turn = threading.Lock()


def close_events(descriptors: Collection[int]) -> None:
    """Stops perf events at once, and closes their descriptors while the caller goes on."""
    global _is_closing
    for descriptor in descriptors:
        with suppress(OSError):
            fcntl.ioctl(descriptor, lib.PERF_EVENT_IOC_DISABLE, 0)
    with _turn:
        _waiting.extend(descriptors)
        if _is_closing:
            return
        _is_closing = True
    # A daemon, since the end of the process must not wait for it.
    closing = threading.Thread(target=_close_waiting, name="nfprobe-close", daemon=True)
    try:
        closing.start()
    except RuntimeError:  # there may be no more threads
        _close_waiting()


def _close_waiting() -> None:
    global _is_closing
    while True:
        with _turn:
            if not _waiting:
                _is_closing = False
                return
            descriptor = _waiting.pop()
        os.close(descriptor)


@atexit.register
def _leave_to_another() -> None:
    with _turn:
        descriptors = tuple(_waiting)
        _waiting.clear()
    if not descriptors:
        return
    with suppress(OSError):  # else the end of this process closes them, and waits
        reading, _ = os.pipe()  # its other end is closed with this process
        words = [sys.executable, "-I", "-S", "-c", _HOLDER]
        holder = subprocess.Popen(
            words,
            stdin=reading,
            stdout=subprocess.DEVNULL,  # whoever reads this process's output sees its end
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=descriptors,
            start_new_session=True,
        )
        holder.returncode = 0  # nobody waits for it
        for descriptor in descriptors:
            os.close(descriptor)
