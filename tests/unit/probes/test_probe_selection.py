# SPDX-License-Identifier: Apache-2.0
"""What is said of functions that move packets and cannot be probed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_nfprobe.adapters.base import CALL, DROP, FREE, RECEIVE, TRANSMIT, RoleFunction
from otel_nfprobe.probes import probe_selection as choosing
from otel_nfprobe.probes.analysis import FunctionPlan
from otel_nfprobe.probes.probe_selection import Choice

MODULE = SimpleNamespace(path="/usr/lib/libnf.so")


def plan(address: int, strategy: str | None = None, reason: str = "reads stack arguments") -> FunctionPlan:
    function = SimpleNamespace(address=address, module=MODULE)
    return FunctionPlan(cast(Any, function), strategy, "" if strategy else reason, site=address)


def choose(*plans: FunctionPlan, roles: dict[int, int]) -> Choice:
    made = [RoleFunction(address, f"nf:{address}", role, {}, f"port{address}") for address, role in roles.items()]
    return Choice(None, made, list(plans))


def test_each_that_moves_packets_is_named_with_its_reason() -> None:
    roles = {1: RECEIVE, 2: TRANSMIT, 3: DROP, 4: FREE, 5: CALL}
    choice = choose(plan(1, "in-stack call"), *map(plan, (2, 3, 4, 5, 6)), roles=roles)
    assert choice.tell_unprobed(choice.plans) == (
        "port2 (reads stack arguments), port3 (reads stack arguments) cannot be probed:"
        " the disposition of packets there is unknown."
    )


def test_one_that_a_slot_leads_to_is_probed() -> None:
    choice = choose(plan(1), plan(1, "GOT slot"), roles={1: TRANSMIT})
    assert choice.tell_unprobed(choice.plans) == ""


def test_of_many_some_are_named() -> None:
    choice = choose(*(plan(address) for address in range(1, 10)), roles=dict.fromkeys(range(1, 10), TRANSMIT))
    assert "port4 (reads stack arguments) and 5 others cannot be probed" in choice.tell_unprobed(choice.plans)


@pytest.mark.parametrize("strategy", ["relocated body", "copied arguments", "entry only"])
def test_what_moves_packets_and_cannot_be_called_is_not_judged_again(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why there is no in-stack call stands in its plan; to find it out once more takes all code of the module."""
    monkeypatch.setattr(choosing, "plan_function", None)
    other = FunctionPlan(plan(1).function, strategy, "reads stack arguments", site=1)
    role = RoleFunction(1, "port1", TRANSMIT, {}, "port1")
    found = choosing._callable(other, cast(Any, None), role)
    assert (found.strategy, found.reason, found.function) == (None, "reads stack arguments", other.function)
