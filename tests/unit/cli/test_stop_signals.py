# SPDX-License-Identifier: Apache-2.0
"""A signal that is to end a session, wherever it meets the interpreter."""

from __future__ import annotations

import signal
import sys
import weakref
from typing import Any

import pytest

from otel_nfprobe.cli.attach import StopSignals


class Module:
    """Something that a callback waits for the end of, as import locks do."""


def end_in_callback(act: Any) -> None:
    module = Module()
    watching = weakref.ref(module, act)
    del module
    assert watching() is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_in_a_callback_of_the_interpreter(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt cannot leave it: nothing is printed, and the session knows that it is to end."""
    printed: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with StopSignals() as signals:
        end_in_callback(lambda _: signal.raise_signal(number))
        assert signals.stopping.is_set()
        assert not printed
        end_in_callback(lambda _: 1 / 0)
        assert [one.exc_type for one in printed] == [ZeroDivisionError]
    assert sys.unraisablehook == printed.append


def test_elsewhere_it_ends_what_is_done() -> None:
    with StopSignals() as signals:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # it ends only once
        assert signals.stopping.is_set()
