# SPDX-License-Identifier: Apache-2.0
"""Agent: finds processes that match its rules, keeps a session on each, follows restarts.

One thread searches, starts, ends and counts; others read copies of its state (page.py).
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from otel_nfprobe.agent.processes import Process, find_processes
from otel_nfprobe.agent.rules import Configuration, Rule
from otel_nfprobe.base.environment_variables import NFPROBE_LOG, NFPROBE_PROGRESS

# ---- processes that nobody attaches to ------------------------------------------------------------------------------
# Strangers: processes that look like what a rule matches, but run as a user whose processes the rule excludes.
#
# A process chooses its name, its arguments and its program. Each is reported once, and only a few per minute so that
# nobody can flood the log.


PERIOD_S = 60.0
TOLD_MAX = 10  # per period


class Strangers:
    """Reports which processes were not attached to because of their user.

    Args:
        notify: one sentence for the log.
    """

    def __init__(self, notify: Callable[[str], None]) -> None:
        self._notify = notify
        self._known: set[tuple[int, int, str]] = set()
        self._since = 0.0
        self._told = 0

    def tell(self, rules: Sequence[Rule], processes: Sequence[Process]) -> None:
        """Checks all current processes."""
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
                self._notify(_describe(rule, found[identity]))
            elif self._told == TOLD_MAX + 1:
                self._notify("more processes of other users match; they are not attached to, and no longer reported.")


def _refusing(rules: Sequence[Rule], process: Process) -> Rule | None:
    """Returns the first rule that matches a process which no rule accepts."""
    matching = [rule for rule in rules if rule.matches(process)]
    return matching[0] if matching and not any(rule.takes(process) for rule in matching) else None


def _describe(rule: Rule, process: Process) -> str:
    users = ", ".join(_name_of(user) for user in sorted(process.users))
    return (
        f"{rule.name}: process {process.pid}, named {process.name!a}, is not attached to: it runs as"
        f" {users}, whose processes the rule excludes (user)."
    )


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


# ---- one attach -----------------------------------------------------------------------------------------------------
# Attached: one `nfprobe attach` that the agent has started, and its result.
#
# A separate process: a failure in one session affects no other, and the agent itself never touches a target.


REFUSED = 3  # exit status: this target cannot be probed


class Attached:
    """A session.

    Attributes:
        process: the target.
        rule: by which it is measured.
        summary: its summary object once it has ended with one, otherwise None.
    """

    def __init__(self, process: Process, rule: Rule, notify: Callable[[str], None]) -> None:
        self.process, self.rule = process, rule
        self.started_at = time.monotonic()
        self.summary: dict[str, Any] | None = None
        self._prefix = f"{rule.name}: {process.shown_name} {process.pid}"
        self._notify = notify
        words = [sys.executable, "-m", "otel_nfprobe", "attach", str(process.pid), *rule.options, "--json"]
        self._child = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, NFPROBE_PROGRESS: "no", **rule.environment, NFPROBE_LOG: ""},  # its sentences are read
            start_new_session=True,  # the agent itself forwards signals sent to its group
        )
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_summary, args=(self._child.stdout,), daemon=True),
            threading.Thread(target=self._read_words, args=(self._child.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def status(self) -> int | None:
        """Returns the exit status once it has ended and all its output was read, otherwise None."""
        status = self._child.poll()
        if status is None:
            return None
        for reader in self._readers:
            reader.join()
        return status

    @property
    def was_refused(self) -> bool:
        """Returns whether retrying this process is pointless."""
        return self._child.poll() == REFUSED

    @property
    def was_too_dear(self) -> bool:
        """Returns whether it ended because its probes exceeded their budget."""
        return bool(self.summary and self.summary.get("budget", {}).get("exceeded"))

    def end(self) -> None:
        """Asks it to detach; `status` returns the result."""
        if self._child.poll() is None:
            self._child.terminate()

    def kill(self) -> None:
        """Kills one that does not end; the next session on the target cleans up after it."""
        self._child.kill()
        self._child.wait()

    def _read_summary(self, output: IO[str]) -> None:
        for line in output:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                self.summary = value

    def _read_words(self, output: IO[str]) -> None:
        for line in output:
            if words := line.strip():
                self._notify(f"{self._prefix}: {words.removeprefix('nfprobe: ')}")


# ---- all of them ----------------------------------------------------------------------------------------------------


PAUSE_S = 5.0  # before a failed session is retried; doubled each time
PAUSE_MAX_S = 300.0
STEADY_S = 60.0  # a session that ran this long did not fail to start
MINUTE_S = 60.0
END_S = 30.0  # enough for a detach on a busy machine
Identity = tuple[int, int, str]  # of a process


@dataclass(frozen=True)
class Counts:
    """Statistics of the agent, by rule.

    Attributes:
        sessions: running now; waiting: matching processes without a session because of the file's limits.
        started, failed, refused, too_dear: since the start.
        looked_at: monotonic seconds of the last scan.
    """

    sessions: dict[str, int]
    waiting: dict[str, int]
    started: dict[str, int]
    failed: dict[str, int]
    refused: dict[str, int]
    too_dear: dict[str, int]
    looked_at: float


@dataclass
class _Trouble:
    """Why a process currently has no session."""

    pause_s: float = PAUSE_S
    until: float = float("inf")


@dataclass
class Agent:
    """Keeps a session on each process that matches.

    Attributes:
        configuration: its rules.
        notify: one sentence for the log.
        stopping: set it to end.
    """

    configuration: Configuration
    notify: Callable[[str], None]
    stopping: threading.Event = field(default_factory=threading.Event)
    _attached: dict[Identity, Attached] = field(default_factory=dict)
    _trouble: dict[Identity, _Trouble] = field(default_factory=dict)
    _totals: dict[str, dict[str, int]] = field(default_factory=dict)
    _waiting: dict[str, int] = field(default_factory=dict)
    _leaving: dict[Identity, float] = field(default_factory=dict)  # making room; until when, in monotonic s
    # Starts in the last minute: monotonic seconds, and the users of the process.
    _starts: deque[tuple[float, frozenset[int]]] = field(default_factory=deque)
    _strangers: Strangers = field(init=False)
    _looked_at: float = 0.0

    def __post_init__(self) -> None:
        self._strangers = Strangers(self.notify)

    def run(self, reload: Callable[[], Configuration | None]) -> None:
        """Runs until `stopping` is set.

        Args:
            reload: called at each scan; a configuration that it returns takes effect.
        """
        try:
            while not self.stopping.wait(0 if self._looked_at == 0 else self.configuration.look_s):
                fresh = reload()
                if fresh is not None:
                    self._take(fresh)
                self.look()
        finally:
            self._end(list(self._attached.values()))

    def look(self) -> None:
        """Starts and ends sessions according to the current processes."""
        self._collect()
        processes = list(find_processes())
        found = {process.identity: process for process in processes if self._rule_of(process) is not None}
        for identity in set(self._trouble) - set(found):
            del self._trouble[identity]
        self._strangers.tell(self.configuration.rules, processes)
        now = time.monotonic()
        waiting: list[tuple[Process, Rule]] = []
        for identity, process in self._in_turn(found):
            rule = self._rule_of(process)
            if rule is None or identity in self._attached or not self._may_start(identity, now):
                continue
            if self._has_room(now):
                self._starts.append((now, process.users))
                self._count("started", rule)
                self._attached[identity] = Attached(process, rule, self.notify)
            else:
                waiting.append((process, rule))
        self._give_way(waiting)
        self._tell_waiting(Counter(rule.name for _, rule in waiting))
        self._looked_at = time.monotonic()

    def _in_turn(self, found: dict[Identity, Process]) -> list[tuple[Identity, Process]]:
        """Orders processes so that users with the fewest started sessions come first: a user whose processes restart
        or exec repeatedly delays only their own.
        """
        begun = Counter(users for _, users in self._starts)
        running = Counter(attached.process.users for attached in self._attached.values())

        def place(process: Process) -> tuple[int, int, int]:
            rule = self._rule_of(process)
            return (
                begun[process.users],
                len(self.configuration.rules) if rule is None else self._rank(rule),
                running[process.users],
            )

        return sorted(found.items(), key=lambda item: place(item[1]))

    def _rank(self, rule: Rule) -> int:
        """Returns the position of a rule in the file."""
        rules = list(self.configuration.rules)
        return rules.index(rule) if rule in rules else len(rules)

    def _give_way(self, waiting: list[tuple[Process, Rule]]) -> None:
        """Ends sessions in favour of processes that have waited in vain, when `max-sessions` are running.

        Earlier rules take precedence; within one rule each user gets the same number.
        """
        starts_left = self.configuration.starts_per_minute - len(self._starts)
        if len(self._attached) < self.configuration.sessions_max:
            return
        staying = [item for identity, item in self._attached.items() if identity not in self._leaving]
        coming = len(self._leaving)
        running = Counter((item.rule.name, item.process.users) for item in staying)
        for process, rule in waiting:
            own = rule.name, process.users
            if coming > 0:  # a session that is already ending makes room for this one
                coming -= 1
            elif starts_left <= 0 or (least := self._who_gives_way(staying, rule, running[own], running)) is None:
                continue
            else:
                staying.remove(least)
                running[least.rule.name, least.process.users] -= 1
                self._leaving[least.process.identity] = time.monotonic() + END_S
                least.end()
                self.notify(
                    f"{least.rule.name}: the session on {least.process.shown_name} {least.process.pid} ends for"
                    f" {process.shown_name} {process.pid} ({rule.name}) (max-sessions)."
                )
            starts_left -= 1
            running[own] += 1

    def _who_gives_way(
        self, staying: list[Attached], rule: Rule, own: int, running: Counter[tuple[str, frozenset[int]]]
    ) -> Attached | None:
        """Returns the session to end for a process of this rule, whose users have `own` ones; the youngest first."""
        rank = self._rank(rule)
        later = [item for item in staying if self._rank(item.rule) > rank]
        if later:
            return max(later, key=lambda item: (self._rank(item.rule), item.started_at))
        held = {item: running[item.rule.name, item.process.users] for item in staying if item.rule == rule}
        most = max(held, key=lambda item: (held[item], item.started_at), default=None)
        return None if most is None or held[most] < own + 2 else most

    def _has_room(self, now: float) -> bool:
        """Returns whether the file's limits allow another session to start."""
        while self._starts and self._starts[0][0] <= now - MINUTE_S:
            self._starts.popleft()
        bounds = self.configuration
        return len(self._attached) < bounds.sessions_max and len(self._starts) < bounds.starts_per_minute

    def _tell_waiting(self, waiting: dict[str, int]) -> None:
        if waiting and not self._waiting:
            bounds = self.configuration
            self.notify(
                f"{sum(waiting.values())} processes wait: {bounds.sessions_max} sessions may run at once"
                f" (max-sessions), and {bounds.starts_per_minute} may start per minute (starts-per-minute)."
            )
        self._waiting = dict(waiting)

    def counts(self) -> Counts:
        """Returns a copy for other threads."""
        names = [rule.name for rule in self.configuration.rules]
        running = [attached.rule.name for attached in list(self._attached.values())]
        totals = {
            what: {name: self._totals.get(what, {}).get(name, 0) for name in names}
            for what in ("started", "failed", "refused", "too_dear")
        }
        sessions = {name: running.count(name) for name in names}
        waiting = {name: self._waiting.get(name, 0) for name in names}
        return Counts(sessions, waiting, **totals, looked_at=self._looked_at)

    def _rule_of(self, process: Process) -> Rule | None:
        rules = self.configuration.rules
        return next((rule for rule in rules if rule.matches(process) and rule.takes(process)), None)

    def _may_start(self, identity: Identity, now: float) -> bool:
        trouble = self._trouble.get(identity)
        return trouble is None or now >= trouble.until

    def _count(self, what: str, rule: Rule) -> None:
        totals = self._totals.setdefault(what, {})
        totals[rule.name] = totals.get(rule.name, 0) + 1

    def _collect(self) -> None:
        for identity, attached in list(self._attached.items()):
            status = attached.status
            if status is None:
                if self._leaving.get(identity, float("inf")) <= time.monotonic():
                    attached.kill()
                continue
            del self._attached[identity]
            self._leaving.pop(identity, None)
            self._judge(attached, status)

    def _judge(self, attached: Attached, status: int) -> None:
        """Decides whether, and when, the process of an ended session is retried."""
        rule, now = attached.rule, time.monotonic()
        trouble = self._trouble.setdefault(attached.process.identity, _Trouble())
        if now - attached.started_at > STEADY_S:
            trouble.pause_s = PAUSE_S
        if attached.was_refused:
            self._count("refused", rule)
            trouble.until = float("inf")
            return
        if attached.was_too_dear:
            self._count("too_dear", rule)
            trouble.pause_s = PAUSE_MAX_S
        elif status == 0 or (attached.summary or {}).get("target_ended"):
            trouble.pause_s = PAUSE_S  # the target has ended, or has executed another program
        else:
            self._count("failed", rule)
        trouble.until = now + trouble.pause_s
        trouble.pause_s = min(2 * trouble.pause_s, PAUSE_MAX_S)

    def _take(self, fresh: Configuration) -> None:
        """Takes over a new configuration: ends sessions of changed rules; the next scan restarts them."""
        self.configuration = fresh
        changed = [attached for attached in self._attached.values() if self._rule_of(attached.process) != attached.rule]
        self._end(changed)
        self._trouble.clear()
        self.notify(f"configuration read: {len(fresh.rules)} rules, {len(changed)} sessions ended.")

    def _end(self, ending: list[Attached]) -> None:
        for attached in ending:
            attached.end()
        deadline = time.monotonic() + END_S
        for attached in ending:
            while attached.status is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if attached.status is None:
                self.notify(f"{attached.rule.name}: the session on {attached.process.pid} did not end and was killed.")
                attached.kill()
            self._attached.pop(attached.process.identity, None)
            self._leaving.pop(attached.process.identity, None)
