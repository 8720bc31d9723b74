# SPDX-License-Identifier: Apache-2.0
"""Plans of a module's functions, kept on disk, so that the next attach need not judge them again.

A wrong plan could make a target crash: what is kept is taken only for exactly the file that it was made from and for
a function with exactly the same names. Where jumps of the function lead through GOT slots, the process decides, too:
then the plan is kept with those slots and what they led to. It holds where they lead to the same function, or, if that
was harmless, to any other that is. A module without a build id is found by its content.
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

FUNCTIONS_MIN = 1000  # a smaller module is judged as fast as its plans are read
FRESH_MIN = 250  # plans that are worth writing the module's anew ...
FRESH_S = 0.1  # ... or fewer that took so long: the first one may need all code of the module
KIND = "plan"
SLOTS_MAX = 64  # that one plan depends on
_WORDS = (None, *STRATEGIES.values())


class KeptPlans:
    """The plans that are known of all modules that somebody asks about.

    Attributes:
        tail_calls: judges where jumps of functions lead that have no plan yet.
    """

    def __init__(self, target: Target | None) -> None:
        self._modules: dict[int, _ModulePlans] = {}
        self.tail_calls = TailCalls(target)
        # Apart from the other: a verdict may depend on which functions were judged before.
        self._conditions = TailCalls(target, self._clean_unless)

    def find(self, function: Function) -> FunctionPlan | None:
        """The plan that an earlier analysis made by all strategies in turn, where it holds; else None."""
        known = self._of(function.module)
        row = known.row(function)
        if row is not None and all(self._behind(function.module, slot) == behind for slot, behind in row[2]):
            return _plan(function, row)
        self.tail_calls.consulted.clear()
        return None

    def keep(self, plan: FunctionPlan, took_s: float) -> FunctionPlan:
        """Takes over a new plan, that of the function which was last looked for.

        Args:
            took_s: processor time that it took.
        """
        module, consulted = plan.module, self.tail_calls.consulted
        if not consulted:
            self._of(module).keep(plan, [], took_s)
            return plan
        own = [slot for owner, slot in consulted if owner == id(module)]
        slots = [[slot, self._behind(module, slot)] for slot in sorted(own)[: SLOTS_MAX + 1]]
        # Behind a harmful function there may be anything; what is not found through other modules' slots is known.
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
        """What is behind a slot: "" for nothing harmful, else which function of which file."""
        node = self._conditions.harm_behind(module, slot)
        return "" if node is None else f"{self._of(node[0]).file_digest} {node[1]}"

    def _clean_unless(self, module: Module, index: int) -> Sequence[int] | None:
        """What TailCalls wants to know."""
        if "names" not in module.cache:  # nobody looks at its functions: their names may take long to read
            return None
        known = self._of(module)
        row = known.row(function_of(module, index)) if known.rows else None
        if row is None or row[3] != IN_STACK_CALL or any(behind for _, behind in row[2]):
            return None
        return [slot for slot, _ in row[2]]

    def store(self) -> None:
        """Writes what is new to disk where it is worth it."""
        for known in self._modules.values():
            known.store()


class _ModulePlans:
    """The plans that are known of one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._fresh, self._fresh_s = 0, 0.0
        # The first two are refused by the name of their file, which may change, the last for what happened just now.
        self._is_kept = len(module.image.frames.frames) >= FUNCTIONS_MIN and not (
            module.is_dynamic_linker or module.is_probe_library or module.image.unread
        )

    @cached_property
    def rows(self) -> dict[int, list[Any]]:
        """By the function's offset."""
        return self._load() if self._is_kept else {}

    @cached_property
    def file_digest(self) -> str:
        """Of all of the file."""
        return self._module.image.content.digest

    @cached_property
    def key(self) -> str:
        """What all plans of the module depend on: the file, and which functions jumps lead to by name."""
        digest = hashlib.blake2b(f"{self.file_digest} {version('iced-x86')}".encode(), digest_size=20)
        names = names_in(self._module)  # not those of slots, which are others in each process
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
    """As JSON gives it back, but for its lists, which may be tuples here."""
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
    """Whether every column holds what it should. That the values are right is the checksum's business."""
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
    """What is known of a function by its names: they tell what it does, and they are from other files, too."""
    source, names = function.found_names
    return "\0".join((source, str(function.exported), *names))
