# SPDX-License-Identifier: Apache-2.0
"""Lists of counters as text: `--counters NAME,...`, and the names and scales that a recording keeps. Pure.

Recordings are read without devices and events of this machine, so these are not imported here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from otel_nfprobe._core import lib
from otel_nfprobe.base.errors import UsageError

COUNTERS_MAX = lib.NFP_COUNTER_SLOTS  # maximum per probe
HELP = "nfprobe attach --help"


def split_names(text: str) -> list[str]:
    """Splits `cycles,cpu/event=1,umask=2/,r01c2` into names; commas between slashes belong to a name.

    Raises:
        UsageError: there is none.
    """
    names = [name.strip() for name in re.findall(r"(?:[^,/]*/[^/]*/[^,]*|[^,]+)", text)]
    names = [name for name in names if name]
    if any("{" in name or "}" in name for name in names):
        raise UsageError("Counters are written without braces: all of them are read together.", HELP)
    if not names:
        raise UsageError("--counters needs names, such as cycles,instructions.", HELP)
    return names


def write_names(counters: Iterable[tuple[str, int]]) -> str:
    """Returns names and scales in the format of `read_names`."""
    return ",".join(f"{name}*{scale}" for name, scale in counters)


def read_names(text: str) -> list[tuple[str, int]]:
    """Returns the name and scale of each counter from a recording; of damaged text, those that can be parsed."""
    found = []
    for word in split_names(text) if text.strip(" ,") else []:
        name, _, scale = word.rpartition("*")
        if name and scale.isdigit():
            found.append((name, min(int(scale), 1 << 16)))
    return found[:COUNTERS_MAX]
