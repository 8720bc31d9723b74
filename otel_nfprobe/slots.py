# SPDX-License-Identifier: Apache-2.0
"""GOT slots of a process that lead to given functions. Reads only. Called by analysis.py."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from otel_nfprobe.elf import Slot
from otel_nfprobe.modules import Module
from otel_nfprobe.symbols import Function
from otel_nfprobe.target import Target

GAP_BYTES_MAX = 4096  # slots that lie nearer together are read at once


class LiveSlot(NamedTuple):
    """A slot of the process."""

    address: int
    value: int  # what it holds
    function: int  # address of the function that calls through it reach
    is_resolved: bool  # False: the dynamic linker will store the function's address at the first call
    module: Module


def slots_leading_to(target: Target, functions: Mapping[int, Function]) -> list[LiveSlot]:
    """Slots that hold the address of one of the functions, or will when their name is bound.

    Args:
        functions: by address in the process.
    """
    names = {alias: address for address, function in functions.items() for alias in function.aliases}
    modules = target.modules()
    found = []
    for module in modules:
        if module.is_dynamic_linker or module.is_probe_library:
            continue
        for slot, value in _values(target, module):
            if value in functions:
                found.append(LiveSlot(module.base + slot.address, value, value, True, module))
            elif slot.lazy and slot.name in names and _is_lazy(module, value):
                address = names[slot.name]
                if _binds_to(modules, slot.name) == address:
                    found.append(LiveSlot(module.base + slot.address, value, address, False, module))
    return found


def _values(target: Target, module: Module) -> list[tuple[Slot, int]]:
    values = []
    for run in _runs(module.image.slots):
        start, end = run[0].address, run[-1].address + 8
        content = target.read(module.base + start, end - start)
        values += [(slot, struct.unpack_from("<Q", content, slot.address - start)[0]) for slot in run]
    return values


def _runs(slots: list[Slot]) -> list[list[Slot]]:
    runs: list[list[Slot]] = []
    for slot in slots:
        if runs and slot.address - runs[-1][-1].address <= GAP_BYTES_MAX:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs


def _is_lazy(module: Module, value: int) -> bool:
    return module.low <= value < module.high and module.image.section_of(value - module.base).startswith(".plt")


def _binds_to(modules: list[Module], name: str) -> int | None:
    """What the dynamic linker binds a name to: the first module in load order that exports it."""
    for module in modules:
        symbol = module.image.exports.get(name)
        if symbol is not None:
            return module.base + symbol.address
    return None
