# SPDX-License-Identifier: Apache-2.0
"""What several unit tests of the sending side begin with."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of OpenTelemetry's variables is set."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
