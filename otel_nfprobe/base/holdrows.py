# SPDX-License-Identifier: Apache-2.0
"""The dtype of holds (holds.py). Pure; imports nothing of the project."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

HOLD = np.dtype(
    [
        ("start_ticks", "<u8"),
        ("held_ticks", "<u8"),
        ("end_ticks", "<u8"),
        ("thread", "<u4"),
        ("function", "<u4"),
        ("size", "<u4"),
        ("text", "u1", (84,)),
    ]
)
"""As struct nfp_hold. thread: index in the thread table of the thread that held the others; text: the reason."""


def join_holds(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Returns each hold once, sorted by end."""
    holds = np.concatenate([*parts, np.empty(0, HOLD)])
    if not len(holds):
        return holds
    _, first = np.unique(holds["end_ticks"], return_index=True)
    return holds[first]
