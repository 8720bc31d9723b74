# SPDX-License-Identifier: Apache-2.0
"""Distinct values, and which values are among others, are those that NumPy's own functions find."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.base.distinct import SORTED_MAX, distinct, is_among, quantile

TYPES = ("u1", "u2", "u4", "u8", "i8", "?")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("count", [0, 1, 2, 1000, SORTED_MAX + 1])
def test_distinct_values(kind: str, count: int) -> None:
    values = np.random.default_rng(count).integers(0, 200, count).astype(kind)
    found = distinct(values)
    assert found.dtype == values.dtype
    assert found.tolist() == np.unique(values).tolist()


def test_distinct_values_of_tables_and_other_types() -> None:
    assert distinct(np.array([[3, 1], [1, 2]])).tolist() == [1, 2, 3]
    assert distinct(np.array(["b", "a", "b"])).tolist() == ["a", "b"]


def test_values_among_others() -> None:
    random = np.random.default_rng(7)
    for count in (0, 1, 50):
        others = np.sort(random.integers(0, 100, count).astype(np.uint64))
        values = random.integers(0, 100, 300).astype(np.uint64)
        assert is_among(values, others).tolist() == np.isin(values, others).tolist()
        assert is_among(values[:0], others).tolist() == []


def test_quantiles() -> None:
    random = np.random.default_rng(3)
    for count in (1, 2, 5, 1000):
        values = random.integers(0, 10**9, count)
        for share in (0.0, 0.05, 0.5, 0.77, 1.0):
            assert quantile(values, share) == np.quantile(values, share)
