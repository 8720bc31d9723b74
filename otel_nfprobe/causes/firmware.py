# SPDX-License-Identifier: Apache-2.0
"""Firmware: system management interrupts (SMI), in which a machine's firmware takes all its CPUs.

Nothing of the kernel runs meanwhile, so it sees a gap, and knows neither when an SMI was nor how long. Intel's
processors count them, and Linux has the count as the event `msr/smi/` of each CPU. It is read, not sampled: where it
has risen between two readings, a row of the kind FIRMWARE says so. What nothing else explains in that time is then
attributed to the firmware (latency_causes.py). Virtual machines and other processors do not have the event.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.linux.perfring import event_attributes, open_event
from otel_nfprobe.pipeline.absences import ABSENCE, AbsenceKind

DEVICE = "/sys/bus/event_source/devices/msr"
EVENT = "smi"
CPUS_MAX = 64  # counted
_COUNT = struct.Struct("=Q")
_CODE = compile_late(r"event=(0x[0-9a-fA-F]{1,8}|\d{1,8})")


class FirmwareWatch:
    """Counts system management interrupts on some CPUs.

    Args:
        device: folder of the kernel's event source; event: its name there.

    Attributes:
        refusal: why nothing is counted; empty: it is, as far as is known.
    """

    def __init__(self, device: str = DEVICE, event: str = EVENT) -> None:
        self.refusal = ""
        self._type = self._code = 0
        self._descriptors: dict[int, int] = {}  # by CPU
        self._before: dict[int, tuple[int, int]] = {}  # ns, count
        try:
            with open(f"{device}/type", encoding="ascii") as file:
                self._type = int(file.read(32))
            with open(f"{device}/events/{event}", encoding="ascii") as file:
                match = _CODE.search(file.read(256))
            if match is None:
                raise ValueError(event)
            self._code = int(match[1], 0)
        except OSError:
            self.refusal = f"this machine has no event msr/{event}/"
        except ValueError:
            self.refusal = f"the kernel describes msr/{event}/ in another way"

    def follow(self, cpus: Iterable[int]) -> None:
        """Counts on these CPUs from now on, and no longer on others."""
        wanted = frozenset(sorted(set(cpus))[:CPUS_MAX])
        if self.refusal or wanted == self._descriptors.keys():
            return
        for cpu in self._descriptors.keys() - wanted:
            os.close(self._descriptors.pop(cpu))
            self._before.pop(cpu, None)
        try:
            for cpu in wanted - self._descriptors.keys():
                # Nothing can be excluded of it, and it cannot be sampled.
                self._descriptors[cpu] = open_event(event_attributes(self._type, self._code, 0), -1, cpu=cpu)
                self._before[cpu] = self._read(cpu)
        except OSError as error:
            self.close()
            self.refusal = error.strerror or "unknown error"

    def read(self, cpus: Mapping[int, int]) -> Rows:
        """Returns how many there were since the last call, and follows the CPUs.

        Args:
            cpus: by thread.

        Returns:
            rows of dtype ABSENCE whose times are ns, one for each thread on a CPU that had some.
        """
        counted = self._count()
        self.follow(cpus.values())
        rows = np.zeros(len(cpus), ABSENCE)
        found = 0
        for thread, cpu in cpus.items():
            if cpu in counted:
                row = rows[found]
                row["out_ticks"], row["in_ticks"], row["code"] = counted[cpu]
                row["kind"], row["thread"] = AbsenceKind.FIRMWARE, thread
                row["from_cpu"] = row["to_cpu"] = cpu
                found += 1
        return rows[:found]

    def _count(self) -> dict[int, tuple[int, int, int]]:
        """Returns begin and end, in ns, and by how much the count has risen, of CPUs where it has."""
        counted = {}
        try:
            for cpu in self._descriptors:
                before, now = self._before[cpu], self._read(cpu)
                self._before[cpu] = now
                if now[1] > before[1]:
                    counted[cpu] = (before[0], now[0], min(now[1] - before[1], 0xFFFFFFFF))
        except OSError as error:
            self.close()
            self.refusal = error.strerror or "unknown error"
        return counted

    def _read(self, cpu: int) -> tuple[int, int]:
        content = os.read(self._descriptors[cpu], _COUNT.size)
        if len(content) != _COUNT.size:  # the CPU has gone offline
            return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), 0
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), _COUNT.unpack(content)[0]

    @property
    def followed(self) -> Collection[int]:
        """CPUs that are counted on."""
        return self._descriptors.keys()

    def close(self) -> None:
        """Stops counting."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._before.clear()


class FirmwareTime:
    """The rows of the kind FIRMWARE of one drain or recording; false if there are none.

    Args:
        absences: of dtype ABSENCE, in any order; None: not recorded.
    """

    def __init__(self, absences: Rows | None) -> None:
        self._rows = np.empty(0, ABSENCE) if absences is None else absences[absences["kind"] == AbsenceKind.FIRMWARE]

    def __bool__(self) -> bool:
        return len(self._rows) > 0

    def count(self, thread: int, start_ticks: int, end_ticks: int) -> int:
        """Returns how many there were in the thread's intervals that overlap with [start, end]."""
        rows = self._rows[self._rows["thread"] == thread]
        overlapping = (rows["in_ticks"] > max(start_ticks, 0)) & (rows["out_ticks"] < max(end_ticks, 0))
        return int(rows["code"][overlapping].astype(np.int64).sum())
