# SPDX-License-Identifier: Apache-2.0
"""Distinct values and quantiles of arrays, as NumPy finds them.

The first call of `np.unique` or `np.quantile` loads `numpy.ma`, which takes as long as a short report.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SORTED_MAX = 1 << 17  # of more values it finds the distinct ones without sorting all


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Returns the distinct values of an array of any shape, sorted."""
    if values.size > SORTED_MAX or values.dtype.kind not in "biu":
        found: NDArray[Any] = np.unique(values)
        return found
    ordered = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    kept: NDArray[Any] = ordered[is_first]
    return kept


def is_among(values: NDArray[Any], ordered: NDArray[Any]) -> NDArray[np.bool_]:
    """Returns of each value whether it is one of those in a sorted array of the same type."""
    places = np.searchsorted(ordered, values)
    found = places < len(ordered)
    found[found] = ordered[places[found]] == values[found]
    return found


def quantile(values: NDArray[Any], share: float) -> float:
    """Returns what a share of the values, of which there is one at least, is not above; between two, linearly."""
    ordered = np.sort(values)
    place = share * (len(ordered) - 1)
    low, high = float(ordered[int(place)]), float(ordered[min(int(place) + 1, len(ordered) - 1)])
    weight = place - int(place)
    return high - (high - low) * (1 - weight) if weight >= 0.5 else low + (high - low) * weight
