# SPDX-License-Identifier: Apache-2.0
"""Which values of a parameter `make quick` leaves out."""

from __future__ import annotations

from typing import Any

import pytest


def thorough(*values: Any) -> list[Any]:
    """The values, marked: one of their like is tested in any case, all of them by `make test`."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]


def in_parts(count: int) -> pytest.MarkDecorator:
    """A random search in so many parts, each with its own seed or examples: the first in `make quick`, all in test."""
    return pytest.mark.parametrize("part", [0, *thorough(*range(1, count))])
