# SPDX-License-Identifier: Apache-2.0
"""Probe candidates: functions of a program that may run between receive and transmit, for a trial to count.

In a small program these are all functions of its executable, its drivers and the libraries that were seen running. In a
large one they are the functions that were seen (hot_code.py), and those that they call directly, level by level. The C
library and the like are never among them. Reads only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.arch.architecture import of_image
from otel_nfprobe.arch.branches import scan_module
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import C_LIBRARIES, Function, function_at, functions_of
from otel_nfprobe.target.hot_code import Sightings
from otel_nfprobe.target.target import Target

FOREIGN_LIBRARIES = (*C_LIBRARIES, "ld-linux", "libm.so", "libgcc_s", "libstdc++", "libc++", "linux-vdso", "[vdso]")
CANDIDATES_MAX = 1500  # arming more takes over a second
STEPS = 2  # call levels from the functions that were seen


def find_candidates(target: Target, roles: Sequence[int], seen: Sightings | None) -> list[Function]:
    """Returns functions that may run between receive and transmit, without the receive and transmit functions
    themselves.

    Args:
        target: a checked target.
        roles: addresses of the functions that receive, transmit and drop.
        seen: where its threads were seen running, if that was observable.

    Returns:
        at most CANDIDATES_MAX; none if the program is large and nothing was seen.

    Raises:
        NfprobeError: a module is malformed.
    """
    modules = [module for module in target.modules() if _is_own(module)]
    hits = [] if seen is None else _functions_at(modules, seen.counters) + _functions_at(modules, seen.stacks)
    wanted = {id(module) for module in target.modules()[:1]}
    wanted |= {id(module) for module in modules if any(module.low <= role < module.high for role in roles)}
    wanted |= {id(function.module) for function in hits}
    near = [module for module in modules if id(module) in wanted]
    if sum(len(module.image.frames.frames) for module in near) <= CANDIDATES_MAX:
        found = [function for module in near for function in functions_of(module)]
    else:
        found = _reach(target, modules, hits)
    served = set(roles)
    return [function for function in found if function.address not in served]


def _is_own(module: Module) -> bool:
    return not (module.name.startswith(FOREIGN_LIBRARIES) or module.is_dynamic_linker or module.is_probe_library)


def _functions_at(modules: Sequence[Module], addresses: NDArray[np.uint64]) -> list[Function]:
    """Returns the functions that contain one of the addresses, those with the most first."""
    counts: list[tuple[int, int, Function]] = []
    for module in modules:
        inside = np.zeros(len(addresses), bool)
        for start, end in module.executable_ranges:
            inside |= (addresses >= np.uint64(start)) & (addresses < np.uint64(end))
        offsets, numbers = np.unique(addresses[inside] - np.uint64(module.base), return_counts=True)
        for offset, number in zip(offsets.tolist(), numbers.tolist(), strict=True):
            function = function_at(module, offset)
            if function is not None:
                counts.append((number, function.address, function))
    totals: dict[int, int] = {}
    for number, address, _ in counts:
        totals[address] = totals.get(address, 0) + number
    found = {address: function for _, address, function in counts}
    return [found[address] for address in sorted(totals, key=lambda address: -totals[address])]


def _reach(target: Target, modules: Sequence[Module], hits: Sequence[Function]) -> list[Function]:
    """Returns the functions that were seen and those that they call, nearest first."""
    found = {function.address: function for function in hits}
    edge = list(found.values())
    for _ in range(STEPS):
        fresh: list[Function] = []
        for function in edge:
            for called in _called_by(target, modules, function):
                if called.address not in found:
                    found[called.address] = called
                    fresh.append(called)
            if len(found) >= CANDIDATES_MAX:
                return list(found.values())[:CANDIDATES_MAX]
        edge = fresh
    return list(found.values())


def _called_by(target: Target, modules: Sequence[Module], function: Function) -> Iterator[Function]:
    """Yields the functions that it calls, jumps to or takes the address of, also through its module's PLT."""
    module = function.module
    scan = scan_module(module.image)
    index = scan.index_of(function.offset)
    if index < 0:
        return
    own = scan.at(index)
    for offset in dict.fromkeys((*own.calls, *own.jumps, *own.references)):
        slot = None
        if module.image.section_of(offset).startswith(".plt"):
            slot = of_image(module.image).stub_slot(module.image, offset)
        called = _through(target, modules, module.base + slot) if slot else function_at(module, offset)
        if called is not None:
            yield called


def _through(target: Target, modules: Sequence[Module], slot: int) -> Function | None:
    """Returns the function that a GOT slot points to, if it belongs to the program."""
    try:
        address = target.read_word(slot)
    except NfprobeError:
        return None
    for module in modules:
        if module.low <= address < module.high:
            return function_at(module, address - module.base)
    return None
