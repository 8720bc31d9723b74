# SPDX-License-Identifier: Apache-2.0
"""Functions that give packets back are looked for, and probed, where all packets are identified."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_nfprobe.adapters.base import FREE, FreeingAdapter
from otel_nfprobe.adapters.broker import BrokerAdapter
from otel_nfprobe.adapters.dpdk import DpdkAdapter
from otel_nfprobe.adapters.ovs import OvsAdapter
from otel_nfprobe.cli import session_plan
from otel_nfprobe.target.target import Target


@pytest.mark.parametrize("packets", ["all", "slow", "none"])
@pytest.mark.parametrize("kind", [DpdkAdapter, OvsAdapter, BrokerAdapter])
def test_functions_that_free(packets: str, kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    left_out: list[int] = []
    choice = SimpleNamespace(leave_out=left_out.append)
    monkeypatch.setattr(session_plan, "choose", lambda *_: choice)
    arguments = argparse.Namespace(packets=packets, exclude=[], strategy=None, no_stop=False, archive=[], captures=[])
    adapter = kind()
    assert session_plan._choose(arguments, cast("Target", None), adapter, []) is choice
    assert left_out == ([] if packets == "all" else [FREE])
    assert isinstance(adapter, FreeingAdapter) == (kind is not BrokerAdapter)
    if isinstance(adapter, FreeingAdapter):
        assert adapter.finds_free == (packets == "all")
