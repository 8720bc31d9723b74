# SPDX-License-Identifier: Apache-2.0
"""Rules: the agent's configuration file, read and validated at the start. docs/agent.md describes it."""

from __future__ import annotations

import fnmatch
import pwd
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from otel_nfprobe.agent.processes import Process
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.metrics.metrics_listener import parse_address

MATCHERS = ("process", "executable", "cgroup", "unit", "container")
SHARE_OF_CORE = "5%"
LOOK_S = 2.0
SESSIONS_MAX = 16
STARTS_PER_MINUTE = 30
ANY = "any"
_WILDCARDS = re.compile(r"[*?\[]")
# What the agent controls itself, or what makes no sense in an unattended session.
FORBIDDEN = ("json", "for", "metrics-listen")


@dataclass(frozen=True)
class Rule:
    """Which processes are measured, and how.

    Attributes:
        name: for logs.
        match: patterns by matcher; a process must match all of them.
        options: words for `nfprobe attach PID`.
        environment: variables added to the session's.
        users: IDs of the users whose processes it accepts, or None for everybody's.
    """

    name: str
    match: Mapping[str, str]
    options: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    users: frozenset[int] | None = frozenset({0})

    def takes(self, process: Process) -> bool:
        """Returns whether it accepts processes of this one's users, whatever their names."""
        return self.users is None or process.users <= self.users

    def matches(self, process: Process) -> bool:
        """Returns whether it matches this process."""
        values = {
            "process": (process.executable, process.name),
            "executable": (process.path,),
            "cgroup": (process.cgroup,),
            "unit": (process.unit,),
            "container": (process.container, process.container[:12]),
        }
        return all(
            any(value and fnmatch.fnmatchcase(value, pattern) for value in values[matcher])
            for matcher, pattern in self.match.items()
        )


@dataclass(frozen=True)
class Configuration:
    """The whole file.

    Attributes:
        rules: the first match applies.
        look_s: interval between scans for processes.
        listen: host and port of health, readiness and metrics, or None.
        sessions_max: that may run at once; starts_per_minute: that may start.
    """

    rules: Sequence[Rule]
    look_s: float = LOOK_S
    listen: tuple[str, int] | None = None
    sessions_max: int = SESSIONS_MAX
    starts_per_minute: int = STARTS_PER_MINUTE


def read_configuration(path: str, check: Callable[[Sequence[str]], None]) -> Configuration:
    """Returns the configuration at `path`.

    Args:
        check: called with the options of each rule; raises UsageError if `nfprobe attach` rejects them.

    Raises:
        UsageError: it cannot be read, or contains an error; the sentence names it.
    """
    again = f"nfprobe agent --config {path} --check"
    try:
        content = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", again) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.", again) from error
    try:
        return _read(content, check)
    except _WrongError as wrong:
        raise UsageError(f"{path}: {wrong}.", again) from None
    except UsageError as error:
        raise UsageError(f"{path}: {error.sentence}", again) from None


class _WrongError(Exception):
    """The description of an error."""


def _read(content: object, check: Callable[[Sequence[str]], None]) -> Configuration:
    fields = _fields(content, "the file", ("rules", "look", "listen", "max-sessions", "starts-per-minute"))
    rules = fields.get("rules")
    if not isinstance(rules, list) or not rules:
        raise _WrongError("there are no rules")
    made = [_read_rule(rule, f"rule {number}") for number, rule in enumerate(rules, 1)]
    for rule in made:
        check(rule.options)
    names = [rule.name for rule in made]
    for name in names:
        if names.count(name) > 1:
            raise _WrongError(f"two rules are called {name!r}")
    look_s = fields.get("look", LOOK_S)
    if not isinstance(look_s, int | float) or isinstance(look_s, bool) or not 0.1 <= look_s <= 3600:
        raise _WrongError(f"look is {look_s!r}, not a number of seconds from 0.1 to 3600")
    listen = fields.get("listen")
    bounds = (_count(fields, "max-sessions", SESSIONS_MAX), _count(fields, "starts-per-minute", STARTS_PER_MINUTE))
    return Configuration(made, float(look_s), None if listen is None else parse_address(str(listen)), *bounds)


def _count(fields: Mapping[str, Any], key: str, otherwise: int) -> int:
    count = fields.get(key, otherwise)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 10_000:
        raise _WrongError(f"{key} is {count!r}, not a number from 1 to 10000")
    return count


def _fields(content: object, where: str, known: Sequence[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise _WrongError(f"{where} is not a mapping")
    for key in content:
        if key not in known:
            raise _WrongError(f"{where} has {key!r}, which is none of {', '.join(known)}")
    return content


def _read_rule(content: object, where: str) -> Rule:
    fields = _fields(content, where, ("name", "match", "user", "options", "environment"))
    match = _fields(fields.get("match"), f"match of {where}", MATCHERS)
    if not match or not all(isinstance(pattern, str) and pattern for pattern in match.values()):
        raise _WrongError(f"match of {where} needs at least one of {', '.join(MATCHERS)}, each a pattern")
    environment = fields.get("environment") or {}
    if not isinstance(environment, dict):
        raise _WrongError(f"environment of {where} is not a mapping")
    words = _make_words(fields.get("options") or {}, where)
    name = str(fields.get("name") or where)
    users = _read_users(fields["user"], where) if "user" in fields else _default_users(match)
    return Rule(name, match, words, {str(key): str(value) for key, value in environment.items()}, users)


def _default_users(match: Mapping[str, str]) -> frozenset[int] | None:
    """Returns root's processes; for rules that match a unit, any user's."""
    unit = match.get("unit", "")
    if not unit or _WILDCARDS.search(unit.partition("@")[0]):
        return frozenset({0})
    return None


def _read_users(value: object, where: str) -> frozenset[int] | None:
    users = value if isinstance(value, list) else [value]
    if ANY in users:
        return None
    return frozenset(_number_of(user, where) for user in users)


def _number_of(user: object, where: str) -> int:
    if isinstance(user, int) and not isinstance(user, bool) and user >= 0:
        return user
    try:
        return pwd.getpwnam(str(user)).pw_uid
    except KeyError:
        raise _WrongError(f"{where} has the user {user!r}, who does not exist on this machine") from None


def _make_words(options: object, where: str) -> list[str]:
    """Converts options: `slowest: 0.1%` becomes `--slowest 0.1%`, a list repeats the option, true has no value."""
    if not isinstance(options, dict):
        raise _WrongError(f"options of {where} is not a mapping")
    words: list[str] = []
    for option, value in {"max-share-of-core": SHARE_OF_CORE, **options}.items():
        if option in FORBIDDEN:
            raise _WrongError(f"{where} must not set {option}")
        if value is False:
            continue
        for item in value if isinstance(value, list) else [value]:
            words += [f"--{option}"] if item is True else [f"--{option}", str(item)]
    return words
