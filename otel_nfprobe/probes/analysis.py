# SPDX-License-Identifier: Apache-2.0
"""Analysis: chooses the strategy with which a function is probed, or the named reason why it is not.

    in-stack call      the trampoline calls the displaced first instructions; the body stays where it is and
                       everything below the return address moves down by 16 bytes: only valid for a function
                       that never reads its stack arguments or return address
    relocated body     the trampoline contains a copy of the whole function: nothing moves on the stack
    copied arguments   as the in-stack call, with the stack arguments pushed again
    GOT slot           calls that leave a module through a slot go to the trampoline; no code changes
    entry only         calls are counted and timestamped at their entry

Tried in this order, from the least interference: each is tried when static analysis rules out those before. Decides
only, changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache as cache_once
from functools import cached_property, lru_cache
from typing import Any, ClassVar

from otel_nfprobe.arch.architecture import of_image
from otel_nfprobe.arch.branches import scan_module
from otel_nfprobe.arch.code_facts import (
    FORMATS,
    NO_ENTRY,
    STACK_ARGUMENTS,
    UNDECODABLE,
    UNKNOWN_FRAME,
    FunctionScan,
)
from otel_nfprobe.arch.tailcalls import CALLER_SENSITIVE, RETURNS_TWICE, TailCalls, comes_back
from otel_nfprobe.base.errors import RefusedError, UsageError
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.base.strategies import (
    COPIED_ARGUMENTS,
    ENTRY_ONLY,
    GOT_SLOT,
    IN_STACK_CALL,
    RELOCATED_BODY,
    STRATEGIES,
    find_strategy,
)
from otel_nfprobe.elf import cache
from otel_nfprobe.elf.cursor import FrameError
from otel_nfprobe.elf.ehframe import Row
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, function_of, names_in
from otel_nfprobe.probes.slots import slots_leading_to
from otel_nfprobe.target.target import Target

# ---- a plan ---------------------------------------------------------------------------------------------------------
# The plan of one function: what will be done to it, or why nothing. Made and kept by analysis.py.


PLT_STUB = "PLT stub"
# Not functions: parts of one, or the linker's. They are neither listed nor counted.
PART_REASONS = frozenset((NO_ENTRY, PLT_STUB))


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """How one function will be probed, or why not.

    Attributes:
        function: which one.
        strategy: one of the values of STRATEGIES, or None when it is refused.
        reason: why it is refused, or why the strategy is not the first one; otherwise "".
        site: address in the process of the first changed byte: code, or one GOT slot.
        site_bytes: the original bytes.
        displaced: the instructions moved to the trampoline; without padding.
        displaced_offsets: from the site to each displaced instruction and, if control flow continues after them, to the
            first byte after them.
        displaced_rows: (offset from the site, DWARF register, offset): the CFA from each of them on, where it differs
            from the previous one; cfa_at_entry of the architecture initially.
        single: exactly one instruction is displaced, so the site can be changed while threads run.
        island: address in the process of padding that contains the jump for which the site has no room, or 0.
        island_bytes: its original bytes.
        argument_words: number of words of the caller's stack that are pushed again.
        has_frame_pointer: the function sets up its frame pointer first, so that this is not an argument.
    """

    function: Function
    strategy: str | None
    reason: str = ""
    site: int = 0
    site_bytes: bytes = b""
    displaced: bytes = b""
    displaced_offsets: tuple[int, ...] = ()
    displaced_rows: tuple[tuple[int, int, int], ...] = ()
    single: bool = False
    island: int = 0
    island_bytes: bytes = b""
    argument_words: int = 0
    has_frame_pointer: bool = False

    @property
    def module(self) -> Module:
        """The function's module."""
        return self.function.module

    @property
    def offset(self) -> int:
        """The function's address in its file."""
        return self.function.offset

    @property
    def size(self) -> int:
        """The function's size in bytes."""
        return self.function.size

    @property
    def address(self) -> int:
        """The function's address in the process."""
        return self.function.address

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def name_source(self) -> str:
        """Source of the name."""
        return self.function.name_source

    @property
    def is_part(self) -> bool:
        """Whether it is not a function but a part of one, or a PLT stub."""
        return self.strategy is None and self.reason in PART_REASONS

    @property
    def is_slot(self) -> bool:
        """Whether the site is a GOT slot."""
        return self.strategy == GOT_SLOT


