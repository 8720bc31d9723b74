# SPDX-License-Identifier: Apache-2.0
"""Probe selection: which functions of a target are probed, by the command line and the adapter. Changes nothing.

It keeps the request, so that modules which the target loads later are judged by the same rules.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import FREE, READ_NO_PACKETS, VECTORS, Adapter, FollowingAdapter, RoleFunction
from otel_nfprobe.arch.snippet import Capture
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.gc_tuning import collection_paused
from otel_nfprobe.base.strategies import COPIED_ARGUMENTS, ENTRY_ONLY, GOT_SLOT, IN_STACK_CALL
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, find_functions, function_at, use_archives
from otel_nfprobe.probes.analysis import FunctionPlan, find_slots, plan_function, plan_functions, plan_seventh
from otel_nfprobe.probes.template import NO_ARGUMENT
from otel_nfprobe.probes.trampoline import ProbeRequest
from otel_nfprobe.shm.session import GATE_INNER, GATE_OUTER, NODE_PROGRAM, PROGRAM_COUNT
from otel_nfprobe.target.target import Target

NEEDS_STOP = "needs a stop of all threads, and --no-stop was given"
NO_SLOT = "no GOT slot leads to it"
NO_CAPTURE = "a snippet needs an in-stack call, a relocated body or a GOT slot"
ALL_BITS = 0xFFFFFFFF
Snippets = dict[tuple[str, int], bytes]  # code by the function's file and its address in it


UNPROBED_SHOWN = 4  # functions that a sentence names
DESCRIBE = "docs/describe-your-nf.md"
UNWINDER = "libgcc_s.so"  # the helper thread loads it when the target has not


@dataclass(frozen=True)
class SelectionRequest:
    """The request.

    Attributes:
        globs: functions, from the command line or else from the adapter.
        excluded: functions that are left out.
        strategy: the only one, or None.
        no_stop: the target's threads must not be stopped.
        waiting: those globs that name a module which is not loaded yet.
        captures: snippets and the functions they are for; their globs are among `globs`.
    """

    globs: Sequence[str] = ()
    excluded: Sequence[str] = ()
    strategy: str | None = None
    no_stop: bool = False
    waiting: Sequence[str] = ()
    captures: Sequence[Capture] = ()


@dataclass
class Choice:
    """What is to be probed.

    Attributes:
        adapter: for this kind of NF, or None.
        roles: receive, transmit and drop functions with what their probes read.
        plans: strategy or refusal of every function, one for each GOT slot.
        request: the request, for modules that are loaded later.
        modules: loaded when this was decided.
        by_slot: plans of the functions that are probed wherever a GOT slot leads to them.
        snippets: which function captures a value.
        refused: number of functions without a probe, by reason.
    """

    adapter: Adapter | None
    roles: Sequence[RoleFunction]
    plans: Sequence[FunctionPlan]
    request: SelectionRequest = field(default_factory=SelectionRequest)
    modules: Sequence[Module] = ()
    by_slot: Sequence[FunctionPlan] = ()
    snippets: Snippets = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    _anchors: dict[str, Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._count_refused(self.plans)
        self._paths = {plan.address: plan.module.path for plan in self.plans}
        self._by_address = {role.address: role for role in self.roles}
        self._judged: set[str] = set()

    def refuse(self, *counts: Mapping[str, int]) -> None:
        """Counts functions without a probe, given by reason."""
        for reason, count in (item for of_reason in counts for item in of_reason.items()):
            self.refused[reason] = self.refused.get(reason, 0) + count

    def _count_refused(self, plans: Sequence[FunctionPlan]) -> None:
        for plan in plans:
            if plan.strategy is None:
                self.refuse({plan.reason: 1})

    def tell_unprobed(self, plans: Sequence[FunctionPlan]) -> str:
        """Returns a sentence about receive, transmit or drop functions without a probe; empty if all have one."""
        probed = {plan.address for plan in (*self.plans, *self.by_slot) if plan.strategy is not None}
        labels: dict[int, str] = {}
        for plan in plans:
            role = None if plan.address in probed else self.role_of(plan)
            if role is not None and role.role not in (*READ_NO_PACKETS, FREE):
                labels[plan.address] = f"{role.label} ({plan.reason})"
        if not labels:
            return ""
        shown = ", ".join(list(labels.values())[:UNPROBED_SHOWN])
        others = f" and {len(labels) - UNPROBED_SHOWN} others" if len(labels) > UNPROBED_SHOWN else ""
        return f"{shown}{others} cannot be probed: the disposition of packets there is unknown."

    def requests(self, plans: Sequence[FunctionPlan] | None = None) -> list[ProbeRequest]:
        """Returns one request per site that can be probed, of all plans or of these."""
        chosen = self.plans if plans is None else plans
        return [self._request(plan) for plan in chosen if plan.strategy is not None]

    def role_of(self, plan: FunctionPlan) -> RoleFunction | None:
        """Returns the adapter's description of the plan's function."""
        if not self._by_address:
            return None
        came_later = self._paths.get(plan.address) != plan.module.path  # another module was loaded at its address
        return None if came_later else self._by_address.get(plan.address)

    def leave_out(self, role: int) -> None:
        """Leaves functions of this role unprobed."""
        addresses = {item.address for item in self.roles if item.role == role}
        self.plans = [plan for plan in self.plans if plan.address not in addresses]
        self.by_slot = [plan for plan in self.by_slot if plan.address not in addresses]

    def readers(self) -> list[RoleFunction]:
        """Returns the roles whose probes read packets; the position is the number of the capture program."""
        return _readers(self.roles)

    def _request(self, plan: FunctionPlan) -> ProbeRequest:
        role = self.role_of(plan)
        if role is None or role.role in READ_NO_PACKETS:
            gate = GATE_INNER if role is None else GATE_OUTER
            snippet = self.snippets.get(_place(plan.function), b"")
            is_node = role is not None and role.unit == VECTORS and snippet == role.snippet
            return ProbeRequest(plan, program=NODE_PROGRAM if is_node else 0, gate=gate, snippet=snippet)
        program = self.readers().index(role)
        if role.role not in (lib.NFP_ROLE_RECEIVE, lib.NFP_ROLE_DEQUEUE):
            return ProbeRequest(plan, lib.NFP_SHAPE_PACKETS, program, when=int(role.program.get("when", 0)))
        mask, when = int(role.program.get("count_mask", ALL_BITS)), int(role.program.get("when", 0))
        queue = int(role.program.get("queue_argument", NO_ARGUMENT))
        return ProbeRequest(plan, lib.NFP_SHAPE_RECEIVE, program, mask, when=when, queue_argument=queue)

    # ---- modules that are loaded later ---------------------------------------------------------------------

    def add_modules(self, target: Target, modules: Sequence[Module]) -> list[FunctionPlan]:
        """Judges the functions of modules that were loaded in the meantime. Returns plans of new sites in code.

        Functions to be probed by GOT slots are added to `by_slot`: `find_slots` finds the sites.

        Raises:
            NfprobeError: a module is malformed.
        """
        functions: dict[int, Function] = {}
        fresh = [m for m in modules if not (m.name.startswith(UNWINDER) or m.is_probe_library)]
        for glob in self.request.globs:
            for function in self._find_in(fresh, glob):
                functions.setdefault(function.address, function)
        self.snippets.update(self._snippets_in(fresh))
        plans = _plan(target, list(functions.values()), self.request, self.snippets)
        self._count_refused([plan for plan in plans if plan.module.path not in self._judged])
        self._judged.update(module.path for module in fresh)
        code = [plan for plan in plans if plan.strategy is not None and not plan.is_slot]
        self.plans = [*self.plans, *(plan for plan in plans if not plan.is_slot)]
        self.by_slot = [*self.by_slot, *(plan for plan in plans if plan.is_slot)]
        return code

    def add_roles(self, target: Target) -> list[FunctionPlan]:
        """Asks the adapter for functions that only now receive, transmit or drop. Returns plans of new sites.

        Raises:
            NfprobeError: they cannot be found at this moment.
        """
        if not isinstance(self.adapter, FollowingAdapter):
            return []
        found = self.adapter.later_roles(target)
        known = {*(role.address for role in self.roles), *(plan.address for plan in self.plans)}
        fresh = [role for role in found if role.address not in known]
        without_room = _readers(fresh)[PROGRAM_COUNT - len(self.readers()) :]
        fresh = [role for role in fresh if role not in without_room]
        if not fresh:
            return []
        modules = target.modules()
        functions = {role.address: _function_of(target, modules, role) for role in fresh}
        self.snippets |= {_place(functions[role.address]): role.snippet for role in fresh if role.snippet}
        plans = _plan(target, list(functions.values()), self.request, self.snippets)
        served = {role.address: role for role in _readers(fresh)}
        plans = [_callable(plan, target, served[plan.address]) if plan.address in served else plan for plan in plans]
        plans = _with_slots(target, plans, self.request)
        self.roles = [*self.roles, *fresh]
        self._by_address = {role.address: role for role in self.roles}
        self._count_refused(plans)
        self._paths.update({plan.address: plan.module.path for plan in plans})
        self.plans = [*self.plans, *plans]
        return plans

    def _snippets_in(self, modules: Sequence[Module]) -> Snippets:
        found: Snippets = {}
        for capture in self.request.captures:
            for function in self._find_in(modules, capture.glob):
                found.setdefault(_place(function), capture.snippet.code)
        return found

    def forget_module(self, module: Module) -> None:
        """Forgets an unloaded module: nothing leads to its functions any more, and its own slots are gone."""
        self.by_slot = [plan for plan in self.by_slot if plan.module is not module]
        self.plans = [
            plan
            for plan in self.plans
            if plan.module is not module and not (plan.is_slot and module.low <= plan.site < module.high)
        ]

    def new_slots(self, target: Target, known: set[int]) -> list[FunctionPlan]:
        """Returns one plan for each GOT slot that is not among the known addresses and leads to a function of
        `by_slot`.
        """
        if not self.by_slot:
            return []
        fresh = [plan for plan in find_slots(target, self.by_slot) if plan.site not in known]
        self.plans = [*self.plans, *fresh]
        return fresh

    def _find_in(self, modules: Sequence[Module], glob: str) -> list[Function]:
        """Returns matching functions of these modules, or none without an error: a glob may match in other modules."""
        if glob not in self._anchors:
            with suppress(UsageError):
                self._anchors[glob] = find_functions(list(self.modules), [glob])[0].module
        anchor = self._anchors.get(glob)
        places = [*modules, anchor] if anchor is not None and anchor not in modules else list(modules)
        try:
            found = find_functions(places, [glob], self.request.excluded)
        except UsageError:
            return []
        return [function for function in found if function.module in modules]


@collection_paused()
def choose(
    target: Target,
    adapter: Adapter | None,
    globs: Sequence[str],
    excluded: Sequence[str],
    strategy: str | None = None,
    no_stop: bool = False,
    archives: Sequence[str] = (),
    captures: Sequence[Capture] = (),
    further: Sequence[Function] = (),
) -> Choice:
    """Plans the adapter's functions, those named by the globs, and optional ones.

    Without globs the adapter's optional functions are probed as well; those with a snippet always are. A glob
    `module:name` may name a module that is not loaded yet, if there is something to probe already.

    Raises:
        UsageError: nothing was chosen, or a glob matches nothing.
        RefusedError: the adapter cannot find its functions in this target.
    """
    if archives:
        use_archives(target, archives)
    roles = list(adapter.roles(target)) if adapter else []
    if len(_readers(roles)) > PROGRAM_COUNT:
        raise UsageError(f"The adapter {adapter.name if adapter else ''} names more than {PROGRAM_COUNT} functions.")
    wanted = _find_wanted(target, adapter, roles, [*globs], [capture.glob for capture in captures])
    modules = target.modules()
    waiting = [glob for glob in wanted if _names_absent_module(glob, modules)]
    if len(waiting) == len(wanted) and not roles:
        waiting = []  # nothing could be measured: find_functions reports that
    request = SelectionRequest(wanted, excluded, strategy, no_stop, waiting, captures)
    functions = {role.address: _function_of(target, modules, role) for role in roles}
    present = [glob for glob in wanted if glob not in waiting]
    for function in [*(find_functions(target, present, excluded) if present else []), *further]:
        functions.setdefault(function.address, function)
    if not functions:
        raise UsageError("--exclude leaves no function to probe.", f"nfprobe functions {target.pid}")
    snippets = _find_snippets(target, request, roles)
    snippets |= {_place(functions[role.address]): role.snippet for role in roles if role.snippet}
    plans = _plan(target, list(functions.values()), request, snippets)
    served = {role.address: role for role in _readers(roles)}
    by_slot = [plan for plan in plans if plan.is_slot]
    plans = [_callable(plan, target, served[plan.address]) if plan.address in served else plan for plan in plans]
    return Choice(adapter, roles, _with_slots(target, plans, request), request, modules, by_slot, snippets)


def _find_wanted(
    target: Target, adapter: Adapter | None, roles: Sequence[RoleFunction], globs: list[str], captured: Sequence[str]
) -> list[str]:
    wanted = globs or (list(adapter.inner) if adapter else [])
    wanted += captured
    if not wanted and not roles:
        raise nothing_to_probe(target)
    return wanted


def nothing_to_probe(target: Target) -> UsageError:
    """Neither an adapter nor the user names a function."""
    return UsageError(
        f"Nothing to probe: no adapter knows process {target.pid} ({target.name}), and no --functions were given;"
        f" {DESCRIBE} says how to describe it.",
        f"nfprobe attach {target.pid} --adapter FILE.yaml  # or --functions GLOB",
    )


def _readers(roles: Sequence[RoleFunction]) -> list[RoleFunction]:
    return [role for role in roles if role.role not in READ_NO_PACKETS]


def _find_snippets(target: Target, request: SelectionRequest, roles: Sequence[RoleFunction]) -> Snippets:
    found: Snippets = {}
    addresses = {role.address for role in roles}
    next_command = f"nfprobe functions {target.pid}"
    for capture in request.captures:
        if capture.glob in request.waiting:
            continue
        for function in find_functions(target, [capture.glob], request.excluded):
            if function.address in addresses:
                sentence = f"{function.label} is the adapter's, which reads its packets: it cannot have a snippet."
                raise UsageError(sentence, next_command)
            if found.setdefault(_place(function), capture.snippet.code) != capture.snippet.code:
                raise UsageError(f"{function.label} has two snippets, and a call captures one value.", next_command)
    return found


def _place(function: Function) -> tuple[str, int]:
    return function.module.path, function.offset


def _without_capture(plan: FunctionPlan, snippets: Snippets) -> FunctionPlan:
    cannot = plan.strategy in (COPIED_ARGUMENTS, ENTRY_ONLY) and _place(plan.function) in snippets
    return replace(plan, strategy=None, reason=NO_CAPTURE) if cannot else plan


def _plan(
    target: Target, functions: list[Function], request: SelectionRequest, snippets: Snippets
) -> list[FunctionPlan]:
    plans = [
        _without_capture(plan, snippets)
        for plan in plan_functions(functions, target, request.strategy)
        if not plan.is_part  # a cold part is measured with its function
    ]
    return [_without_stop(plan) for plan in plans] if request.no_stop else plans


def _callable(plan: FunctionPlan, target: Target, role: RoleFunction) -> FunctionPlan:
    """Receive, transmit and drop functions are called from their trampoline: nothing else can read their return
    value.
    """
    if plan.strategy in (None, IN_STACK_CALL, GOT_SLOT):
        return plan
    if role.takes_seventh:
        return plan_seventh(plan.function, target)
    if plan.reason:  # an in-stack call was tried first: this is why it is impossible
        return FunctionPlan(plan.function, None, plan.reason)
    return plan_function(plan.function, target, "in-stack")


def _names_absent_module(glob: str, modules: Sequence[Module]) -> bool:
    name, colon, function = glob.partition(":")
    if not colon or not name or not function or function.startswith(":"):  # C++ names contain "::"
        return False
    return not any(fnmatch.fnmatchcase(known, name) for module in modules for known in module.names)


def _function_of(target: Target, modules: Sequence[Module], role: RoleFunction) -> Function:
    for module in modules:
        if not module.low <= role.address < module.high:
            continue
        function = function_at(module, role.address - module.base)
        if function is not None and function.address == role.address:
            return function
    target.check_not_ended()  # while its modules were read
    raise UsageError(f"{role.label} is not the start of a function.", f"nfprobe functions {target.pid}")


def _without_stop(plan: FunctionPlan) -> FunctionPlan:
    needs_stop = plan.strategy is not None and not plan.is_slot and not plan.single
    return replace(plan, strategy=None, reason=NEEDS_STOP) if needs_stop else plan


def _with_slots(target: Target, plans: Sequence[FunctionPlan], request: SelectionRequest) -> list[FunctionPlan]:
    """Expands GOT slot plans to one plan for each slot; where there is none the last strategy is tried."""
    slots = find_slots(target, plans) if any(plan.is_slot for plan in plans) else []
    served = {slot.address for slot in slots}
    others = [
        plan if not plan.is_slot else _without_slot(plan, target, request)
        for plan in plans
        if not plan.is_slot or plan.address not in served
    ]
    return others + slots


def _without_slot(plan: FunctionPlan, target: Target, request: SelectionRequest) -> FunctionPlan:
    if request.strategy is None:
        last = plan_function(plan.function, target, "entry")
        if last.strategy is not None and not (request.no_stop and not last.single):
            return replace(last, reason=plan.reason)
    return replace(plan, strategy=None, reason=NO_SLOT)
