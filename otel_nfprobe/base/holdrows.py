# SPDX-License-Identifier: Apache-2.0
"""The dtype of holds (holds.py). Pure; imports nothing of the project."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.layouts import dtype_of

HOLD = dtype_of("nfp_hold")
"""thread: of the one that held the others, its index in the thread table; text: what for."""


def join_holds(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Returns each hold once, sorted by end."""
    held = [part for part in parts if len(part)]
    if not held:
        return np.empty(0, HOLD)
    holds = np.concatenate(held)
    _, first = np.unique(holds["end_ticks"], return_index=True)
    return holds[first]
