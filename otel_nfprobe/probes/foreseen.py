# SPDX-License-Identifier: Apache-2.0
"""Foreseen functions: functions that an adapter may encounter while the target is measured, judged before they run.

The first plan of a module takes all of its code. With this, a node that runs for the first time gets its probe as soon
as it is seen, and the next attach finds all plans on disk. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import takewhile

from otel_nfprobe.adapters.base import ForeseeingAdapter
from otel_nfprobe.adapters.ethdev import module_at
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.symbols import Function, function_at
from otel_nfprobe.probes.analysis import plan_functions
from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.target.target import Target


def judge_foreseen(choice: Choice, target: Target, is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Judges them, one module per step, the one with the most first; nothing if the adapter foresees none.

    Functions that cannot be judged are refused when they run, with their reason.

    Args:
        is_wanted: checked before each of them; a session that is ending does not wait for them.
    """
    if not isinstance(choice.adapter, ForeseeingAdapter):
        return
    by_module: dict[int, list[Function]] = {}
    with suppress(NfprobeError):
        modules = target.modules()
        for address in choice.adapter.possible_functions():
            module = module_at(modules, address)
            function = None if module is None else function_at(module, address - module.base)
            if function is not None and function.address == address:
                by_module.setdefault(id(module), []).append(function)
    for functions in sorted(by_module.values(), key=len, reverse=True):
        with suppress(NfprobeError):
            plan_functions(takewhile(lambda _: is_wanted(), functions), target, choice.request.strategy)
        yield
