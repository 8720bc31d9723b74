# SPDX-License-Identifier: Apache-2.0
"""Plan cache: plans of a module's functions, kept on disk, so that the next attach need not judge them again.

A wrong plan could crash a target: a cached plan is only used for exactly the file that it was made from and for a
function with exactly the same names. Where jumps of the function lead through GOT slots, the process matters as well:
the plan is then kept with those slots and their destinations. It is valid if they lead to the same function or, if that
was harmless, to any other harmless one. A module without a build ID is identified by its content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

from otel_nfprobe.arch.x86_64.arguments import FORMATS
from otel_nfprobe.arch.x86_64.tailcalls import TailCalls
from otel_nfprobe.base.strategies import IN_STACK_CALL, STRATEGIES
from otel_nfprobe.elf import cache
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, function_of, names_in
from otel_nfprobe.probes.plan import FunctionPlan
from otel_nfprobe.target.target import Target

FUNCTIONS_MIN = 1000  # a smaller module is judged as fast as its plans can be read
FRESH_MIN = 250  # new plans that justify rewriting the module's file ...
FRESH_S = 0.1  # ... or fewer that took this long: the first one may need all code of the module
KIND = "plan"
SLOTS_MAX = 64  # per plan
_WORDS = (None, *STRATEGIES.values())


class KeptPlans:
    """The known plans of all modules asked for.

    Attributes:
        tail_calls: judges the jump destinations of functions without a plan so far.
    """

    def __init__(self, target: Target | None) -> None:
        self._modules: dict[int, _ModulePlans] = {}
        self.tail_calls = TailCalls(target)
        # Separate from `tail_calls`: a verdict may depend on which functions were judged before.
        self._conditions = TailCalls(target, self._clean_unless)

    def find(self, function: Function) -> FunctionPlan | None:
        """Returns the plan of an earlier analysis with all strategies in turn, if it is valid; otherwise None."""
        known = self._of(function.module)
        row = known.row(function)
        if row is not None and all(self._behind(function.module, slot) == behind for slot, behind in row[2]):
            return _plan(function, row)
        self.tail_calls.consulted.clear()
        return None

    def keep(self, plan: FunctionPlan, took_s: float) -> FunctionPlan:
        """Adds a new plan, that of the function last looked up.

        Args:
            took_s: its CPU time.
        """
        module, consulted = plan.module, self.tail_calls.consulted
        if not consulted:
            self._of(module).keep(plan, [], took_s)
            return plan
        own = [slot for owner, slot in consulted if owner == id(module)]
        slots = [[slot, self._behind(module, slot)] for slot in sorted(own)[: SLOTS_MAX + 1]]
        # Behind a harmful function there may be anything; what is not reached through other modules' slots is certain.
        is_certain = len(own) == len(consulted) or not any(behind for _, behind in slots)
        if len(own) <= SLOTS_MAX and is_certain:
            self._of(module).keep(plan, slots, took_s)
        return plan

    def _of(self, module: Module) -> _ModulePlans:
        known = self._modules.get(id(module))
        if known is None:
            known = self._modules[id(module)] = _ModulePlans(module)
        return known

    def _behind(self, module: Module, slot: int) -> str:
        """Returns what a slot leads to: "" for nothing harmful, otherwise which function of which file."""
        node = self._conditions.harm_behind(module, slot)
        return "" if node is None else f"{self._of(node[0]).file_digest} {node[1]}"

    def _clean_unless(self, module: Module, index: int) -> Sequence[int] | None:
        """Returns the conditions for TailCalls."""
        if "names" not in module.cache:  # its functions are not examined: reading their names may take long
            return None
        known = self._of(module)
        row = known.row(function_of(module, index)) if known.rows else None
        if row is None or row[3] != IN_STACK_CALL or any(behind for _, behind in row[2]):
            return None
        return [slot for slot, _ in row[2]]

    def store(self) -> None:
        """Writes new plans to disk where worthwhile."""
        for known in self._modules.values():
            known.store()


class _ModulePlans:
    """The known plans of one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._fresh, self._fresh_s = 0, 0.0
        # The first two are refused by the name of their file, which may change, the last for a transient reason.
        self._is_kept = len(module.image.frames.frames) >= FUNCTIONS_MIN and not (
            module.is_dynamic_linker or module.is_probe_library or module.image.unread
        )

    @cached_property
    def rows(self) -> dict[int, list[Any]]:
        """Plans by the function's offset."""
        return self._load() if self._is_kept else {}

    @cached_property
    def file_digest(self) -> str:
        """Digest of the whole file."""
        return self._module.image.content.digest

    @cached_property
    def key(self) -> str:
        """What all plans of the module depend on: the file, and which functions jumps lead to by name."""
        digest = hashlib.blake2b(f"{self.file_digest} {version('iced-x86')}".encode(), digest_size=20)
        names = names_in(self._module)  # without those of slots, which differ per process
        for start in self._module.image.frames.starts:
            if start in names and names[start][0].name in FORMATS:
                digest.update(f"{start:x} {names[start][0].name}".encode())
        return digest.hexdigest()

    def _load(self) -> dict[int, list[Any]]:
        content = cache.load(self._module.build_id or self.key, KIND, self.key)
        try:
            rows = json.loads(content) if content is not None else []
        except ValueError:
            return {}
        return {row[0]: row for row in rows} if _is_sound(rows) else {}

    def row(self, function: Function) -> list[Any] | None:
        row = self.rows.get(function.offset)
        return row if row is not None and row[1] == _facts(function) else None

    def keep(self, plan: FunctionPlan, slots: list[list[Any]], took_s: float) -> None:
        if self._is_kept:
            self._fresh += 1
            self._fresh_s += took_s
            self.rows[plan.offset] = _row(plan, slots)

    def store(self) -> None:
        if self._fresh >= FRESH_MIN or self._fresh_s >= FRESH_S:
            rows = [self.rows[offset] for offset in sorted(self.rows)]
            content = json.dumps(rows, separators=(",", ":")).encode()
            cache.store(self._module.build_id or self.key, KIND, content, self.key)
            self._fresh, self._fresh_s = 0, 0.0


