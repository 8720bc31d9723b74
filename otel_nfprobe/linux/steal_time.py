# SPDX-License-Identifier: Apache-2.0
"""Steal time: how long the hypervisor kept a virtual machine's processors from running, as counted by the kernel.

Where a thread's run times leave it out, its own steal time is known (pipeline/absences.py); elsewhere the delay of a
packet is attributed to the function that was running. A session reports the total of all processors beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

PROCESSORS = "/proc/stat"
_IDLE, _WAITING, _STOLEN, _COLUMNS = 3, 4, 7, 8  # proc_stat(5)


class StolenTime:
    """Steal time since the creation of this object.

    Args:
        path: a file like /proc/stat.
    """

    def __init__(self, path: str = PROCESSORS) -> None:
        self._path = path
        self._begin = self._read()

    def describe(self) -> dict[str, Any]:
        """Returns it for the summary: `ns` over all processors, and its `share` of their non-idle time.

        The kernel counts in clock ticks (mostly 10 ms). Both are 0 if it reports none.
        """
        spent = [max(0, now - then) for now, then in zip(self._read(), self._begin, strict=True)]
        wanted = sum(spent) - spent[_IDLE] - spent[_WAITING]
        share = spent[_STOLEN] / wanted if wanted else 0.0
        return {"ns": spent[_STOLEN] * 1_000_000_000 // os.sysconf("SC_CLK_TCK"), "share": round(share, 6)}

    def _read(self) -> Sequence[int]:
        try:
            with open(self._path, encoding="ascii") as file:
                columns = [int(word) for word in file.readline().split()[1 : 1 + _COLUMNS]]
        except (OSError, ValueError):
            columns = []
        return columns if len(columns) == _COLUMNS else [0] * _COLUMNS
