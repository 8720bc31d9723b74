# SPDX-License-Identifier: Apache-2.0
"""Direct jumps from function to function of one module, judged for all functions at once.

Most functions need no closer look: whatever jumps reach from them is of the module itself and harmless, and leads to
no circle. Pure: arrays in, arrays out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Functions = NDArray[np.int64]
Marks = NDArray[np.bool_]


def reaching(marked: Marks, sources: Functions, targets: Functions) -> Marks:
    """Functions from which jumps reach a marked one, and these themselves.

    Args:
        marked: one for each function.
        sources: of each jump, the function that it is in.
        targets: of each jump, the function that it leads into.
    """
    found: Marks = marked.copy()
    while True:
        more = sources[found[targets] & ~found[sources]]
        if not len(more):
            return found
        found[more] = True


def circling(count: int, sources: Functions, targets: Functions) -> Marks:
    """Functions that lie on a circle of jumps, or on the way from one to another.

    Args:
        count: of functions.
        sources, targets: as reaching has them.
    """
    while True:
        left, entered = np.zeros((2, count), dtype=np.bool_)
        left[sources] = entered[targets] = True
        kept = left[targets] & entered[sources]
        if kept.all():
            return left & entered
        sources, targets = sources[kept], targets[kept]
