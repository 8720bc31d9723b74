# SPDX-License-Identifier: Apache-2.0
"""Budget: limits the share of a core that probes may consume.

Once a second, the calls of each function are multiplied by the cost of a probed call, as calibrated in the target; what
the probes' C code took is added as the threads timed it (snapshot.py).
Above the budget, the most expensive functions lose their probes, but never those that receive, transmit or drop; if
these alone exceed it, the session ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.calibration import costs_by_id

LOOK_S = 1.0
ROOM = 0.8  # target share of the budget, so that the next second does not exceed it again
NAMES_MAX = 3


@dataclass
class Budget:
    """Keeps one session within a share of a core.

    Attributes:
        share: 0.05 is 5 % of one core.
        thinned: functions that lost their probes.
        exceeded: the session was ended.
    """

    share: float
    notify: Callable[[str], None]
    thinned: int = 0
    exceeded: bool = False
    _calls: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _code_ticks: float = 0.0
    _looked_at: float = 0.0

    def step(self, monitor: Monitor) -> None:
        """Checks the budget; called often by the draining thread."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_S or self.exceeded:
            return
        elapsed_s = now - max(self._looked_at, monitor.started_at)
        self._looked_at = now
        if elapsed_s < LOOK_S / 2:
            return
        calls = monitor.drain.statistics.call_counts().astype(np.float64)
        fresh = calls.copy()
        fresh[: len(self._calls)] -= self._calls
        self._calls = calls
        costs = costs_by_id(monitor.attachment.probes, monitor.attachment.costs)["whole_ticks"]
        count = min(len(fresh), len(costs))
        spent = fresh[:count] * costs[:count] / (elapsed_s * monitor.drain.clock.ticks_per_second)
        ticks = monitor.snapshot().code_ticks
        code = (ticks - self._code_ticks) / (elapsed_s * monitor.drain.clock.ticks_per_second)
        self._code_ticks = ticks
        if spent.sum() + code > self.share:
            self._thin(monitor, spent, max(0.0, code))

    def _thin(self, monitor: Monitor, spent: NDArray[np.float64], code: float) -> None:
        attachment = monitor.attachment
        roles = attachment.roles_by_id()[: len(spent)]
        inner = np.flatnonzero((roles == 0) & (spent > 0))
        order = inner[np.argsort(-spent[inner])]
        left = spent.sum() + code - np.cumsum(spent[order])
        enough = int(np.searchsorted(-left, -self.share * ROOM)) + 1
        chosen = order[:enough]
        before = f"Probes took {spent.sum() + code:.1%} of a core, more than {self.share:.1%}"
        if len(order) == 0 or left[len(chosen) - 1] > self.share:
            self.exceeded = True
            self.notify(f"{before}, and those that must stay exceed it alone: the session ends.")
            attachment.stopping.set()
            return
        attachment.follower.take_out(chosen.tolist())
        self.thinned += len(chosen)
        names = attachment.names_by_id()
        listed = ", ".join(names[index] for index in chosen[:NAMES_MAX]) + (", ..." if len(chosen) > NAMES_MAX else "")
        self.notify(f"{before}: {len(chosen)} functions are no longer probed ({listed}).")
