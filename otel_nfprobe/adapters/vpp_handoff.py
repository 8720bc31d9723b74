# SPDX-License-Identifier: Apache-2.0
"""Frame queues: how the threads of a running VPP hand packets to each other (worker handoff, NAT, reassembly).

    a handoff node -> vlib_buffer_func_main -> vlib_buffer_enqueue_to_thread_fn(vm, node, queue, numbers, threads,
                      count, drops): returns for how many there was room; the others it frees
    main loop      -> vlib_thread_main -> frame_queue_mains -> vlib_frame_queue_dequeue_fn(vm, queue)
                      puts them into new frames, which are pending when it returns

libvlib exports all of these names, each function once for every kind of processor; the one that runs is the one that
these tables lead to. Up to 22.02 the first table has the second function, too. Reads the target only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container

from otel_nfprobe.adapters.base import (
    ABSENT,
    COUNT_RETURN,
    DEQUEUE,
    HAND_OVER,
    NO_OFFSET,
    WHEN_ALWAYS,
    Batch,
    Burst,
    RoleFunction,
    make_program,
)
from otel_nfprobe.adapters.vpp_buffers import BUFFER, RECEIVED_MAX
from otel_nfprobe.adapters.vpp_frames import Frame
from otel_nfprobe.adapters.vpp_graph import Graph, module_of, read_vector
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at
from otel_nfprobe.target.target import Target

FUNCTIONS_SYMBOL, THREADS_SYMBOL = "vlib_buffer_func_main", "vlib_thread_main"
PUTS = re.compile(r"vlib_buffer_enqueue_to_(single_)?thread_fn(_[a-z0-9_]+)?")  # its count is the sixth argument
TAKES = re.compile(r"vlib_frame_queue_dequeue(_with_aux)?_fn(_[a-z0-9_]+)?")
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
    batch = Batch(frame.count, 2, frame.vectors, RECEIVED_MAX, NO_OFFSET if frame.array is None else frame.array)
    take = Burst(MAIN, ABSENT, COUNT_RETURN, batch=batch, checked=True, queue=QUEUE)
    put = Burst(NUMBERS, COUNT, COUNT_RETURN, packets_max=CALL_PACKETS, checked=True)
    return [
        *(_role(module, address, HAND_OVER, put, "hand over") for address in sorted(putting)),
        *(_role(module, address, DEQUEUE, take, "take over") for address in sorted(taking)),
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


def _role(module: Module, address: int, role: int, burst: Burst, word: str) -> RoleFunction:
    function = function_at(module, address - module.base)
    name = function.label if function is not None else f"{module.name}+{address - module.base:#x}"
    program, puts = make_program(role, burst, BUFFER), role == HAND_OVER
    if puts:
        program["when"] = WHEN_ALWAYS  # its probe has something to do at each entry
    return RoleFunction(address, name, role, program, f"frame queues {word}", takes_seventh=puts)