# ---- kept plans -----------------------------------------------------------------------------------------------------
# Plans of a module's functions, kept on disk, so that the next attach need not judge them again.
#
# A wrong plan could make a target crash: what is kept is taken only for exactly the file that it was made from and for
# a function with exactly the same names. Where jumps of the function lead through GOT slots, the process decides, too:
# then the plan is kept with those slots and what they led to. It holds where they lead to the same function, or, if
# that was harmless, to any other that is. A module without a build id is found by its content.


FUNCTIONS_MIN = 1000  # a smaller module is judged as fast as its plans can be read
FRESH_MIN = 250  # new plans that justify rewriting the module's file ...
FRESH_S = 0.1  # ... or fewer that took this long: the first one may need all code of the module
KIND = "plan"
SLOTS_MAX = 64  # per plan
ROWS_MAX = 1 << 14  # frame rules near entries: most functions have those of others
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
            took_s: how long it took to make.
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
        row = None if known.is_empty else known.row(function_of(module, index))
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
        self._fresh: dict[int, tuple[FunctionPlan, list[list[Any]]]] = {}  # by offset, with their slots
        self._fresh_s = 0.0
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
        digest = hashlib.blake2b(
            f"{self.file_digest} {_version_of(of_image(self._module.image).decoder)}".encode(), digest_size=20
        )
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

    @property
    def is_empty(self) -> bool:
        return not (self.rows or self._fresh)

    def row(self, function: Function) -> list[Any] | None:
        if function.offset in self._fresh:
            self.rows[function.offset] = _row(*self._fresh[function.offset])
        row = self.rows.get(function.offset)
        return row if row is not None and row[1] == _facts(function) else None

    def keep(self, plan: FunctionPlan, slots: list[list[Any]], took_s: float) -> None:
        if self._is_kept:
            self._fresh[plan.offset] = plan, slots
            self._fresh_s += took_s

    def store(self) -> None:
        if len(self._fresh) >= FRESH_MIN or self._fresh_s >= FRESH_S:
            self.rows.update((offset, _row(plan, slots)) for offset, (plan, slots) in self._fresh.items())
            rows = [self.rows[offset] for offset in sorted(self.rows)]
            content = json.dumps(rows, separators=(",", ":")).encode()
            cache.store(self._module.build_id or self.key, KIND, content, self.key)
            self._fresh, self._fresh_s = {}, 0.0


@cache_once
def _version_of(distribution: str) -> str:
    from importlib.metadata import version  # slow to load, and most files are too small to keep plans of

    return version(distribution)


# ---- one plan as a row ----------------------------------------------------------------------------------------------

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
    island_bytes = of_image(image).jump_bytes
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
        image.read(island, island_bytes) if island >= 0 else b"",
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


# ---- making plans ---------------------------------------------------------------------------------------------------


IN_LINKER = "in the dynamic linker"
IN_LIBRARY = "in the probe library"
PROGRAM_START = "entry point of the program or of a thread"
SIGNAL_RETURN = "signal return"
NEVER_RETURNS = "never returns"
RUNTIME = "runtime support that must not be probed"
TWICE = "returns twice"
CALLER = "inspects its caller"
OWN_LOOP = "branches to its own start"
TAIL_LOOP = "its tail calls lead back to its start"
NOT_EXPORTED = "not exported, so no GOT slot leads to it"
NO_STACK_ARGUMENTS = "reads no stack arguments"

