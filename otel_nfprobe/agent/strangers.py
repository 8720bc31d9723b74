# SPDX-License-Identifier: Apache-2.0
"""Strangers: processes that call themselves what a rule asks for and run as a user whose processes it does not take.

A process chooses its name, its arguments and its program. Each is told of once, and so few a minute that nobody
fills the log with them.
"""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence

from otel_nfprobe.agent.processes import Process
from otel_nfprobe.agent.rules import Rule

PERIOD_S = 60.0
TOLD_MAX = 10  # in a period


class Strangers:
    """Says which processes were left alone for their user.

    Args:
        say: one sentence for the log.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known: set[tuple[int, int, str]] = set()
        self._since = 0.0
        self._told = 0

    def tell(self, rules: Sequence[Rule], processes: Sequence[Process]) -> None:
        """Looks at all processes that there are now."""
        now = time.monotonic()
        if now - self._since >= PERIOD_S:
            self._since, self._told = now, 0
        found = {process.identity: process for process in processes}
        self._known &= set(found)
        for identity in set(found) - self._known:
            rule = _refusing(rules, found[identity])
            if rule is None:
                continue
            self._known.add(identity)
            self._told += 1
            if self._told <= TOLD_MAX:
                self._say(_describe(rule, found[identity]))
            elif self._told == TOLD_MAX + 1:
                self._say("more processes of other users match; they are not attached to either, and no more is said.")


def _refusing(rules: Sequence[Rule], process: Process) -> Rule | None:
    """The first rule that speaks of a process which no rule takes."""
    matching = [rule for rule in rules if rule.matches(process)]
    return matching[0] if matching and not any(rule.takes(process) for rule in matching) else None


def _describe(rule: Rule, process: Process) -> str:
    users = ", ".join(_name_of(user) for user in sorted(process.users))
    return (
        f"{rule.name}: process {process.pid}, which calls itself {process.name!a}, is not attached to: it runs as"
        f" {users}, whose processes the rule does not take (user)."
    )


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
