# SPDX-License-Identifier: Apache-2.0
"""Where programs made with DPDK take packets over that another lcore has received.

The functions of `rte_ring` are inlined, so they cannot be probed. What can: the dequeue functions of event devices,
which `rte_event_fp_ops` points to as `rte_eth_fp_ops` does to those of ports, and functions of DPDK's libraries that
give back what other lcores have put in. Reads the target only.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from otel_nfprobe.adapters.base import DEQUEUE, Burst, RoleFunction, make_program
from otel_nfprobe.adapters.ethdev import MBUF, module_at
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at
from otel_nfprobe.target.target import Target

# unsigned int rte_reorder_drain(buffer, packets, count); int rte_distributor_returned_pkts(distributor, packets, count)
CALLS = {
    "librte_reorder": ("rte_reorder_drain", "rte_reorder_drain_up_to_seqn"),
    "librte_distributor": ("rte_distributor_returned_pkts",),
}
RETURNED = Burst(pointers=1, requested=2, queue=0)

EVENT_TABLE, EVENT_LIBRARY = "rte_event_fp_ops", "librte_eventdev"
DEVICES = 16  # RTE_EVENT_MAX_DEVS
DEQUEUE_BURST = 6  # the word of an entry, in the versions below
VERSIONS = range(22, 25)  # of the library, DPDK 21.11 to 24.07: later ones have other entries
# uint16_t dequeue(void *port, struct rte_event *events, uint16_t count, uint64_t timeout); an event is a word of its
# own and a pointer.
EVENT_DEQUEUE = Burst(pointers=1, requested=2, count_mask=0xFFFF, queue=0, first=8, step=16)


@dataclass(frozen=True, slots=True)
class _Symbol:
    module: Module
    address: int
    size: int


def handover_roles(target: Target) -> list[RoleFunction]:
    """The functions that take packets over, each once; none in a program that has no such library."""
    modules = target.modules()
    found = [*_event_roles(target, modules), *_library_roles(modules)]
    return list({role.address: role for role in found}.values())


def _library_roles(modules: Sequence[Module]) -> Iterator[RoleFunction]:
    program = modules[0].image.data if modules else b""
    for module in modules:
        for library, names in CALLS.items():
            if module.name.startswith(f"{library}."):
                used = [name for name in names if f"\0{name}\0".encode() in program]
                yield from (_role(module, at, RETURNED, name) for name, at in _places(module, used))


def _places(module: Module, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    for symbol in module.image.symbols:
        if symbol.name in names and symbol.size:
            yield symbol.name, module.base + symbol.address


def _event_roles(target: Target, modules: Sequence[Module]) -> Iterator[RoleFunction]:
    for table in _tables(modules):
        entry_bytes = table.size // DEVICES
        content = target.read(table.address, table.size)
        dequeues = [
            struct.unpack_from("<Q", content, device * entry_bytes + 8 * DEQUEUE_BURST)[0] for device in range(DEVICES)
        ]
        placeholder, count = Counter(dequeues).most_common(1)[0]
        for address in dict.fromkeys(dequeues):
            module = module_at(modules, address)
            if module is not None and (address != placeholder or 2 * count < DEVICES):
                yield _role(module, address, EVENT_DEQUEUE, "dequeue")
        return  # the first table is the live one


def _tables(modules: Sequence[Module]) -> Iterator[_Symbol]:
    """Definitions of the table: the program's own copy, which is the live one, first."""
    versions = [re.match(rf"{EVENT_LIBRARY}\.so\.(\d+)", module.name) for module in modules]
    if not any(version is not None and int(version[1]) in VERSIONS for version in versions):
        return
    for module in modules:
        for symbol in module.image.symbols if module.image.may_define(EVENT_TABLE) else ():
            if symbol.name == EVENT_TABLE and symbol.size and symbol.size % (8 * DEVICES) == 0:
                yield _Symbol(module, module.base + symbol.address, symbol.size)


def _role(module: Module, address: int, burst: Burst, word: str) -> RoleFunction:
    function = function_at(module, address - module.base)
    name = function.label if function is not None else f"{module.name}+{address - module.base:#x}"
    label = f"{module.name.split('.so')[0].removeprefix('librte_')} {word}"
    return RoleFunction(address, name, DEQUEUE, make_program(DEQUEUE, burst, MBUF), label)
