# SPDX-License-Identifier: Apache-2.0
"""Adapter for FD.io VPP. Its graph nodes are found in the running, stripped process (vpp_graph.py).

    uword function(vlib_main_t *vm, vlib_node_runtime_t *node, vlib_frame_t *frame)     returns the vectors

    input nodes                 receive; their frame is NULL: a batch is as many packets as they return, and
                                which ones stands in the frames that are pending then
    crypto-deq, crypto-dispatch give packets back that were kept
    nodes called ...-tx         transmit; not those whose packets go on
    drop                        drops: the last of the drop nodes
    punt, ...-punt-socket       punt
    other internal nodes        named as in the graph; each call carries its number of vectors
    process, pre-input nodes    are never probed

Nodes are probed once VPP has called them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from functools import cache

from otel_nfprobe.adapters.base import (
    ABSENT,
    CALL,
    COMMAND,
    COUNT_RETURN,
    DEQUEUE,
    DROP,
    HAND_OVER,
    HOLD,
    KEEP,
    KNOWS_PROGRAM,
    PUNT,
    RECEIVE,
    RELEASE,
    REPLACE,
    TRANSMIT,
    VECTORS,
    WHEN_ALWAYS,
    Buffer,
    Burst,
    NumberedBuffers,
    RoleFunction,
    make_program,
)
from otel_nfprobe.adapters.ethdev import label_at, module_at
from otel_nfprobe.adapters.vpp_buffers import (
    BUFFER,
    RECEIVED_MAX,
    find_buffer_memory,
    find_vectors,
    make_node_program,
)
from otel_nfprobe.adapters.vpp_frames import FRAME_ARGUMENT, Frame, find_frame
from otel_nfprobe.adapters.vpp_graph import (
    INPUT,
    INTERNAL,
    LIBRARY,
    MAIN_BYTES,
    MAIN_SYMBOL,
    PROCESS,
    THREADS_MAX,
    Graph,
    Node,
    called_functions,
    count_nodes,
    module_exporting,
    module_of,
    read_graph,
    read_vector,
)
from otel_nfprobe.adapters.vpp_names import Interfaces, TextReader, read_reasons
from otel_nfprobe.arch.architecture import of_host, of_image
from otel_nfprobe.arch.snippet import assemble
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, function_at
from otel_nfprobe.target.target import Target

# ---- version --------------------------------------------------------------------------------------------------------
# Which version of VPP runs, as it says itself, else as its library is called. Reads the target only.
#
# vlib_plugin_app_version, which the program exports and plugins are compared with    "26.06-release"
# DT_SONAME of libvlib                                                                libvlib.so.26.06


VERSION_SYMBOL = "vlib_plugin_app_version"
_VERSION = compile_late(r"\d+\.\d+[\w.~+-]{0,60}", re.ASCII)


def read_version(target: Target) -> str:
    """Such as `26.06-release`, or `26.06` where only the library's name says so; empty where nothing does."""
    module = module_exporting(target, VERSION_SYMBOL, LIBRARY)
    symbol = None if module is None else module.image.find_export(VERSION_SYMBOL)
    if module is not None and symbol is not None:
        try:
            text = TextReader(target).read(target.read_word(module.base + symbol.address))
        except NfprobeError:
            text = ""
        if _VERSION.fullmatch(text):
            return text
    names = (module.image.soname for module in target.modules() if module.name.startswith(LIBRARY + "."))
    versions = (name.removeprefix(LIBRARY + ".so.") for name in names)
    return next((version for version in versions if _VERSION.fullmatch(version)), "")


# ---- roles ----------------------------------------------------------------------------------------------------------
# What a graph node of VPP does with packets, by its type and name.
#
# Nodes that end a packet's way, or begin it, are few; all others hand their packets on.