_NEVER_RETURNING = compile_late(
    r"_*(sig)?longjmp(_chk|_cancel)?|setcontext|siglongjmp|_*exit|_Exit|quick_exit|abort|pthread_exit|thrd_exit"
    r"|__assert_fail|__assert_perror_fail|__cxa_(re)?throw|_Unwind_\w+|__fortify_fail|__chk_fail|__stack_chk_fail"
    r"|__libc_fatal|clib_longjmp|clib_calljmp"
)
_NEW_STACK = compile_late(r"_*vfork|_*clone[23]?")  # the child continues in the parent's memory
_RUNTIME = compile_late(
    r"__tls_get_addr\w*|_dl_runtime_resolve\w*|_dl_fixup|_dl_debug_state|__x86_\w*thunk\w*|__llvm_\w*thunk\w*"
    r"|__dls\w*|_dlstart\w*|__clone|__unmapself|__cp_\w*|__syscall_cp\w*"  # musl's start, threads, cancellation
    r"|__fentry__|_?mcount|__restore_rt|__cxa_finalize|__morestack\w*|__register_frame\w*|__deregister_frame\w*"
)
# Most names are none of these.
_SPECIAL = compile_late(
    "|".join(names.pattern for names in (_NEVER_RETURNING, _NEW_STACK, _RUNTIME, RETURNS_TWICE, CALLER_SENSITIVE))
)


def plan_functions(
    functions: Iterable[Function], target: Target | None = None, strategy: str | None = None
) -> list[FunctionPlan]:
    """Returns one plan for each function.

    Args:
        functions: of a process, or of files.
        target: the process, to resolve jumps through GOT slots; without it they are judged by name.
        strategy: a name of STRATEGIES: only this one.

    Raises:
        UsageError: there is no such strategy.
        NfprobeError: a module is malformed.
    """
    if strategy is not None and find_strategy(strategy) is None:
        raise UsageError(f"No strategy is called {strategy!r}; there are {', '.join(STRATEGIES)}.")
    if strategy is not None:
        tail_calls = TailCalls(target)
        return [_Ladder(function, tail_calls).plan(find_strategy(strategy)) for function in functions]
    kept = KeptPlans(target)
    plans = [kept.find(function) or _judge(function, kept) for function in functions]
    kept.store()
    return plans


def _judge(function: Function, kept: KeptPlans) -> FunctionPlan:
    began_s = time.perf_counter()
    plan = _Ladder(function, kept.tail_calls).plan(None)
    return kept.keep(plan, time.perf_counter() - began_s)


def plan_function(function: Function, target: Target | None = None, strategy: str | None = None) -> FunctionPlan:
    """Returns the plan of one function; plan_functions is faster for many."""
    return plan_functions([function], target, strategy)[0]


def plan_seventh(function: Function, target: Target) -> FunctionPlan:
    """Returns a plan for a call of a function that takes exactly one word from the stack, as known from its prototype.

    Only the template of transmit, drop and hand-over functions puts that word where the function expects it.
    """
    return _Ladder(function, TailCalls(target)).plan_seventh()


def relocate_displaced(plan: FunctionPlan, new_address: int) -> tuple[bytes, list[int]]:
    """Relocates the displaced instructions to another address, with a jump back if control flow continues after them.

    Returns the code and, for each of `plan.displaced_offsets`, the offset in it. For a GOT slot the code is a jump to
    the function.

    Raises:
        NfprobeError: an instruction cannot be moved that far; the sentence is the reason.
    """
    architecture = of_image(plan.module.image)
    if plan.is_slot:
        return architecture.encode_far_jump(plan.address), [0]
    return architecture.relocate(plan.displaced, plan.site, new_address, plan.site + len(plan.displaced))


