# SPDX-License-Identifier: Apache-2.0
"""GOT slots of a process that lead to given functions, those that were changed back, and pointers that bypass them.
Reads only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from otel_nfprobe.arch.branches import scan_module
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.elftables import IFUNC, Slot
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function
from otel_nfprobe.target.target import Target

GAP_BYTES_MAX = 4096  # slots closer together are read at once
RELOCATION = np.dtype([("address", "<u8"), ("kind", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])


class LiveSlot(NamedTuple):
    """A slot of the process."""

    address: int
    value: int  # its content
    function: int  # address of the function that calls through it reach
    module: Module


def slots_leading_to(target: Target, functions: Mapping[int, Function]) -> list[LiveSlot]:
    """Returns slots that contain the address of one of the functions, or will when their name is bound.

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
                if slot.lazy or slot.address in scan_module(module.image).slots_only_called():
                    found.append(LiveSlot(module.base + slot.address, value, value, module))
            elif slot.lazy and slot.name in names and is_lazy(module, value):
                address = names[slot.name]
                if _binds_to(modules, slot.name) == address:
                    found.append(LiveSlot(module.base + slot.address, value, address, module))
    return found


def changed_slots(target: Target, expected: Mapping[int, int]) -> dict[int, int]:
    """Returns slots that do not contain the expected value, with their content. Unmapped slots are left out.

    Args:
        expected: value by address.
    """
    return {address: value for address, value in _words(target, sorted(expected)) if value != expected[address]}


def count_stored_pointers(target: Target, functions: Iterable[Function]) -> int:
    """Counts the data words that point to one of the functions: calls through them bypass the probed GOT slots.

    Includes words filled in by the dynamic linker: tables of functions, and slots that code reads rather than only
    calls. Pointers copied by the program or obtained from dlsym cannot be counted.
    """
    wanted = {function.address: function for function in functions}
    count = 0
    for module in {id(function.module): function.module for function in wanted.values()}.values():
        own = {function.offset for function in wanted.values() if function.module is module}
        count += sum(pointer in own for pointer in module.image.code_pointers)
    for module in target.modules():
        if not (module.is_dynamic_linker or module.is_probe_library):
            words = _words(target, [module.base + address for address in _absolute(module)])
            count += sum(value in wanted for _, value in [*words, *_values(target, module)])
    return count


def _absolute(module: Module) -> list[int]:
    """Returns the file addresses of words that contain named addresses."""
    for name, start, size_bytes in module.image.sections:
        if name == ".rela.dyn":
            content = module.image.read(start, size_bytes)
            rows = np.frombuffer(content[: len(content) // RELOCATION.itemsize * RELOCATION.itemsize], RELOCATION)
            found: list[int] = np.sort(rows["address"][rows["kind"] == module.image.processor.absolute]).tolist()
            return found
    return []


def _values(target: Target, module: Module) -> list[tuple[Slot, int]]:
    slots = {module.base + slot.address: slot for slot in module.image.slots}
    return [(slots[address], value) for address, value in _words(target, sorted(slots))]


def _words(target: Target, addresses: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields address and content of 64-bit words, given in ascending order; unreadable ones are left out."""
    for run in _runs(addresses):
        start = run[0]
        try:
            content = target.read(start, run[-1] + 8 - start)
        except NfprobeError:
            continue
        for address in run:
            yield address, struct.unpack_from("<Q", content, address - start)[0]


def _runs(addresses: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for address in addresses:
        if runs and address - runs[-1][-1] <= GAP_BYTES_MAX:
            runs[-1].append(address)
        else:
            runs.append([address])
    return runs


def is_lazy(module: Module, value: int) -> bool:
    """Returns whether a slot of the module with this value is not bound yet."""
    return module.low <= value < module.high and module.image.section_of(value - module.base).startswith(".plt")


def _binds_to(modules: list[Module], name: str) -> int | None:
    """Returns what the dynamic linker will bind a name to: the first module in load order that exports it.

    Also None where that is only known after binding: the code at an ifunc's address chooses the function (called in its
    place, strlen's would return an address for a length), and of a function with several versions the caller's may be
    an old one.
    """
    for module in modules:
        symbol = module.image.exports.get(name)
        if symbol is not None:
            is_chosen = symbol.kind == IFUNC or name in module.image.names_by_version
            return None if is_chosen else module.base + symbol.address
    return None
