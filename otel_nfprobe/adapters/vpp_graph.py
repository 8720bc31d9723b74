# SPDX-License-Identifier: Apache-2.0
"""The graph nodes of a running VPP, read from its memory, stripped or not.

    libvlib exports vlib_global_main -> vlib_mains, one vlib_main_t for each thread -> node_main -> nodes, and
    nodes_by_type: a runtime for each node, whose first word is the function that runs

A VPP vector has its length in the 32-bit word eight bytes before its first element. Offsets differ between releases:
each is looked for, and what does not fit for every node is not taken. Reads the target only.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.adapters.ethdev import is_function
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.target.target import Target

LIBRARY = "libvlib"
MAIN_SYMBOL = "vlib_global_main"
MAINS_SYMBOL = "vlib_mains"  # of early releases, whose vlib_global_main is the first thread's vlib_main_t itself
INTERNAL, INPUT, PRE_INPUT, PROCESS = range(4)
TYPES = 8  # at most
LAST_DROPS = ("drop", "error-drop")  # where there is a node `drop`, `error-drop` hands its packets to it
LAST_PUNTS = ("punt", "error-punt")
NODES_MIN, NODES_MAX = 50, 20_000
THREADS_MAX = 256
MAIN_BYTES = 8192  # of a vlib_main_t, in which node_main is looked for
NODE_BYTES = 320  # of a vlib_node_t, in which its index is looked for
NAME_BYTES_MAX = 256
BY_TYPE_MAX = 256  # offset in node_main
RUNTIME_BYTES = (128, 64, 192, 256)
CALLS_AT, VECTORS_AT = 28, 32  # in a runtime, of 19.01 as of 26.06
TOTALS_AT = 24  # in a node: calls, vectors and more (64 bits each), and all of it once more as of the last clear
TOTALS_MIN = 16  # bytes of either


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are. Offsets in bytes.

    Attributes:
        node_main: in vlib_main_t; begins with the vector of nodes.
        index: in vlib_node_t; the type stands before it, the index of the runtime behind it.
        by_type: in node_main: vectors of runtimes, one for each type.
        runtime_bytes: of one runtime.
        node_index: in a runtime.
    """

    node_main: int
    index: int
    by_type: int
    runtime_bytes: int
    node_index: int


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph.

    Attributes:
        type: INTERNAL, INPUT, PRE_INPUT, PROCESS or another number.
        functions: addresses that its runtimes hold, each once; of a process the registered one.
        calls, vectors: what VPP has counted in all threads since it was started: in the runtimes since it summed them
            up last, as `show runtime` does, and in the nodes before.
    """

    index: int
    name: str
    type: int
    functions: tuple[int, ...]
    calls: int
    vectors: int


@dataclass(frozen=True, slots=True)
class Graph:
    """All nodes, and how they were found."""

    nodes: tuple[Node, ...]
    mains: tuple[int, ...]  # addresses of the vlib_main_t of all threads
    layout: Layout
    last_drop: str  # name of the node that frees what is dropped, or ""
    last_punt: str  # name of the node that hands to the host what is punted, or ""


@dataclass(frozen=True, slots=True)
class _RawNode:
    function: int
    name: str
    content: bytes

    def number(self, offset: int) -> int:
        value: int = struct.unpack_from("<I", self.content, offset)[0]
        return value


def module_of(target: Target, symbol: str) -> Module | None:
    """The module whose variable of that name is the live one: the program's own copy, else libvlib's. Or None."""
    return module_exporting(target, symbol, LIBRARY)


def module_exporting(target: Target, symbol: str, library: str) -> Module | None:
    """The same of another library."""
    for position, module in enumerate(target.modules()):
        if position and not module.name.startswith(library):
            continue
        if module.image.find_export(symbol) is not None:
            return module
    return None


def read_graph(target: Target, layout: Layout | None = None) -> Graph:
    """The graph as it is at this moment.

    Args:
        layout: as an earlier call found it.

    Raises:
        RefusedError: it is not found, or what was found is not plausible.
    """
    if module_of(target, MAIN_SYMBOL) is None:
        raise RefusedError(
            f"Process {target.pid} ({target.name}) exports no {MAIN_SYMBOL}.", f"nfprobe doctor {target.pid}"
        )
    failure = "no vector of nodes with names and functions"
    for mains in _mains(target):
        for node_main, nodes in _node_mains(target, mains[0], layout):
            found = layout or _find_layout(target, mains[0], node_main, nodes)
            if found is None:
                failure = "nodes whose runtimes are not where they should be"
                continue
            runtimes = [_read_runtimes(target, main, found) for main in mains]
            names = {node.name for node in nodes}
            lasts = [next((name for name in chain if name in names), "") for chain in (LAST_DROPS, LAST_PUNTS)]
            totals = _read_totals(target, mains, found, len(nodes))
            return Graph(tuple(_make_nodes(nodes, runtimes, totals, found)), mains, found, *lasts)
    raise RefusedError(
        f"{MAIN_SYMBOL} of process {target.pid} ({target.name}) leads to {failure}; its layout is not known.",
        f"nfprobe attach {target.pid} --adapter none --functions MODULE:GLOB",
    )


# ---- vectors -----------------------------------------------------------------------------------------------------


def read_vector(target: Target, address: int, least: int, most: int, element_bytes: int) -> bytes | None:
    """The elements of a vector; None when there is none of that length."""
    if address % 8 or not 0x1000 <= address < 1 << 47:
        return None
    try:
        length = struct.unpack("<I", target.read(address - 8, 4))[0]
        return target.read(address, length * element_bytes) if least <= length <= most else None
    except NfprobeError:
        return None


def _pointers(target: Target, address: int, least: int, most: int) -> tuple[int, ...]:
    content = read_vector(target, address, least, most, 8)
    return struct.unpack(f"<{len(content) // 8}Q", content) if content else ()


# ---- the way to the nodes ----------------------------------------------------------------------------------------


def _mains(target: Target) -> Iterator[tuple[int, ...]]:
    """What could be the vlib_main_t of all threads, the likeliest first."""
    places = {}
    for symbol in (MAINS_SYMBOL, MAIN_SYMBOL):
        module = module_of(target, symbol)
        if module is not None:
            places[symbol] = module.base + module.image.exports[symbol].address
    for place in places.values():
        mains = _pointers(target, target.read_word(place), 1, THREADS_MAX)
        if mains:
            yield mains
    yield (places[MAIN_SYMBOL],)


def _node_mains(target: Target, main: int, layout: Layout | None) -> Iterator[tuple[int, list[_RawNode]]]:
    """Offsets at which a vlib_main_t has what looks like the vector of nodes, and the nodes."""
    offsets = [layout.node_main] if layout else range(0, MAIN_BYTES, 8)
    modules = target.modules()
    for offset in offsets:
        try:
            word = target.read_word(main + offset)
        except NfprobeError:
            return
        nodes = _read_nodes(target, _pointers(target, word, NODES_MIN, NODES_MAX))
        if nodes and (layout is not None or all(is_function(modules, node.function) for node in nodes)):
            yield offset, nodes


def _read_nodes(target: Target, addresses: Sequence[int]) -> list[_RawNode]:
    """The nodes behind these addresses, or none when one of them has no printable name."""
    found = []
    for address in addresses:
        try:
            content = target.read(address, NODE_BYTES)
        except NfprobeError:
            return []
        function, name_address = struct.unpack_from("<QQ", content)
        name = read_vector(target, name_address, 1, NAME_BYTES_MAX, 1)
        text = (name or b"").split(b"\0")[0]
        if not text or not all(0x20 < byte < 0x7F for byte in text):
            return []
        found.append(_RawNode(function, text.decode("ascii"), content))
    return found


# ---- the layout --------------------------------------------------------------------------------------------------


def _find_layout(target: Target, main: int, node_main: int, nodes: list[_RawNode]) -> Layout | None:
    """The first layout in which every node has its index, and every runtime its node's."""
    for index in range(24, NODE_BYTES - 4, 4):
        if all(node.number(index) == position for position, node in enumerate(nodes)):
            break
    else:
        return None
    types = Counter(node.number(index - 4) for node in nodes)
    if max(types) >= TYPES or not types[INTERNAL] or not types[INPUT]:
        return None
    internal = [node for node in nodes if node.number(index - 4) == INTERNAL]
    for by_type in range(8, BY_TYPE_MAX, 8):
        for runtime_bytes in RUNTIME_BYTES:
            address = target.read_word(main + node_main + by_type)
            content = read_vector(target, address, types[INTERNAL], types[INTERNAL], runtime_bytes)
            if content is None:
                break
            for node_index in range(VECTORS_AT + 4, 64, 4):
                layout = Layout(node_main, index, by_type, runtime_bytes, node_index)
                if all(_owner(content, layout, node.number(index + 4)) == node.number(index) for node in internal):
                    return layout if _runtimes_fit(target, main, nodes, layout) else None
    return None


