# SPDX-License-Identifier: Apache-2.0
"""Kernel places: where in the kernel a thread went to sleep: in which system call, page fault or wait for a thread.

Names stand in the frames of its call chain: that of `sys_fsync` says the call, and the outermost frame inside it that
any file does not have in common, such as `ext4_sync_file`, says what it did. Reads /proc/kallsyms, once, in a thread of
its own: begun with `prepare` while the target is attached, and waited for before recording is enabled. A drain that
waited for it instead would leave the rings to fill.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.linux.kallsyms import read_functions

KEPT_MAX = 4096  # chains whose names are kept
READING_S_MAX = 1.0  # that anyone waits for the names; they take a tenth of a second of CPU time

# The entry of a system call, or what it only jumps to, which has no frame of its own then.
_CALL = compile_late(r"(?:__(?:x64|ia32|arm64|se)(?:_compat)?_sys|ksys|__sys)_(\w+)")
_BODIES = {
    "do_epoll_wait": "epoll_wait",
    "do_sys_poll": "poll",
    "core_sys_select": "select",
    "hrtimer_nanosleep": "nanosleep",
    "do_futex": "futex",
    "kernel_wait4": "wait4",
}
_FAULT = compile_late(r"(asm_)?exc_page_fault|do_user_addr_fault|do_page_fault|do_mem_abort")
_STOPPED = compile_late(r"do_signal_stop|ptrace_stop|do_freezer_trap|exit_to_user_mode_loop|irqentry_exit\w*")
# Between a system call, or a page fault, and what is done for it.
_GENERAL = compile_late(
    r"(__)?(do|se|x64|ksys|vfs|sys|new_sync|kern|exc|asm)_\w+|__\w*sys_\w+|invoke_syscall\w*|el0_svc\w*|handle_mm_fault"
    r"|__handle_mm_fault|sock_(send|recv|read|write)\w*|iter_file_splice_write|.*\.(isra|constprop|part)\..*"
)
# Where it says no more than the call itself.
_SCHEDULER = compile_late(r"(__)?(io_)?schedule(_\w+)?|__traceiter_\w+|perf_\w+|")
_WAITS = ("futex", "futex_wait", "futex_waitv")


class PlaceKind(Enum):
    CALL = "call"
    FAULT = "fault"
    WAIT = "wait"
    STOPPED = "stopped"  # by a signal or a debugger


class KernelPlace(NamedTuple):
    """`call`: the system call, "" in a page fault; `function`: of the kernel, "" if unknown."""

    kind: PlaceKind
    call: str
    function: str


class KernelPlaces:
    """Names of the kernel's functions by address.

    Attributes:
        is_hidden: the addresses are hidden from this user; known once they were needed.
    """

    def __init__(self) -> None:
        self.is_hidden = False
        self._functions: tuple[NDArray[np.uint64], Sequence[str]] | None = None
        self._reading: threading.Thread | None = None
        self._has_waited = False
        self._known: dict[tuple[int, ...], KernelPlace | None] = {}

    def _read(self) -> None:
        functions = read_functions()
        self.is_hidden = not functions[1]
        self._functions = functions

    def prepare(self) -> None:
        """Begins to read the names, at the first call."""
        if self._reading is None:
            self._reading = threading.Thread(target=self._read, name="kallsyms", daemon=True)
            self._reading.start()

    def wait(self) -> None:
        """Waits until the names have been read, at most READING_S_MAX, and only at the first call."""
        self.prepare()
        if not self._has_waited and self._reading is not None:
            self._reading.join(READING_S_MAX)
        self._has_waited = True

    def find(self, frames: Sequence[int]) -> KernelPlace | None:
        """Returns the place of a call chain, the innermost address first; None: it says nothing."""
        self.wait()
        if self._functions is None:
            return None
        addresses, names = self._functions
        if not names:
            return None
        key = tuple(frames)
        if key not in self._known:
            if len(self._known) >= KEPT_MAX:
                self._known.clear()
            places = np.searchsorted(addresses, np.array(frames, np.uint64), side="right") - 1
            self._known[key] = find_place([names[at] if at >= 0 else "" for at in places.tolist()])
        return self._known[key]


@functools.cache
def kernel_places() -> KernelPlaces:
    """Returns those of this process: all its sessions share them."""
    return KernelPlaces()


def find_place(names: Sequence[str]) -> KernelPlace | None:
    """As KernelPlaces.find, of names of functions."""
    for place, name in enumerate(names):
        if _FAULT.fullmatch(name):
            return KernelPlace(PlaceKind.FAULT, "", _find_function(names[:place]))
        found = _CALL.fullmatch(name)
        if call := found[1] if found else _BODIES.get(name):
            kind = PlaceKind.WAIT if call in _WAITS else PlaceKind.CALL
            return KernelPlace(kind, call, _find_function(names[:place]))
        if _STOPPED.fullmatch(name):
            return KernelPlace(PlaceKind.STOPPED, "", "")
    return None


def _find_function(inside: Sequence[str]) -> str:
    found = next((name for name in reversed(inside) if not _GENERAL.fullmatch(name)), "")
    return "" if _SCHEDULER.fullmatch(found) else found
