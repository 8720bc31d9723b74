# SPDX-License-Identifier: Apache-2.0
"""The rows of holds, as columns.py has them (holds.py). Pure; imports nothing of the project."""

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
"""As struct nfp_hold. thread: of the one that held the others, its index in the thread table; text: what for."""


def join_holds(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Each hold once, by rising end."""
    holds = np.concatenate([*parts, np.empty(0, HOLD)])
    if not len(holds):
        return holds
    _, first = np.unique(holds["end_ticks"], return_index=True)
    return holds[first]