class _Ladder:
    """Tries the strategies for one function in turn."""

    def __init__(self, function: Function, tail_calls: TailCalls) -> None:
        self.function = function
        self.architecture = of_image(function.module.image)
        source, names = function.found_names
        self.is_named = source != "offset"  # an offset is not a name
        aliases = names if self.is_named else ()
        self.is_cold = any(".cold" in alias for alias in aliases)
        self.aliases = [alias for alias in aliases if _SPECIAL.fullmatch(alias)]
        self.tail_calls = tail_calls

    def plan(self, strategy: str | None) -> FunctionPlan:
        """Returns the plan by one strategy, or by the first that fits."""
        reason = self._refuse_everything()
        if reason:
            return self._refused(reason)
        if strategy is not None:
            return self.STEPS[strategy](self)
        first = ""
        for step in self.STEPS.values():
            plan = step(self)
            if plan.strategy is not None:
                return replace(plan, reason=first) if first else plan
            first = first or plan.reason
        return self._refused(plan.reason if self._end() else first)

    def _refused(self, reason: str) -> FunctionPlan:
        return FunctionPlan(self.function, None, reason)

    def _refuse_everything(self) -> str:
        """Returns why the function cannot be probed at all, or ""."""
        function, module = self.function, self.function.module
        if module.is_dynamic_linker:
            return IN_LINKER
        if module.is_probe_library:
            return IN_LIBRARY
        if module.image.unread:
            return f"{module.name} cannot be read: {module.image.failure}"
        if function.name_source == "section":
            return PLT_STUB
        if self.aliases and any(_RUNTIME.fullmatch(alias) for alias in self.aliases):
            return RUNTIME
        self.scan = scan_module(module.image)
        self.index = self.scan.index_of(function.offset)
        if function.frame.common.is_signal_frame:
            return SIGNAL_RETURN
        self.is_ordinary = self.scan.ordinary[self.index]
        if self.is_ordinary:
            return NO_ENTRY if self.is_cold else ""
        if self.own.outermost:
            return ""
        if not self.own.own_entry or self.is_cold:
            return NO_ENTRY
        return NO_ENTRY if self.scan.is_part(self.index, self.is_named) else ""

    @cached_property
    def own(self) -> FunctionScan:
        """Facts from the function's own bytes."""
        return self.scan.at(self.index)

    def _end(self) -> str:
        """Returns why a call of the function never returns normally, or ""."""
        if not self.is_ordinary and self.own.outermost:
            return PROGRAM_START
        if self.aliases and any(_NEVER_RETURNING.fullmatch(alias) for alias in self.aliases):
            return NEVER_RETURNS
        if not self.is_ordinary and not self.own.has_exit and self.own.trouble != UNDECODABLE:
            return NEVER_RETURNS
        if self.aliases and any(_NEW_STACK.fullmatch(alias) for alias in self.aliases):
            return TWICE
        return ""

    def _frame_must_stay(self) -> str:
        """Returns why the function cannot be called from a trampoline, or ""."""
        reason = self._end()
        for alias in self.aliases:
            if RETURNS_TWICE.fullmatch(alias):
                reason = reason or TWICE
            if CALLER_SENSITIVE.fullmatch(alias):
                reason = reason or CALLER
        return reason or self.tail_calls.trouble(self.function.module, self.index)

    def _loops(self) -> str:
        """Returns why its start is reached without a call, or ""."""
        if self.is_ordinary:
            return ""
        start = self.function.offset
        if any(start <= address <= start + self.architecture.landing_pad_bytes for address in self.own.near):
            site = self.architecture.find_site(self.function, self.scan, self.index, self.function.frame.has_lsda)
            if {start, site.offset} & set(self.own.near):
                return OWN_LOOP
        return TAIL_LOOP if comes_back(self.scan, self.index) else ""

    def _in_stack(self) -> FunctionPlan:
        reason = self._frame_must_stay() or self._loops()
        return self._refused(reason) if reason else self._at_site(IN_STACK_CALL)

    def plan_seventh(self) -> FunctionPlan:
        """Returns an in-stack plan for a function that is only unsuitable because it takes an argument from the
        stack.
        """
        reason = self._refuse_everything()
        reason = reason or self._frame_must_stay()
        reason = self._loops() if reason in ("", STACK_ARGUMENTS) else reason
        return self._refused(reason) if reason else self._at_site(IN_STACK_CALL)

    def _relocated(self) -> FunctionPlan:
        reason = self._end() or self.architecture.check_body(self.scan, self.index)
        return self._refused(reason) if reason else self._at_site(RELOCATED_BODY)

    def _copied(self) -> FunctionPlan:
        reason, words = self._count_words()
        reason = reason or self._loops() or ("" if words else NO_STACK_ARGUMENTS)
        return self._refused(reason) if reason else self._at_site(COPIED_ARGUMENTS, words)

    def _count_words(self) -> tuple[str, int]:
        reason = self._end()
        if any(RETURNS_TWICE.fullmatch(alias) or CALLER_SENSITIVE.fullmatch(alias) for alias in self.aliases):
            reason = reason or CALLER
        if reason:
            return reason, 0
        try:
            return "", self.architecture.count_words(self.tail_calls, self.function.module, self.index)
        except RefusedError as refusal:
            return refusal.sentence, 0

    def _slot(self) -> FunctionPlan:
        if not self.function.exported:
            return self._refused(NOT_EXPORTED)
        reason, words = self._frame_must_stay(), 0
        if reason:
            stays = reason
            reason, words = self._count_words()
            if reason or not words:
                return self._refused(stays)
        return FunctionPlan(self.function, GOT_SLOT, displaced_offsets=(0,), argument_words=words)

    def _entry_only(self) -> FunctionPlan:
        reason = self._loops()
        return self._refused(reason) if reason else self._at_site(ENTRY_ONLY)

    STEPS: ClassVar[Mapping[str, Callable[[_Ladder], FunctionPlan]]] = {
        "in-stack": _in_stack,
        "relocated": _relocated,
        "copied": _copied,
        "got": _slot,
        "entry": _entry_only,
    }

    def _rules(self) -> tuple[Row, ...] | None:
        try:
            return self.scan.entry_rows(self.index)
        except FrameError:
            return None

    def _at_site(self, strategy: str, words: int = 0) -> FunctionPlan:
        function = self.function
        moves_calls = strategy != RELOCATED_BODY and function.frame.has_lsda
        site = self.architecture.find_site(function, self.scan, self.index, moves_calls)
        rules = () if strategy == RELOCATED_BODY else self._rules()
        before, skipped = self.architecture.cfa_at_entry, site.offset - function.offset
        rows = _rows(rules, skipped, site.boundaries, before) if rules else None if rules is None else ()
        reason = site.reason or (UNKNOWN_FRAME if rows is None else "")
        if reason:
            return self._refused(reason)
        image, base, architecture = function.module.image, function.module.base, self.architecture
        return FunctionPlan(
            function,
            strategy,
            "",
            base + site.offset,
            site.displaced[: site.length]
            if site.length <= len(site.displaced)
            else image.read(site.offset, site.length),
            site.displaced,
            site.boundaries,
            rows or (),
            site.single,
            base + site.island if site.island else 0,
            image.read(site.island, architecture.jump_bytes) if site.island else b"",
            words,
            strategy == IN_STACK_CALL and architecture.sets_frame_pointer(site.displaced, rules or ()),
        )


