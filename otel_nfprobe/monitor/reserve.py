# SPDX-License-Identifier: Apache-2.0
"""Reserve: file descriptors kept from the start of a session, so that its end can open what it needs.

Removing probes opens files in /proc. A process that has run out of descriptors by then, for whatever reason, would
leave code patched.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from otel_nfprobe.base.errors import NfprobeError

SPARES = 64
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Kind = TypeVar("Kind")
_spares: list[int] = []
_ending = 0  # sessions that are ending now
_changed = threading.Lock()


def reserves_descriptors(begin: str, *ends: str) -> Callable[[type[Kind]], type[Kind]]:
    """Decorates a class whose method `begin` starts a session, which its methods `ends` end.

    `begin` raises NfprobeError if there are too few descriptors for an end; the reserve is released during an end.
    """

    def decorate(kind: type[Kind]) -> type[Kind]:
        setattr(kind, begin, _keeps(getattr(kind, begin)))
        for end in ends:
            setattr(kind, end, _frees(getattr(kind, end)))
        return kind

    return decorate


def _keeps(begin: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    @wraps(begin)
    def kept(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        with _changed:
            if not _ending and not _fill():
                limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
                raise NfprobeError(
                    f"The limit of open files is too low ({limit}): nothing was probed, since removing the probes"
                    f" could fail without {SPARES} more.",
                    "ulimit -n 4096",
                )
        return begin(*arguments, **options)

    return kept


def _frees(end: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    @wraps(end)
    def freed(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        global _ending
        with _changed:
            _ending += 1
            while _spares:
                os.close(_spares.pop())
        try:
            return end(*arguments, **options)
        finally:
            with _changed:
                _ending -= 1
                if not _ending:
                    _fill()  # for the other sessions of this process, as far as possible

    return freed


def _fill() -> bool:
    try:
        while len(_spares) < SPARES:
            _spares.append(os.open("/dev/null", os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    return True