def _owner(content: bytes, layout: Layout, position: int) -> int:
    """Index of the node that a runtime says it belongs to; -1 behind the last one."""
    place = layout.runtime_bytes * position + layout.node_index
    return int(struct.unpack_from("<I", content, place)[0]) if place + 4 <= len(content) else -1


def _runtimes_fit(target: Target, main: int, nodes: list[_RawNode], layout: Layout) -> bool:
    """Whether every input node has a runtime, too, and all runtimes hold functions."""
    runtimes = _read_runtimes(target, main, layout)
    owners = {index for index, node in enumerate(nodes) if node.number(layout.index - 4) in (INTERNAL, INPUT)}
    functions = {function for function, _, _ in runtimes.values()}
    modules = target.modules()
    return owners <= runtimes.keys() and all(is_function(modules, function) for function in functions)


# ---- runtimes ----------------------------------------------------------------------------------------------------


def called_functions(target: Target, graph: Graph) -> set[int]:
    """Addresses of the functions that run for nodes which have been called; cheap.

    Raises:
        NfprobeError: they cannot be read at this moment.
    """
    found: set[int] = set()
    for main in graph.mains:
        for words in _runtimes_of(target, main, graph.layout):
            functions = words[:, 0] | words[:, 1].astype(np.uint64) << np.uint64(32)
            found.update(functions[words[:, CALLS_AT // 4] > 0].tolist())
    return found


def count_nodes(target: Target, graph: Graph) -> int:
    """How many nodes there are now; cheap. Raises NfprobeError when that cannot be read at this moment."""
    address = target.read_word(graph.mains[0] + graph.layout.node_main)
    return int.from_bytes(target.read(address - 8, 4), "little")


def _runtimes_of(target: Target, main: int, layout: Layout) -> Iterator[NDArray[np.uint32]]:
    """Runtimes of one thread as rows of 32-bit words, type by type."""
    for kind in range(PROCESS):  # runtimes of processes are kept elsewhere
        address = target.read_word(main + layout.node_main + layout.by_type + 8 * kind)
        content = read_vector(target, address, 1, NODES_MAX, layout.runtime_bytes)
        if content is not None:
            yield np.frombuffer(content, "<u4").reshape(-1, layout.runtime_bytes // 4)


def _read_runtimes(target: Target, main: int, layout: Layout) -> dict[int, tuple[int, int, int]]:
    """Function, calls and vectors of one thread's nodes, by index."""
    found: dict[int, tuple[int, int, int]] = {}
    for words in _runtimes_of(target, main, layout):
        for row in words.tolist():
            function = row[0] | row[1] << 32
            found[row[layout.node_index // 4]] = function, row[CALLS_AT // 4], row[VECTORS_AT // 4]
    return found


def _read_totals(target: Target, mains: Sequence[int], layout: Layout, count: int) -> list[tuple[int, int]]:
    """Calls and vectors that VPP has summed up for each node in all threads; zeros where they are not to be had."""
    content_bytes = layout.index - 4 - TOTALS_AT
    half = content_bytes // 2
    found = [(0, 0)] * count
    if half < TOTALS_MIN or half % 8:
        return found
    for main in mains:
        addresses = _pointers(target, target.read_word(main + layout.node_main), count, count)
        for index, address in enumerate(addresses):
            try:
                content = target.read(address + TOTALS_AT, content_bytes)
            except NfprobeError:
                return [(0, 0)] * count
            (calls, vectors), cleared = struct.unpack_from("<QQ", content), struct.unpack_from("<QQ", content, half)
            if cleared[0] > calls or cleared[1] > vectors:  # it is something else
                return [(0, 0)] * count
            found[index] = found[index][0] + calls, found[index][1] + vectors
    return found


def _make_nodes(
    nodes: list[_RawNode],
    runtimes: list[dict[int, tuple[int, int, int]]],
    totals: list[tuple[int, int]],
    layout: Layout,
) -> Iterator[Node]:
    for index, node in enumerate(nodes):
        kind = node.number(layout.index - 4)
        own = [] if kind == PROCESS else [part[index] for part in runtimes if index in part]
        functions = tuple(dict.fromkeys(function for function, _, _ in own)) or (node.function,)
        counts = [(part[1], part[2]) for part in own] + [totals[index]]
        yield Node(index, node.name, kind, functions, *(sum(column) for column in zip(*counts, strict=True)))