# ---- one plan as a row -------------------------------------------------------------------------------------------

_COLUMNS = (int, str, list, (str, type(None)), str, int, int, int, list, list, bool, int, int, bool)


def _row(plan: FunctionPlan, slots: list[list[Any]]) -> list[Any]:
    """Returns the plan as decoded from JSON, except that its lists may be tuples here."""
    base = plan.module.base
    return [
        plan.offset,
        _facts(plan.function),
        slots,
        plan.strategy,
        plan.reason,
        plan.site - base if plan.site else -1,
        len(plan.site_bytes),
        len(plan.displaced),
        plan.displaced_offsets,
        plan.displaced_rows,
        plan.single,
        plan.island - base if plan.island else -1,
        plan.argument_words,
        plan.has_frame_pointer,
    ]


def _plan(function: Function, row: list[Any]) -> FunctionPlan:
    _, _, _, strategy, reason, site, length, displaced, offsets, rows, single, island, words, has_pointer = row
    if site < 0:
        return FunctionPlan(function, strategy, reason, displaced_offsets=tuple(offsets), argument_words=words)
    image, base = function.module.image, function.module.base
    return FunctionPlan(
        function,
        strategy,
        reason,
        base + site,
        image.read(site, length),
        image.read(site, displaced),
        tuple(offsets),
        tuple(map(tuple, rows)),
        single,
        base + island if island >= 0 else 0,
        image.read(island, 5) if island >= 0 else b"",
        words,
        has_pointer,
    )


def _is_sound(rows: Any) -> bool:
    """Returns whether every column has the right type. The checksum covers the values."""
    return isinstance(rows, list) and all(
        isinstance(row, list)
        and len(row) == len(_COLUMNS)
        and all(map(isinstance, row, _COLUMNS))  # type: ignore[arg-type]
        and row[3] in _WORDS
        and all(type(number) is int for number in row[8])
        and all(isinstance(pair, list) and [type(part) for part in pair] == [int, str] for pair in row[2])
        and all(isinstance(rule, list) and [type(number) for number in rule] == [int] * 3 for rule in row[9])
        for row in rows
    )


def _facts(function: Function) -> str:
    """Returns a digest of what a function's names tell about it; they come from other files as well."""
    source, names = function.found_names
    return "\0".join((source, str(function.exported), *names))