WORDS = {
    RECEIVE: "receive",
    DEQUEUE: "return",
    TRANSMIT: "transmit",
    DROP: "drop",
    PUNT: "punt",
    KEEP: "reassemble",
    REPLACE: "fragment",
    CALL: "node",
}
INPUTS = (RECEIVE, DEQUEUE)
# Input nodes whose packets have been received before: others have kept them for a turn or more, in the same buffers.
RETURNS = ("crypto-dispatch", "crypto-deq", "nsim-wheel")
MESSAGES = ("appsl-rx-mqs-input",)  # input nodes that return numbers of something else, and receive no packets
TRANSMIT_SUFFIX = "-tx"
DELETED_SUFFIX = "-deleted"  # of the nodes of an interface that is gone
# Nodes with that suffix that hand their packets on to the graph, in the same turn: of interfaces that have no device of
# their own (loopback, pipe of later releases, bridge, bond), of tunnels, and features.
INTERFACES = r"loop\d+|pipe\d+|bvi\d+|BondEthernet\d+|(l2_|nsh_)?lisp_gpe\d+"
FEATURES = r"adj-midchain|mpls-tunnel|stats-collect|mactime|ip[46]-cnat|ip4-source-and-port-range-check"
HANDS_ON = compile_late(rf"({INTERFACES}|{FEATURES})-tx(-deleted)?")
PUNT_SOCKET = compile_late(r".+-punt-socket")  # writes its packets to the socket of a program
REASSEMBLY = compile_late(r"ip[46](-local)?-full-reassembly(-feature|-custom)?")
FRAGMENTATION = ("ip4-frag", "ip6-frag")


def handles_packets(node: Node) -> bool:
    """Whether what it returns is a number of packets."""
    return node.name not in MESSAGES


def role_of(node: Node, graph: Graph) -> int:
    """RECEIVE, DEQUEUE, TRANSMIT, DROP, PUNT, KEEP, REPLACE, or CALL of a node that hands its packets on."""
    if node.type == INPUT:
        return DEQUEUE if node.name in RETURNS else RECEIVE
    if HANDS_ON.fullmatch(node.name):
        return CALL
    if node.name.removesuffix(DELETED_SUFFIX).endswith(TRANSMIT_SUFFIX):
        return TRANSMIT
    if node.name == graph.last_punt or PUNT_SOCKET.fullmatch(node.name):
        return PUNT
    if REASSEMBLY.fullmatch(node.name):
        return KEEP
    if node.name in FRAGMENTATION:
        return REPLACE
    return DROP if node.name == graph.last_drop else CALL


# ---- threads --------------------------------------------------------------------------------------------------------
# The numbers that a running VPP gives its threads, as in `show threads`: 0 is the main one, 1 the first worker, ...
#
#     vlib_worker_threads, which libvlib exports -> one structure for each thread, which holds the kernel's number of it
#
# Where in it differs between releases: it is where all of them hold threads of the process, the first one its main one.
# What does not fit gives no numbers. Reads the target only.


WORKERS_SYMBOL = "vlib_worker_threads"
STRUCTURE_BYTES = range(192, 640, 64)  # whole cache lines; 256 as of 26.06
FIRST_FIELD = 64  # the first line is about the barrier


def find_thread_numbers(target: Target, workers_and_main: int) -> dict[int, int]:
    """Numbers by the kernel's number of the thread; empty where they are not found."""
    module = module_of(target, WORKERS_SYMBOL)
    if module is None:
        return {}
    own = {thread.tid for thread in target.threads()}
    try:
        address = target.read_word(module.base + module.image.exports[WORKERS_SYMBOL].address)
        count = int.from_bytes(target.read(address - 8, 4), "little")
        if not workers_and_main <= count <= THREADS_MAX:
            return {}
        for size in STRUCTURE_BYTES:
            content = target.read(address, workers_and_main * size)
            for field in range(FIRST_FIELD, size, 8):
                places = range(field, len(content), size)
                tids = [struct.unpack_from("<Q", content, place)[0] for place in places]
                if tids[0] == target.pid and own.issuperset(tids) and len(set(tids)) == len(tids):
                    return {tid: number for number, tid in enumerate(tids)}
    except NfprobeError:
        pass
    return {}


# ---- pending --------------------------------------------------------------------------------------------------------
# Where a running VPP keeps the frames that are pending: what input nodes have filled, up to the end of the turn.
#
#     vlib_main_t -> node_main -> pending_frames -> frame, node, next frame: 16 bytes each
#
# The place differs between releases. vlib_put_next_frame, which libvlib exports, tells it: of all that this function
# reads in vlib_main_t it is the one vector that it may have to move. So it is of 22.02 and later.


