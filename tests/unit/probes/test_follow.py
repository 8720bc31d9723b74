# SPDX-License-Identifier: Apache-2.0
"""When the follower asks an adapter for functions that receive or transmit only now."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_nfprobe.probes import follow
from otel_nfprobe.probes.follow import ROLES_LOOK_S, Follower


def ask(found: list[Any], monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds until it asks again after an answer that has taken a second of processor time."""
    times_s = count(0.0, 1.0)
    monkeypatch.setattr(follow.time, "thread_time", lambda: next(times_s))
    choice = SimpleNamespace(
        add_roles=lambda target: found, requests=lambda plans: [], tell_unprobed=lambda plans: "", adapter=None
    )
    follower = Follower.__new__(Follower)
    follower.choice, follower.target = cast(Any, choice), cast(Any, None)
    follower._roles_at, follower._later = 0.0, []
    follower._follow_roles()
    return follower._roles_at - time.monotonic()


def test_a_costly_question_is_asked_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.5 * ROLES_LOOK_S < ask([], monkeypatch) <= ROLES_LOOK_S


def test_where_a_function_was_found_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask([object()], monkeypatch) <= 0.0
