# SPDX-License-Identifier: Apache-2.0
"""A test that goes on for as long as a person asks for may do so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    asked_s = float(os.environ.get("NFPROBE_FUZZ_SECONDS", 0))
    for item in items:
        if asked_s and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(240 + 2 * asked_s))
