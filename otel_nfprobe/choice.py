# SPDX-License-Identifier: Apache-2.0
"""Choice: which functions of a target are probed, by the command line and the adapter. Touches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import Adapter, RoleFunction
from otel_nfprobe.analysis import IN_STACK_CALL, FunctionPlan, find_slots, plan_functions
from otel_nfprobe.errors import UsageError
from otel_nfprobe.session import PROGRAM_COUNT
from otel_nfprobe.symbols import Function, find_functions, function_at
from otel_nfprobe.target import Target
from otel_nfprobe.trampoline import ProbeRequest

NEEDS_STOP = "needs a stop of all threads, and --no-stop was given"
NO_SLOT = "no GOT slot leads to it"
ALL_BITS = 0xFFFFFFFF


@dataclass
class Choice:
    """What is to be probed.

    Attributes:
        adapter: what knows this kind of NF, or None.
        roles: receive, transmit and drop functions with what their probes read; the position is the number
            of the capture program.
        plans: strategy or refusal of every function, one for each GOT slot.
        refused: number of functions without a probe, by reason.
    """

    adapter: Adapter | None
    roles: Sequence[RoleFunction]
    plans: Sequence[FunctionPlan]
    refused: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for plan in self.plans:
            if plan.strategy is None:
                self.refuse(plan.reason)

    def refuse(self, reason: str, count: int = 1) -> None:
        """Counts functions that get no probe."""
        self.refused[reason] = self.refused.get(reason, 0) + count

    def requests(self) -> list[ProbeRequest]:
        """One request per site that can be probed."""
        programs = {role.address: index for index, role in enumerate(self.roles)}
        return [self._request(plan, programs.get(plan.address)) for plan in self.plans if plan.strategy is not None]

    def _request(self, plan: FunctionPlan, program: int | None) -> ProbeRequest:
        if program is None:
            return ProbeRequest(plan)
        role = self.roles[program]
        if role.role != lib.NFP_ROLE_RECEIVE:
            return ProbeRequest(plan, lib.NFP_SHAPE_PACKETS, program)
        return ProbeRequest(plan, lib.NFP_SHAPE_RECEIVE, program, int(role.program.get("count_mask", ALL_BITS)))


def choose(
    target: Target,
    adapter: Adapter | None,
    globs: Sequence[str],
    excluded: Sequence[str],
    strategy: str | None = None,
    no_stop: bool = False,
) -> Choice:
    """Plans of the adapter's functions and of those that the globs name.

    Without globs the adapter's further functions are probed, too.

    Raises:
        UsageError: nothing was chosen, or a glob matches nothing.
        RefusedError: the adapter cannot find its functions in this target.
    """
    roles = list(adapter.roles(target)) if adapter else []
    if len(roles) > PROGRAM_COUNT:
        raise UsageError(f"The adapter {adapter.name if adapter else ''} names more than {PROGRAM_COUNT} functions.")
    wanted = list(globs)
    if not wanted and adapter:
        wanted = list(adapter.inner)
    if not wanted and not roles:
        raise UsageError(
            f"Nothing to probe: no adapter knows process {target.pid}, and no --functions were given.",
            f"nfprobe functions {target.pid}",
        )
    functions = {role.address: _function_of(target, role) for role in roles}
    for function in find_functions(target, wanted, excluded) if wanted else []:
        functions.setdefault(function.address, function)
    if not functions:
        raise UsageError("--exclude leaves no function to probe.", f"nfprobe functions {target.pid}")
    plans = plan_functions(list(functions.values()), target, strategy)
    if no_stop:
        plans = [_without_stop(plan) for plan in plans]
    return Choice(adapter, roles, _with_slots(target, plans))


def _function_of(target: Target, role: RoleFunction) -> Function:
    for module in target.modules():
        function = function_at(module, role.address - module.base)
        if function is not None and function.address == role.address:
            return function
    raise UsageError(f"{role.label} is not the start of a function.", f"nfprobe functions {target.pid}")


def _without_stop(plan: FunctionPlan) -> FunctionPlan:
    return replace(plan, strategy=None, reason=NEEDS_STOP) if plan.strategy == IN_STACK_CALL else plan


def _with_slots(target: Target, plans: Sequence[FunctionPlan]) -> list[FunctionPlan]:
    """GOT slot plans become one plan for each slot."""
    slots = find_slots(target, plans) if any(plan.is_slot for plan in plans) else []
    served = {slot.address for slot in slots}
    others = [
        plan if not plan.is_slot else replace(plan, strategy=None, reason=NO_SLOT)
        for plan in plans
        if not plan.is_slot or plan.address not in served
    ]
    return others + slots
