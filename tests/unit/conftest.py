# SPDX-License-Identifier: Apache-2.0
"""What several unit tests of the sending side begin with."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.otlp_receiver import Receiver


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of OpenTelemetry's variables is set."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of spans on loopback."""
    server = Receiver()
    yield server
    server.stop()
