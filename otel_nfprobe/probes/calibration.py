# SPDX-License-Identifier: Apache-2.0
"""Calibration: the cost of one probed call on this CPU, in this target, by strategy.

The helper thread calls a function that does nothing through real trampolines. Of the ticks added by a probe, those
between its two timestamps are charged to the function, the others to its caller; reports subtract both
(native/core/calltree.h). Done at every attach, in a few milliseconds, on the helper thread's CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.columns import COST, Rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.strategies import COPIED_ARGUMENTS, ENTRY_ONLY, GOT_SLOT, IN_STACK_CALL, RELOCATED_BODY
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.arena import Arenas
from otel_nfprobe.probes.template import fill_template, template_values
from otel_nfprobe.probes.trampoline import Probe
from otel_nfprobe.shm.session import Session

ROOM_BYTES = 4096
ALIGNMENT_BYTES = 64
TICKS_MAX = np.iinfo(COST["whole_ticks"]).max  # per call; larger values are invalid
SHAPES: Mapping[str, int] = {
    IN_STACK_CALL: lib.NFP_SHAPE_CALL,
    RELOCATED_BODY: lib.NFP_SHAPE_ENTER,
    COPIED_ARGUMENTS: lib.NFP_SHAPE_COPY_8,
    GOT_SLOT: lib.NFP_SHAPE_CALL,
    ENTRY_ONLY: lib.NFP_SHAPE_MARK,
}


def empty_function() -> bytes:
    """Returns the code of a function that does nothing, in as many bytes as a probe displaces, and returns."""
    return of_host().no_operation + of_host().return_code


class Cost(NamedTuple):
    """Ticks of one probed call: between its timestamps, and in total."""

    inside_ticks: float
    whole_ticks: float


def calibrate(session: Session, arenas: Arenas, module: Module, strategies: Iterable[str]) -> dict[str, Cost]:
    """Measures the strategies in the target. Those that cannot be measured are left out.

    Args:
        module: any module with trampolines nearby.
    """
    costs: dict[str, Cost] = {}
    try:
        arena = arenas.near(module, ROOM_BYTES, in_file=False)
    except NfprobeError:  # the trampolines have used all free memory there
        return costs
    entry = arenas.entry(arena)
    used = int(entry.used)
    start = -(-used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    for strategy in strategies:
        address = int(entry.address) + start
        code = empty_function().ljust(ALIGNMENT_BYTES, of_host().trap)
        code += write_probed(session, SHAPES[strategy], address + len(code), address, strategy == GOT_SLOT)
        arenas.mapping(arena)[start : start + len(code)] = code
        entry.used = start + len(code)  # reserved until the helper thread has finished
        try:
            result = session.ask(lib.NFP_COMMAND_CALIBRATE, address, address + ALIGNMENT_BYTES)
        except NfprobeError:
            result = -1
        calls = int(session.header.calibrated_calls)
        if result == 0 and calls:
            inside = int(session.header.calibrated_inside_ticks) / calls
            whole = int(session.header.calibrated_added_ticks) / calls
            if whole <= TICKS_MAX:
                costs[strategy] = Cost(min(inside, whole), whole)
    entry.used = used
    return costs


def write_probed(
    session: Session,
    shape: int,
    address: int,
    bare: int = 0,
    is_slot: bool = False,
    program: int = 0,
    is_empty: bool = False,
) -> bytes:
    """Returns a function at `address` that does nothing, probed by a template.

    Args:
        shape: enum nfp_shape.
        bare: address of a function without probe, for a GOT slot: reached through the slot.
        program: capture program index of a receive, transmit or drop function.
        is_empty: a receive function that returns nothing.
    """
    values, host = template_values(session), of_host()
    values.program = program
    if shape == lib.NFP_SHAPE_RECEIVE:
        values.when, values.return_mask = (lib.NFP_WHEN_NONZERO, 0) if is_empty else (lib.NFP_WHEN_ALWAYS, 0xFFFFFFFF)
    if is_slot:
        return fill_template(shape, values) + host.encode_far_jump(bare)
    trampoline = address + ALIGNMENT_BYTES
    site = address
    if shape in (lib.NFP_SHAPE_ENTER, lib.NFP_SHAPE_ENTER_VALUE):
        way_out = fill_template(lib.NFP_SHAPE_EXIT, values) + host.return_code
        enter = fill_template(shape, values) + host.no_operation
        entry = trampoline + len(way_out)
        code = way_out + enter + host.encode_jump(entry + len(enter), trampoline)
    else:
        entry = trampoline
        code = fill_template(shape, values) + host.no_operation
        code += host.encode_jump(trampoline + len(code), site + len(host.no_operation))
    return (host.encode_jump(site, entry) + host.return_code).ljust(ALIGNMENT_BYTES, host.trap) + code


def costs_by_id(probes: Iterable[Probe], costs: Mapping[str, Cost]) -> Rows:
    """Returns the cost of a call of each function (dtype COST, by function ID); 0 where unknown."""
    known = {probe.id: costs.get(probe.request.plan.strategy or "", Cost(0, 0)) for probe in probes}
    rows = np.zeros(max(known, default=-1) + 1, COST)
    for index, cost in known.items():
        rows[index] = round(cost.inside_ticks), round(cost.whole_ticks)
    return rows


def ticks_per_call(costs: Mapping[str, Cost] = MappingProxyType({})) -> float:
    """Returns the ticks that an entry and an exit probe add to a call, for the strategy of most functions.

    Measured in the monitor if the target could not be calibrated; 0 if that is impossible as well.
    """
    for strategy in (IN_STACK_CALL, RELOCATED_BODY, COPIED_ARGUMENTS, GOT_SLOT):
        if strategy in costs:
            return costs[strategy].whole_ticks
    return _ticks_in_monitor()


@lru_cache(maxsize=1)
def _ticks_in_monitor() -> float:
    return max(0.0, float(lib.nfp_calibrate_call()))
