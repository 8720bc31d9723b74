# SPDX-License-Identifier: Apache-2.0
"""Jump graph: direct jumps between functions of one module, judged for all functions at once.

Most functions need no closer analysis: everything that jumps reach from them is in the module itself and harmless, and
leads to no cycle. Pure: arrays in, arrays out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Functions = NDArray[np.int64]
Marks = NDArray[np.bool_]


def reaching(marked: Marks, sources: Functions, targets: Functions) -> Marks:
    """Returns the functions from which jumps reach a marked one, and the marked ones.

    Args:
        marked: one entry per function.
        sources: per jump, the function that contains it.
        targets: per jump, the function that it leads into.
    """
    found: Marks = marked.copy()
    while True:
        more = sources[found[targets] & ~found[sources]]
        if not len(more):
            return found
        found[more] = True


def circling(count: int, sources: Functions, targets: Functions) -> Marks:
    """Returns the functions on a cycle of jumps, or on a path between cycles.

    Args:
        count: number of functions.
        sources, targets: as for reaching.
    """
    while True:
        left, entered = np.zeros((2, count), dtype=np.bool_)
        left[sources] = entered[targets] = True
        kept = left[targets] & entered[sources]
        if kept.all():
            return left & entered
        sources, targets = sources[kept], targets[kept]