PENDING_SYMBOL = "vlib_put_next_frame"
FRAMES_MAX = 4096  # pending at a time


def find_pending(target: Target, mains: Iterable[int]) -> int | None:
    """Offset in every vlib_main_t of the vector of pending frames; None when it is not found.

    Args:
        mains: addresses of the vlib_main_t of all threads.
    """
    module = module_of(target, PENDING_SYMBOL)
    function = None if module is None else function_at(module, module.image.exports[PENDING_SYMBOL].address)
    if module is None or function is None:
        return None
    found = of_image(module.image).rewritten_words(module.image, function.offset, function.size)
    offsets = {offset for offset in found if offset < MAIN_BYTES}
    if len(offsets) != 1:
        return None
    (offset,) = offsets
    return offset if all(_is_vector(target, main + offset) for main in mains) else None


def _is_vector(target: Target, place: int) -> bool:
    try:
        address = target.read_word(place)
        return address % 8 == 0 and int.from_bytes(target.read(address - 8, 4), "little") <= FRAMES_MAX
    except NfprobeError:
        return False


# ---- barrier --------------------------------------------------------------------------------------------------------
# The barrier of a running VPP: its main thread has all workers stand still while it changes what they read.
#
#     vlib_worker_thread_barrier_sync_int(vm, function)   returns when all do; the name of the C function that wants it
#     vlib_worker_thread_barrier_release(vm)              lets them go
#     vlib_cli_input(vm, input, ...)                      runs a line of the CLI; input -> a vector of its characters
#
# libvlib exports all three. Where there are no workers nobody is held.


SYNC, RELEASED = "vlib_worker_thread_barrier_sync_int", "vlib_worker_thread_barrier_release"
CLI = "vlib_cli_input"
TEXT_ARGUMENT = 1
NOTHING = Buffer(data=0, length=0, length_bytes=2, segment_length=0, segment_bytes=2)  # these calls have no packets


def barrier_roles(target: Target, graph: Graph) -> list[RoleFunction]:
    """The functions of the barrier, or none: all workers are held by both or by neither."""
    module = module_of(target, SYNC)
    if module is None or len(graph.mains) < 2 or RELEASED not in module.image.exports:
        return []
    roles = {SYNC: (HOLD, "barrier sync"), RELEASED: (RELEASE, "barrier release"), CLI: (COMMAND, "command line")}
    return [
        RoleFunction(
            module.base + module.image.exports[name].address,
            f"{module.name}:{name}",
            role,
            {} if role == RELEASE else _text_program(role),
            label,
        )
        for name, (role, label) in roles.items()
        if name in module.image.exports
    ]


def _text_program(role: int) -> dict[str, int]:
    # A line is a vector behind a pointer, the name of a function ends with a zero byte.
    program = make_program(role, Burst(TEXT_ARGUMENT, ABSENT, single=role == COMMAND), NOTHING)
    return {**program, "when": WHEN_ALWAYS}


# ---- handoff --------------------------------------------------------------------------------------------------------
# Frame queues: how the threads of a running VPP hand packets to each other (worker handoff, NAT, reassembly).
#
#     a handoff node -> vlib_buffer_func_main -> vlib_buffer_enqueue_to_thread_fn(vm, node, queue, numbers, threads,
#                       count, drops): returns for how many there was room; the others it frees
#     main loop      -> vlib_thread_main -> frame_queue_mains -> vlib_frame_queue_dequeue_fn(vm, queue)
#                       puts them into new frames, which are pending when it returns
#
# libvlib exports all of these names, each function once for every kind of processor; the one that runs is the one that
# these tables lead to. Up to 22.02 the first table has the second function, too. Reads the target only.


FUNCTIONS_SYMBOL, THREADS_SYMBOL = "vlib_buffer_func_main", "vlib_thread_main"
PUTS = compile_late(r"vlib_buffer_enqueue_to_(single_)?thread_fn(_[a-z0-9_]+)?")  # its count is the sixth argument
TAKES = compile_late(r"vlib_frame_queue_dequeue(_with_aux)?_fn(_[a-z0-9_]+)?")
NO_NODE = 0xFFFFFFFF
TABLE_BYTES_MAX = 256  # of either variable
QUEUES_MAX = 1024
QUEUE_BYTES = (40, 48, 32, 56, 64)  # 40: 22.06 as of 26.06
MAIN, QUEUE, NUMBERS, COUNT = 0, 1, 3, 5  # arguments
CALL_PACKETS = 512  # that are described where some of a call were dropped


