# SPDX-License-Identifier: Apache-2.0
"""What messages on standard error look like: sentences for people, or a JSON object on each line (NFPROBE_LOG).

`NFPROBE_LOG=json` is for log collectors, `NFPROBE_LOG=warning` or `error` leaves out what is less important,
`NFPROBE_LOG=json,warning` does both.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from enum import IntEnum
from typing import Any

from otel_nfprobe.base.environment_variables import NFPROBE_LOG
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.printable import printable

JSON, TEXT = "json", "text"


class Level(IntEnum):
    """How important a message is: WARNING if there is something to do about it, ERROR if it ends the command."""

    INFO = 0
    WARNING = 1
    ERROR = 2


NAMES = tuple(level.name.lower() for level in Level)


def check_log() -> None:
    """Refuses a value of NFPROBE_LOG that means nothing.

    Raises:
        UsageError: so it is.
    """
    for word in _words():
        if word not in (JSON, TEXT, *NAMES):
            wanted = ", ".join((TEXT, JSON, *NAMES))
            raise UsageError(f"NFPROBE_LOG={word} is none of {wanted}.", "unset NFPROBE_LOG")


def is_json() -> bool:
    """Returns whether messages are JSON."""
    return JSON in _words()


def is_shown(level: Level) -> bool:
    """Returns whether messages of a level are written."""
    return all(level >= NAMES.index(word) for word in _words() if word in NAMES)


def format_message(sentence: str, next_command: str, level: Level, **more: Any) -> str:
    """Returns a message as it is written, without its last line end.

    Args:
        next_command: to type next, or "".
        more: further members of the JSON object.
    """
    if not is_json():
        return f"nfprobe: {printable(sentence)}" + (f"\nnext: {printable(next_command)}" if next_command else "")
    found = {
        "time": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level.name.lower(),
        "message": sentence,
        **({"next_command": next_command} if next_command else {}),
        **more,
    }
    return json.dumps(found, separators=(",", ":"), allow_nan=False)


def _words() -> list[str]:
    return [word for word in os.environ.get(NFPROBE_LOG, "").lower().replace(" ", "").split(",") if word]
