# SPDX-License-Identifier: Apache-2.0
"""Ports of DPDK as adapters see them: the drivers' burst functions, how they are called, what a packet is.

The table of a program's ports is found by dpdk.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from otel_nfprobe.adapters.base import RECEIVE, TRANSMIT, Buffer, Burst, RoleFunction, make_program
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at
from otel_nfprobe.target.target import Target

if TYPE_CHECKING:
    from otel_nfprobe.adapters.dpdk import Table

# rte_mbuf: the same since 17.11. buf_addr, data_off, pkt_len, data_len, refcnt.
MBUF = Buffer(data=0, data_offset=16, length=36, length_bytes=4, segment_length=40, segment_bytes=2, holders=18)
# uint16_t burst(void *queue, struct rte_mbuf **packets, uint16_t count)
BURST = Burst(pointers=1, requested=2, count_mask=0xFFFF, queue=0)
SEGMENT_BYTES_MAX = 64 << 20


def port_roles(target: Target, table: Table, packet: Buffer = MBUF) -> list[RoleFunction]:
    """The burst functions of the started ports, each once.

    Raises:
        RefusedError: one is in no loaded file.
    """
    ports = table.started()
    found: list[RoleFunction] = []
    for role, word, functions in (
        (RECEIVE, "receive", table.receive),
        (TRANSMIT, "transmit", table.transmit),
    ):
        for address in dict.fromkeys(functions[port] for port in ports):
            used = [port for port in ports if functions[port] == address]
            found.append(_role(target, address, role, word, used, packet))
    return found


def mbuf_note(target: Target) -> str:
    """What is taken for granted about the layout of packets, for a person."""
    versions = [module.name for module in target.modules() if module.name.startswith("librte_eal")]
    return f"rte_mbuf is read as DPDK 17.11 and later lay it out ({versions[0] if versions else 'linked statically'})"


def module_at(modules: Sequence[Module], address: int) -> Module | None:
    """The module whose code holds the address."""
    for module in modules:
        if any(start <= address < end for start, end in module.executable_ranges):
            return module
    return None


def is_function(modules: Sequence[Module], address: int) -> bool:
    """Whether a function of a loaded module starts at the address."""
    module = module_at(modules, address)
    frame = None if module is None else module.image.frames.find(address - module.base)
    return module is not None and frame is not None and frame.start == address - module.base


def label_at(module: Module, address: int) -> str:
    """What the function of a module is called whose code holds the address; the address in it where none does."""
    function = function_at(module, address - module.base)
    return f"{module.name}+{address - module.base:#x}" if function is None else function.label


def data_of(target: Target, modules: Sequence[Module]) -> Iterator[tuple[int, bytes]]:
    """Writable data of each loaded file together with the memory right behind it (.bss)."""
    paths = {module.path for module in modules}
    start = end = 0
    for mapping in target.maps():
        writable = "w" in mapping.permissions
        if writable and not mapping.path and mapping.start == end:
            end = mapping.end
            continue
        if 0 < end - start <= SEGMENT_BYTES_MAX:
            yield start, target.read(start, end - start)
        start, end = (mapping.start, mapping.end) if writable and mapping.path in paths else (0, 0)


def _role(target: Target, address: int, role: int, word: str, ports: list[int], packet: Buffer) -> RoleFunction:
    module = module_at(target.modules(), address)
    function = None if module is None else function_at(module, address - module.base)
    if module is None or function is None:
        raise RefusedError(f"The {word} function of port {ports[0]} is in no loaded file.")
    driver = module.name.split(".so")[0].removeprefix("librte_")
    numbers = ", ".join(str(port) for port in ports)
    label = f"{driver} {word}, port{'s' if len(ports) > 1 else ''} {numbers}"
    # Those that a driver is handed come from pools, which are never unmapped while a port runs.
    return RoleFunction(address, function.label, role, make_program(role, BURST, replace(packet, pooled=True)), label)