def find_handoff(target: Target, graph: Graph, frame: Frame) -> list[RoleFunction]:
    """The functions that put packets into queues and take them out; none where there are no queues or no workers."""
    module = module_of(target, FUNCTIONS_SYMBOL)
    if module is None or len(graph.mains) < 2 or THREADS_SYMBOL not in module.image.exports:
        return []
    puts, takes = _exported(module, PUTS), _exported(module, TAKES)
    table = _words(target, module, FUNCTIONS_SYMBOL)
    taking = (table & takes.keys()) or _find_taking(target, module, takes.keys(), len(graph.nodes))
    putting = table & puts.keys()
    if not taking or not putting:
        return []
    take = Burst(MAIN, ABSENT, COUNT_RETURN, batch=find_vectors(frame, RECEIVED_MAX), checked=True, queue=QUEUE)
    put = Burst(NUMBERS, COUNT, COUNT_RETURN, packets_max=CALL_PACKETS, checked=True)
    return [
        *(_handoff_role(module, address, HAND_OVER, put, "hand over") for address in sorted(putting)),
        *(_handoff_role(module, address, DEQUEUE, take, "take over") for address in sorted(taking)),
    ]


def _exported(module: Module, pattern: re.Pattern[str]) -> dict[int, str]:
    exports = module.image.exports
    return {module.base + exports[name].address: name for name in exports if pattern.fullmatch(name)}


def _words(target: Target, module: Module, symbol: str) -> set[int]:
    exported = module.image.exports[symbol]
    size = min(exported.size, TABLE_BYTES_MAX) // 8 * 8
    try:
        return set(struct.unpack(f"<{size // 8}Q", target.read(module.base + exported.address, size)))
    except NfprobeError:
        return set()


def _find_taking(target: Target, module: Module, takes: Container[int], nodes: int) -> set[int]:
    """The functions that all elements of the vector of queues hold, at one place."""
    for word in _words(target, module, THREADS_SYMBOL):
        for size in QUEUE_BYTES:
            content = read_vector(target, word, 1, QUEUES_MAX, size)
            if content is None:
                continue
            queues = [content[place : place + size] for place in range(0, len(content), size)]
            if not all(_node_of(queue) < nodes or _node_of(queue) == NO_NODE for queue in queues):
                continue
            for place in range(8, size, 8):
                found = {struct.unpack_from("<Q", queue, place)[0] for queue in queues}
                if all(address in takes for address in found):
                    return found
    return set()


def _node_of(queue: bytes) -> int:
    return int.from_bytes(queue[:4], "little")


def _handoff_role(module: Module, address: int, role: int, burst: Burst, word: str) -> RoleFunction:
    program, puts = make_program(role, burst, BUFFER), role == HAND_OVER
    if puts:
        program["when"] = WHEN_ALWAYS  # its probe has something to do at each entry
    label = f"frame queues {word}"
    return RoleFunction(address, label_at(module, address), role, program, label, takes_seventh=puts)


# ---- adapter --------------------------------------------------------------------------------------------------------


PROBED = (INTERNAL, INPUT)
RUNTIME_ARGUMENT = 1
WITNESSES = 32  # functions that are asked where a frame has its number of vectors
NAMES_SHOWN = 3  # of the nodes that share a function
NAME_SOURCE = "graph"
# The return value says how many; no argument leads to packets.
PROGRAM = {**Burst(ABSENT, ABSENT, packets_max=0xFFFF).fields(), **NOTHING.fields()}


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
        return make_node_program(role, self._frame, is_input=role in INPUTS)

    def _snippet(self, nodes: list[Node], graph: Graph) -> bytes:
        if self._frame is None:
            return b""
        node_index = graph.layout.node_index if len(nodes) > 1 else None
        # A frame that is not there is replaced by the node's runtime, which can be read.
        return _assemble(of_host().field_text(FRAME_ARGUMENT, RUNTIME_ARGUMENT, self._frame.count, node_index))


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
