# SPDX-License-Identifier: Apache-2.0
"""Adapter for programs made with DPDK, stripped ones included.

Packets come and go through `rte_eth_fp_ops`, a table with one entry per port whose words hold the driver's
receive and transmit burst functions. Where the program links DPDK as a library the live table is a copy in
the program's own data (a copy relocation); without any symbol the table is found by its shape. Every pointer
must be the start of a function of a loaded module, else the adapter refuses instead of reading rubbish.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.adapters.base import DEQUEUE, KNOWS_LIBRARY, Burst, RoleFunction, make_program
from otel_nfprobe.adapters.dpdk_free import free_roles
from otel_nfprobe.adapters.dpdk_stamps import stamp_note, with_stamp
from otel_nfprobe.adapters.ethdev import MBUF, data_of, is_function, label_at, mbuf_note, module_at, port_roles
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.elf.elftables import Symbol
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.target.target import Target

TABLE_SYMBOL = "rte_eth_fp_ops"
LIBRARY_PREFIX = "librte_ethdev"
PORTS = 32  # RTE_MAX_ETHPORTS as distributions build it; with a symbol its size tells
ENTRY_BYTES = (128, 64, 192, 256)
TRANSMIT_OFFSETS = (64, 8)  # since 22.11; 21.11
STATIC_MARKS = (b"lib.eal", b"lib.ethdev")  # names of log types, which every build registers


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the two functions are in an entry of the table."""

    entry_bytes: int
    ports: int
    transmit: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What tells the table from others like it: these words of an entry hold addresses of data."""

    layout: Layout
    data: tuple[int, ...]


# Queue pointers and callback lists: since 22.11 behind each of the two functions, in 21.11 together.
SHAPES = (Shape(Layout(128, PORTS, 64), (3, 4, 11, 12)), Shape(Layout(128, PORTS, 8), (6, 7, 8, 9)))


@dataclass(frozen=True, slots=True)
class Table:
    """The live table: per port the receive and the transmit function, addresses in the target."""

    address: int
    how: str
    receive: tuple[int, ...]
    transmit: tuple[int, ...]
    layout: Layout | None = None

    def placeholder(self) -> tuple[int, int] | None:
        """The pair of functions that stands in entries without a started port."""
        pair, count = Counter(zip(self.receive, self.transmit, strict=True)).most_common(1)[0]
        return pair if 2 * count >= len(self.receive) else None

    def started(self) -> list[int]:
        """Ports that are started."""
        empty = self.placeholder()
        pairs = zip(self.receive, self.transmit, strict=True)
        return [port for port, pair in enumerate(pairs) if pair != empty]


class DpdkAdapter:
    """Finds the burst functions of the started ports."""

    name = "dpdk"
    knows = KNOWS_LIBRARY

    def __init__(self) -> None:
        self.inner: list[str] = []
        self.finds_free = True
        self._table: Table | None = None
        self._packet = MBUF

    def recognise(self, target: Target) -> str | None:
        """See Adapter."""
        modules = target.modules()
        for module in modules:
            if module.name.startswith(LIBRARY_PREFIX):
                return f"it has loaded {module.name}"
        if modules and all(mark in modules[0].image.data for mark in STATIC_MARKS):
            return "DPDK is linked into its program"
        return None

    def roles(self, target: Target) -> list[RoleFunction]:
        """See Adapter."""
        table = self._table = find_table(target)
        if not table.started():
            raise NfprobeError(
                f"No port of process {target.pid} ({target.name}) is started: all {len(table.receive)} "
                f"entries of {TABLE_SYMBOL} hold placeholders; start a port (testpmd: port start all).",
                f"nfprobe attach {target.pid}",
            )
        self._packet = with_stamp(target, MBUF)
        free = free_roles(target) if self.finds_free else []
        return [*port_roles(target, table, self._packet), *handover_roles(target), *free]

    def later_roles(self, target: Target) -> list[RoleFunction]:
        """See FollowingAdapter."""
        before = self._table
        if before is None or before.layout is None:
            return []
        table = _read_table(target, target.modules(), before.address, before.layout, before.how)
        return port_roles(target, table, self._packet) if table is not None else []

    def notes(self, target: Target) -> list[str]:
        """See Adapter."""
        return [mbuf_note(target), stamp_note(with_stamp(target, MBUF))]


def find_table(target: Target) -> Table:
    """The live table of a process.

    Raises:
        RefusedError: there is none, or its contents are not plausible.
    """
    modules = target.modules()
    symbols = list(_definitions(modules, TABLE_SYMBOL, LIBRARY_PREFIX))
    for module, symbol in symbols:
        for layout in _layouts(symbol.size):
            table = _read_table(target, modules, module.base + symbol.address, layout, f"symbol in {module.name}")
            if table is not None:
                return table
    if symbols:
        raise RefusedError(
            f"{TABLE_SYMBOL} of process {target.pid} holds no function pointers in any layout that is known; "
            "this DPDK version is not supported.",
            f"nfprobe attach {target.pid} --adapter none --functions MODULE:GLOB",
        )
    tables = _tables_by_shape(target, modules)
    if len(tables) != 1:
        found = "nothing" if not tables else f"{len(tables)} places"
        raise RefusedError(
            f"Process {target.pid} exports no {TABLE_SYMBOL}, and {found} in its data looks like it.",
            f"nfprobe attach {target.pid} --adapter FILE.yaml",
        )
    return tables[0]


def _definitions(modules: Sequence[Module], table: str, library: str) -> Iterator[tuple[Module, Symbol]]:
    """Definitions of a table: the program's own copy, which is the live one, first, then that of its library."""
    ordered = sorted(modules[1:], key=lambda module: not module.name.startswith(library))
    for module in [*modules[:1], *ordered]:
        for symbol in module.image.symbols if module.image.may_define(table) else ():  # programs have many libraries
            if symbol.name == table and symbol.size:
                yield module, symbol


