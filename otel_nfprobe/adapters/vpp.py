# SPDX-License-Identifier: Apache-2.0
"""Adapter for FD.io VPP. Its graph nodes are found in the running, stripped process (vpp_graph.py).

    uword function(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)     returns the vectors

    input nodes                 receive; their frame is NULL: a batch is as many packets as they return, and
                                which ones stands in the frames that are pending then (vpp_pending.py)
    crypto-deq, crypto-dispatch give packets back that were kept (vpp_roles.py)
    nodes called ...-tx         transmit; not those whose packets go on (vpp_roles.py)
    drop                        drops: the last of the drop nodes
    punt, ...-punt-socket       punt
    other internal nodes        named as in the graph; each call carries its number of vectors
    process, pre-input nodes    are never probed

Nodes are probed once VPP has called them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from otel_nfprobe.adapters.base import (
    ABSENT,
    CALL,
    COUNT_RETURN,
    KNOWS_PROGRAM,
    NO_OFFSET,
    RECEIVE,
    TRANSMIT,
    VECTORS,
    WHEN_NONZERO,
    NumberedBuffers,
    RoleFunction,
)
from otel_nfprobe.adapters.ethdev import module_at
from otel_nfprobe.adapters.vpp_barrier import barrier_roles
from otel_nfprobe.adapters.vpp_buffers import find_buffer_memory, make_frame_program, make_input_program
from otel_nfprobe.adapters.vpp_frames import Frame, find_frame
from otel_nfprobe.adapters.vpp_graph import (
    INPUT,
    INTERNAL,
    MAIN_SYMBOL,
    PROCESS,
    Graph,
    Node,
    called_functions,
    count_nodes,
    module_of,
    read_graph,
)
from otel_nfprobe.adapters.vpp_handoff import find_handoff
from otel_nfprobe.adapters.vpp_names import Interfaces, read_reasons
from otel_nfprobe.adapters.vpp_pending import find_pending
from otel_nfprobe.adapters.vpp_roles import INPUTS, WORDS, handles_packets, role_of
from otel_nfprobe.adapters.vpp_threads import find_thread_numbers
from otel_nfprobe.adapters.vpp_version import read_version
from otel_nfprobe.arch.snippet import assemble
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, function_at
from otel_nfprobe.target.target import Target

PROBED = (INTERNAL, INPUT)
WITNESSES = 32  # functions that are asked where a frame has its number of vectors
NAMES_SHOWN = 3  # of the nodes that share a function
NAME_SOURCE = "graph"
# A frame that is not there is replaced by the node's runtime, which can be read.
COUNT_VECTORS = "test rdx, rdx; cmove rdx, rsi; movzx eax, word ptr [rdx+{count}]"
NODE_AND_VECTORS = (
    "test rdx, rdx; cmove rdx, rsi; movzx ecx, word ptr [rdx+{count}]; "
    "mov eax, dword ptr [rsi+{node}]; shl rax, 32; or rax, rcx"
)
# The return value says how many; no argument leads to packets.
PROGRAM = {
    "count_from": COUNT_RETURN,
    "count_argument": ABSENT,
    "requested_argument": ABSENT,
    "queue_argument": ABSENT,
    "pointers_argument": ABSENT,
    "count_mask": 0xFFFFFFFF,
    "when": WHEN_NONZERO,
    "length_width": 2,
    "segment_width": 2,
    "packets_max": 0xFFFF,
    **dict.fromkeys(("data_offset", "array_offset", "arrival", "arrival_flags", "holders"), NO_OFFSET),
    **dict.fromkeys(("pointers_single", "data_pointer", "length", "segment_length", "arrival_unit", "link_layer"), 0),
    **dict.fromkeys(("count_width", "count_offset", "pointers_offset", "arrival_bit"), 0),
    **dict.fromkeys(("number_shift", "next_number", "next_flags", "next_bit"), 0),
    **dict.fromkeys(("checked", "pooled", "verdict", "proven", "offence"), 0),
}


class VppAdapter:
    """Finds the functions of the graph nodes that run."""

    name = "vpp"
    knows = KNOWS_PROGRAM

    def __init__(self) -> None:
        self.inner: list[str] = []
        self._graph: Graph | None = None
        self._names = NumberNames()
        self._reasons: dict[int, str] = {}
        self._interfaces: Interfaces | None = None
        self._frame: Frame | None = None
        self._buffers: NumberedBuffers | None = None  # None: packets are only counted
        self._threads: dict[int, str] = {}
        self._handoff: list[RoleFunction] = []
        self._considered: set[int] = set()  # functions of nodes that were called when it was last looked

    def recognise(self, target: Target) -> str | None:
        """See Adapter."""
        vlib = module_of(target, MAIN_SYMBOL)
        return None if vlib is None else f"{vlib.name} exports {MAIN_SYMBOL}, which leads to VPP's graph nodes"

    def roles(self, target: Target) -> list[RoleFunction]:
        """See Adapter."""
        graph, modules = read_graph(target), target.modules()
        self._interfaces = Interfaces(target)
        self._interfaces.look()
        self._threads = {tid: str(number) for tid, number in find_thread_numbers(target, len(graph.mains)).items()}
        self._keep(target, graph)
        self._considered = {address for node in graph.nodes if node.calls for address in node.functions}
        by_address = _group(graph)
        calls = {address: sum(node.calls for node in nodes) for address, nodes in by_address.items()}
        busiest = sorted(by_address, key=lambda address: -calls[address])
        witnesses = [address for address in busiest if _role(by_address[address], graph) not in INPUTS]
        wanted = {*witnesses[:WITNESSES], *(address for address in busiest if calls[address])}
        functions = {address: _function(target, modules, address) for address in wanted}
        self._frame = find_frame(functions[address] for address in witnesses[:WITNESSES])
        self._buffers = _find_buffers(target, graph, self._frame) if target.may_check_memory else None
        found = [
            self._make_role(by_address[address], functions[address], graph) for address in busiest if calls[address]
        ]
        if not any(role.role == RECEIVE for role in found):
            raise NfprobeError(
                f"No input node of process {target.pid} ({target.name}) has been called yet; is an interface up?",
                f"nfprobe attach {target.pid}",
            )
        found += [*self._find_handoff(target, graph), *barrier_roles(target, graph)]
        found.sort(key=lambda role: role.role == CALL)
        # Never empty: a trial of all functions would come upon those of process nodes.
        self.inner = [_place(functions[found[0].address])]
        return found

    def later_roles(self, target: Target) -> list[RoleFunction]:
        """See FollowingAdapter."""
        if self._graph is None:
            return []
        called = called_functions(target, self._graph)
        if self._interfaces is not None and self._interfaces.look():
            self._names = replace(self._names, interfaces=self._interfaces.names)
        if called <= self._considered and count_nodes(target, self._graph) == len(self._graph.nodes):
            return self._find_handoff(target, self._graph)
        graph, modules = read_graph(target, self._graph.layout), target.modules()
        self._keep(target, graph)
        self._considered |= called
        found = [
            self._make_role(nodes, _function(target, modules, address), graph)
            for address, nodes in _group(graph).items()
            if _ran(nodes)
        ]
        return sorted([*found, *self._find_handoff(target, graph)], key=lambda role: role.role == CALL)

    def possible_functions(self) -> list[int]:
        """See ForeseeingAdapter."""
        return [] if self._graph is None else list(_group(self._graph))

    def names(self) -> NumberNames:
        """See NamingAdapter."""
        return self._names

    def version(self, target: Target) -> str:
        """See VersionedAdapter."""
        return read_version(target)

    def numbered_buffers(self) -> NumberedBuffers:
        """See NumberingAdapter."""
        return self._buffers or NumberedBuffers()

    def notes(self, target: Target) -> list[str]:
        """See Adapter."""
        graph = self._graph or read_graph(target)
        processes = [node.name for node in graph.nodes if node.type == PROCESS]
        running = sum(node.calls > 0 for node in graph.nodes if node.type in PROBED)
        notes = [
            f"{len(graph.nodes)} graph nodes in {len(graph.mains)} threads, of which {running} were called and are"
            " probed; others are when they are called",
            f"process nodes, never probed: {', '.join(processes) or 'none'}",
            self._note_packets(),
        ]
        fit = _group(graph)
        unfit = [
            node.name
            for node in filter(handles_packets, graph.nodes)
            if node.type in PROBED and node.calls and not fit.keys() & node.functions
        ]
        if unfit:
            notes.append(f"not probed, other kinds of nodes run their functions, too: {', '.join(unfit)}")
        if self._frame is None:
            notes.append("node functions do not tell where a frame has its number of vectors: calls carry none")
        return notes

    def _find_handoff(self, target: Target, graph: Graph) -> list[RoleFunction]:
        """The functions of frame queues, once there are any; each time the same."""
        if not self._handoff and self._frame is not None and self._buffers is not None:
            self._handoff = find_handoff(target, graph, self._frame)
        return self._handoff

    def _keep(self, target: Target, graph: Graph) -> None:
        if self._graph is None or len(graph.nodes) != len(self._graph.nodes):
            self._reasons = read_reasons(target, graph)
        interfaces = {} if self._interfaces is None else self._interfaces.names
        self._graph, self._names = graph, NumberNames(_find_numbered(graph), self._reasons, interfaces, self._threads)

    def _note_packets(self) -> str:
        if self._buffers is None:
            return "packets are counted; their buffers, or the frames that input nodes fill, are not found"
        place = f"{self._buffers.start:#x}, {self._buffers.size_bytes >> 20} MiB"
        return f"buffers are at {place}; what an input node has received is read in the frames that it has filled"

    def _make_role(self, nodes: list[Node], function: Function, graph: Graph) -> RoleFunction:
        role = _role(nodes, graph)
        called = [node.name for node in nodes if node.calls]
        names = "/".join(called[:NAMES_SHOWN])
        names += f"/{len(called) - NAMES_SHOWN} more" if len(called) > NAMES_SHOWN else ""
        if names not in function.aliases:
            function.give_name(names, NAME_SOURCE)
        label = f"{names} {WORDS[role]}"
        if role == CALL:
            return RoleFunction(function.address, function.label, role, {}, label, self._snippet(nodes, graph), VECTORS)
        return RoleFunction(function.address, function.label, role, self._program(role), label, unit=VECTORS)

    def _program(self, role: int) -> dict[str, int]:
        if self._frame is None or self._buffers is None:
            return {**PROGRAM, "role": role}
        make = make_input_program if role in INPUTS else make_frame_program
        return make(role, self._frame)

    def _snippet(self, nodes: list[Node], graph: Graph) -> bytes:
        if self._frame is None:
            return b""
        text = COUNT_VECTORS if len(nodes) == 1 else NODE_AND_VECTORS
        return _assemble(text.format(count=self._frame.count, node=graph.layout.node_index))


@cache
def _assemble(text: str) -> bytes:
    return assemble(text).code


def _find_buffers(target: Target, graph: Graph, frame: Frame | None) -> NumberedBuffers | None:
    if frame is None or frame.array is None:  # before 22.02, where frames that are pending were described otherwise
        return None
    memory, pending = find_buffer_memory(target, graph.mains[0]), find_pending(target, graph.mains)
    return None if memory is None or pending is None else NumberedBuffers(*memory, pending, graph.layout.node_index)


def _group(graph: Graph) -> dict[int, list[Node]]:
    """The nodes of each function that can be probed: only functions that no other kind of node runs."""
    found: dict[int, list[Node]] = {}
    for node in filter(handles_packets, graph.nodes):
        for address in node.functions:
            found.setdefault(address, []).append(node)
    return {address: nodes for address, nodes in found.items() if _is_of_one_kind(nodes, graph)}


def _find_numbered(graph: Graph) -> dict[int, str]:
    """Names of the nodes whose calls say which of several they are of."""
    shared = {address for address, nodes in _group(graph).items() if len(nodes) > 1}
    return {
        node.index: node.name
        for node in graph.nodes
        if node.type in PROBED and (shared & set(node.functions) or role_of(node, graph) == TRANSMIT)
    }


def _is_of_one_kind(nodes: list[Node], graph: Graph) -> bool:
    kinds = {node.type for node in nodes}
    return kinds in ({INTERNAL}, {INPUT}) and len({role_of(node, graph) for node in nodes}) == 1


def _role(nodes: list[Node], graph: Graph) -> int:
    return role_of(nodes[0], graph)


def _ran(nodes: list[Node]) -> bool:
    return any(node.calls for node in nodes)


def _function(target: Target, modules: Sequence[Module], address: int) -> Function:
    module = module_at(modules, address)
    function = None if module is None else function_at(module, address - module.base)
    if function is None or function.address != address:
        raise NfprobeError(
            f"No function starts at {address:#x}, which a graph node runs.", f"nfprobe doctor {target.pid}"
        )
    return function


def _place(function: Function) -> str:
    return f"{function.module.name}:{function.offset:#x}"
