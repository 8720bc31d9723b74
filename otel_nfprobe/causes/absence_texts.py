# SPDX-License-Identifier: Apache-2.0
"""Absence texts: what the kernel's numbers in rows of absences mean: files, control groups, system calls, wakers.

Numbers are looked up shortly after the row ended, so that a process or descriptor is mostly still there; what is not
there any more is left out. A task is believed to be the one of the row only if it has the same name. Lookups are
bounded for each read and kept for a while.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.linux.kernelplaces import KernelPlaces, PlaceKind
from otel_nfprobe.pipeline.absences import INTERRUPTS, AbsenceKind, name_interrupt

LOOKUPS_MAX = 64  # of files in /proc, each read
KEPT_S, KEPT_MAX = 2.0, 1024
MAPS_BYTES_MAX = 1 << 20
WITH_DESCRIPTOR = frozenset(
    (
        "read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2",
        "fsync", "fdatasync", "sync_file_range", "fallocate", "ftruncate", "recvfrom", "sendto", "recvmsg",
        "sendmsg", "recvmmsg", "sendmmsg", "accept", "accept4", "connect", "ioctl", "flock", "getdents64",
        "splice", "sendfile", "fstat", "newfstat", "copy_file_range",
    )
)  # fmt: skip
"""System calls whose first argument is a descriptor on which they can sleep."""

_RANGE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)$", re.MULTILINE)


class AbsenceTexts:
    """Fills in `kind`, `flags`, `name`, `text` and `waker_name` of rows (struct nfp_absence).

    Args:
        places: of the kernel.
    """

    def __init__(self, places: KernelPlaces) -> None:
        self._places = places
        self._kept: dict[tuple[str, int, str | int], tuple[float, str]] = {}
        self._left = LOOKUPS_MAX

    def fill(self, rows: Rows, tids: np.ndarray, sleeps: Any) -> None:
        """Changes rows in place.

        Args:
            tids: of their threads, in this process's PID namespace.
            sleeps: struct nfp_sleep[] that the rows refer to.
        """
        self._left = LOOKUPS_MAX
        for at in np.flatnonzero(rows["sleep"]).tolist():
            self._name_sleep(rows[at], int(tids[at]), sleeps[int(rows["sleep"][at]) - 1])
        rows["sleep"] = 0
        is_major = (rows["kind"] == AbsenceKind.FAULT) & ((rows["flags"] & lib.NFP_ABSENCE_MAJOR) != 0)
        for at in np.flatnonzero(is_major & (rows["address"] != 0)).tolist():
            rows["text"][at] = _tail(self._find_mapping(int(tids[at]), int(rows["address"][at])))
        for at in np.flatnonzero((rows["waker"] != 0) | (rows["woken_ns"] != 0)).tolist():
            self._name_waker(rows, at)
        is_other = (rows["kind"] == AbsenceKind.SWITCH) & ((rows["flags"] & lib.NFP_ABSENCE_PREEMPTED) != 0)
        for at in np.flatnonzero(is_other & (rows["code"] != 0) & (rows["part_ns"] != 0)).tolist():
            rows["text"][at] = _tail(self._find_group(int(rows["code"][at]), rows["name"][at]))

    def _name_sleep(self, row: np.void, tid: int, sleep: Any) -> None:
        place = self._places.find([sleep.frames[i] for i in range(sleep.count)])
        if place is None:
            return
        if place.kind == PlaceKind.STOPPED:
            row["flags"] |= lib.NFP_ABSENCE_STOPPED
            return
        row["kind"] = _KINDS[place.kind]
        row["code"], row["part_ns"], row["name"] = 0, 0, place.call.encode()[: lib.NFP_ABSENCE_NAME_BYTES - 1]
        if place.kind == PlaceKind.FAULT:
            row["flags"] |= lib.NFP_ABSENCE_MAJOR
            return
        row["address"] = sleep.argument
        file = self._find_file(tid, int(sleep.argument)) if place.call in WITH_DESCRIPTOR else ""
        function = place.function.encode()[: lib.NFP_ABSENCE_NAME_BYTES * 2]
        row["text"] = b", ".join(part for part in (function, _tail(file, len(function) + 2)) if part)

    def _name_waker(self, rows: Rows, at: int) -> None:
        row = rows[at]
        if row["flags"] & lib.NFP_ABSENCE_WOKEN_BY_INTERRUPT:
            others = (rows["event"] == row["event"]) & np.isin(rows["kind"], INTERRUPTS)
            others &= (rows["out_ns"] <= row["woken_ns"]) & (rows["in_ns"] >= row["woken_ns"])
            names = [name_interrupt(other) for other in rows[others][:1]]
            row["waker_name"] = (
                (names[0] if names else "").removeprefix("interrupt ").encode()[: lib.NFP_ABSENCE_WAKER_BYTES - 1]
            )
            return
        row["waker_name"] = self._find_name(int(row["waker"]))

    def _find_name(self, tid: int) -> bytes:
        name = self._look("comm", tid, "", lambda: _read(f"/proc/{tid}/comm", 64).rstrip("\n"))
        return name.encode("utf-8", "surrogateescape")

    def _find_file(self, tid: int, descriptor: int) -> str:
        if descriptor > 1 << 30:
            return ""
        return self._look("fd", tid, descriptor, lambda: os.readlink(f"/proc/{tid}/fd/{descriptor}"))

    def _find_mapping(self, tid: int, address: int) -> str:
        text = self._look("maps", tid, "", lambda: _read(f"/proc/{tid}/maps", MAPS_BYTES_MAX))
        for found in _RANGE.finditer(text.encode("utf-8", "surrogateescape")):
            if int(found[1], 16) <= address < int(found[2], 16):
                return found[3].decode("utf-8", "surrogateescape") or "anonymous memory"
        return ""

    def _find_group(self, tid: int, name: bytes) -> str:
        """Returns the control group of a task that still has this name; "" where it is the root."""

        def read() -> str:
            if _read(f"/proc/{tid}/comm", 64).rstrip("\n").encode("utf-8", "surrogateescape") != name:
                return ""
            lines = [line.split(":", 2) for line in _read(f"/proc/{tid}/cgroup", 4096).splitlines()]
            paths = {line[1]: line[2] for line in lines if len(line) == 3}
            return paths.get("", "").removesuffix("/") or paths.get("cpu,cpuacct", paths.get("cpu", "")).rstrip("/")

        return self._look("group", tid, name.decode("utf-8", "surrogateescape"), read)

    def _look(self, what: str, tid: int, key: str | int, read: Callable[[], str]) -> str:
        now = time.monotonic()
        known = self._kept.get((what, tid, key))
        if known is not None and known[0] > now:
            return known[1]
        if self._left <= 0:
            return ""
        self._left -= 1
        try:
            found = read()
        except (OSError, ValueError):
            found = ""
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[what, tid, key] = (now + KEPT_S, found)
        return found


_KINDS = {
    PlaceKind.FAULT: AbsenceKind.FAULT,
    PlaceKind.CALL: AbsenceKind.CALL,
    PlaceKind.WAIT: AbsenceKind.WAIT,
}


def _read(path: str, most: int) -> str:
    with open(path, "rb") as file:
        return file.read(most).decode("utf-8", "surrogateescape")


def _tail(text: str, used: int = 0) -> bytes:
    """Returns the last bytes that fit beside so many others: the end of a path says more than its beginning."""
    room, data = lib.NFP_ABSENCE_TEXT_BYTES - 1 - used, text.encode("utf-8", "surrogateescape")
    return data if len(data) <= room else b"..." + data[len(data) - room + 3 :] if room > 3 else b""