@lru_cache(maxsize=ROWS_MAX)
def _rows(
    rules: tuple[Row, ...], skipped: int, boundaries: tuple[int, ...], before: tuple[int, int]
) -> tuple[tuple[int, int, int], ...] | None:
    found: list[tuple[int, int, int]] = []
    position, last = 0, len(rules) - 1
    for offset in boundaries:
        while position < last and rules[position + 1].address <= skipped + offset:
            position += 1
        row = rules[position]
        if row.register < 0:
            return None
        if (row.register, row.offset) != before:
            before = (row.register, row.offset)
            found.append((offset, *before))
    return tuple(found)


def find_slots(target: Target, plans: Sequence[FunctionPlan]) -> list[FunctionPlan]:
    """Returns one plan for each GOT slot that leads to a function whose strategy is GOT_SLOT.

    Slots of the dynamic linker and the probe library are left alone. A slot that still leads to the dynamic linker
    counts for the function that its name will be bound to.

    Raises:
        NfprobeError: the target has ended.
    """
    wanted = {plan.address: plan for plan in plans if plan.is_slot}
    found = []
    for slot in slots_leading_to(target, {address: plan.function for address, plan in wanted.items()}):
        plan = wanted[slot.function]
        found.append(replace(plan, site=slot.address, site_bytes=slot.value.to_bytes(8, "little")))
    return found


def refused(plans: Sequence[FunctionPlan]) -> dict[str, int]:
    """Returns the number of refused functions by reason, the most frequent first."""
    counts: dict[str, int] = {}
    for plan in plans:
        if plan.strategy is None:
            counts[plan.reason] = counts.get(plan.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