def _layouts(size: int) -> Iterator[Layout]:
    for entry_bytes in ENTRY_BYTES:
        if size % entry_bytes == 0:
            for transmit in TRANSMIT_OFFSETS:
                if transmit < entry_bytes:
                    yield Layout(entry_bytes, size // entry_bytes, transmit)


def _read_table(target: Target, modules: Sequence[Module], address: int, layout: Layout, how: str) -> Table | None:
    content = target.read(address, layout.entry_bytes * layout.ports)
    receive = struct.unpack_from("<" + f"Q{layout.entry_bytes - 8}x" * layout.ports, content)
    transmit = struct.unpack_from(
        "<" + f"{layout.transmit}xQ{layout.entry_bytes - 8 - layout.transmit}x" * layout.ports, content
    )
    plausible = all(is_function(modules, pointer) for pointer in {*receive, *transmit})
    if not plausible or any(a == b for a, b in zip(receive, transmit, strict=True)):
        return None
    return Table(address, how, receive, transmit, layout)


def _tables_by_shape(target: Target, modules: Sequence[Module]) -> list[Table]:
    """Places in writable data that look like the table: 32 entries, most of which hold one pair."""
    found: dict[int, Table] = {}
    code = sorted(span for module in modules for span in module.executable_ranges)
    for low, content in data_of(target, modules):
        words = np.frombuffer(content[: len(content) // 8 * 8], dtype="<u8")
        is_code = _lies_in(words, code)
        for shape in SHAPES:
            for position in _positions(words, is_code, shape):
                address = low + 8 * position
                table = _read_table(target, modules, address, shape.layout, "its shape in the program's data")
                if table is not None and table.placeholder() is not None:
                    found.setdefault(address, table)
    # The entries behind the first look like a table of their own when something plausible follows the last.
    return [table for address, table in found.items() if address - SHAPES[0].layout.entry_bytes not in found]


def _lies_in(words: NDArray[Any], spans: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Which words are addresses in one of the spans, which are in order and do not overlap."""
    edges = np.array([edge for span in spans for edge in span], dtype=np.uint64)
    inside: NDArray[np.bool_] = np.searchsorted(edges, words, side="right") % 2 == 1
    return inside


def _positions(words: NDArray[Any], is_code: NDArray[np.bool_], shape: Shape) -> list[int]:
    """Indexes of words at which such a table can begin."""
    step = shape.layout.entry_bytes // 8
    count = len(words) - step * shape.layout.ports + 1
    if count <= 0:
        return []
    functions = (0, shape.layout.transmit // 8)
    found = np.flatnonzero(is_code[:count])  # few words are code addresses: the rest is done for these
    for entry in range(0, step * shape.layout.ports, step):
        for word in functions:
            found = found[is_code[found + entry + word]]
        for word in shape.data:
            places = found + entry + word
            found = found[(words[places] != 0) & ~is_code[places]]
    last = step * (shape.layout.ports - 1)
    for word in functions:
        found = found[words[found + last + word] == words[found + last - step + word]]
    return [int(position) for position in found]


# ---- handover -------------------------------------------------------------------------------------------------------
# Where programs made with DPDK take packets over that another lcore has received.
#
# The functions of `rte_ring` are inlined, so they cannot be probed. What can: the dequeue functions of event devices,
# which `rte_event_fp_ops` points to as `rte_eth_fp_ops` does to those of ports, and functions of DPDK's libraries that
# give back what other lcores have put in. Reads the target only.


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
    versions = [re.match(rf"{EVENT_LIBRARY}\.so\.(\d+)", module.name) for module in modules]
    if not any(version is not None and int(version[1]) in VERSIONS for version in versions):
        return
    for program, table in _definitions(modules, EVENT_TABLE, EVENT_LIBRARY):
        entry_bytes, rest = divmod(table.size, DEVICES)
        if rest or entry_bytes % 8:
            continue
        content = target.read(program.base + table.address, table.size)
        dequeues = [
            struct.unpack_from("<Q", content, device * entry_bytes + 8 * DEQUEUE_BURST)[0] for device in range(DEVICES)
        ]
        placeholder, count = Counter(dequeues).most_common(1)[0]
        for address in dict.fromkeys(dequeues):
            module = module_at(modules, address)
            if module is not None and (address != placeholder or 2 * count < DEVICES):
                yield _role(module, address, EVENT_DEQUEUE, "dequeue")
        return  # the first table is the live one


def _role(module: Module, address: int, burst: Burst, word: str) -> RoleFunction:
    label = f"{module.name.split('.so')[0].removeprefix('librte_')} {word}"
    return RoleFunction(address, label_at(module, address), DEQUEUE, make_program(DEQUEUE, burst, MBUF), label)
