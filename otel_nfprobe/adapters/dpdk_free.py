# SPDX-License-Identifier: Apache-2.0
"""Where a program of DPDK gives packets back: the copies of rte_pktmbuf_free, named or not, and rte_pktmbuf_free_bulk.

`rte_pktmbuf_free` is an inline function. Where a compiler did not inline it, each file of the program has a copy of
its own, which in a stripped program has no name. It is told by its code:

    takes one argument, which it compares with zero              it may be NULL
    reads of what that points to only the fields below           an rte_mbuf, and nothing of the packet
    reads `refcnt` and `next`, writes `nb_segs`                  each segment in turn
    calls through a table at the place of `enqueue`              rte_mempool_ops

Drivers are left out: what they free has been sent. Reads files only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iced_x86 import Decoder, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register
from iced_x86 import RegisterExt as Registers

from otel_nfprobe.adapters.base import ABSENT, COUNT_ARGUMENT, COUNT_FIXED, FREE, Burst, RoleFunction, make_program
from otel_nfprobe.adapters.ethdev import MBUF
from otel_nfprobe.arch.x86_64.dataflow import infer
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, functions_of
from otel_nfprobe.target.target import Target

# void rte_pktmbuf_free(struct rte_mbuf *); void rte_pktmbuf_free_bulk(struct rte_mbuf **, unsigned int count)
FREE_ONE, FREE_MANY = "rte_pktmbuf_free", "rte_pktmbuf_free_bulk"
ONE = Burst(pointers=0, requested=ABSENT, count_from=COUNT_FIXED, count_argument=1, single=True)
MANY = Burst(pointers=0, requested=1, count_from=COUNT_ARGUMENT, count_argument=1)
OPS_TABLE = b"rte_mempool_ops_table"
LIBRARY_PREFIX = "librte_"
MAIN_LIBRARY = "librte_mbuf."  # which has rte_pktmbuf_free_bulk
DRIVERS = (
    "baseband", "bus", "common", "compress", "crypto", "dma", "event", "mempool", "ml", "net", "raw", "regex", "vdpa",
)  # fmt: skip
COPIES_MAX = 24  # of the 64 functions whose probes can read packets

# rte_mbuf: refcnt, nb_segs, ol_flags (one byte of them, too), pool (before and since 21.11), next, shinfo.
REFCNT, NB_SEGS, NEXT = 0x12, 0x14, 0x40
READ = frozenset((REFCNT, NB_SEGS, *range(0x18, 0x20), 0x38, 0x48, NEXT, 0x50))
ENQUEUE = 0x70  # in the table, behind its lock, of an entry that begins with a name of 32 bytes
SIZES = range(96, 2048)  # bytes of a copy
BEGIN_BYTES = 96  # within which the argument is compared with zero
TEST_RDI = b"\x48\x85\xff"
_READS = (OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE)
_WRITES = (OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE)
_CALLS = (FlowControl.CALL, FlowControl.INDIRECT_CALL)
_KEPT = {Register.RBX, Register.RBP, Register.R12, Register.R13, Register.R14, Register.R15}
_information = InstructionInfoFactory()


def free_roles(target: Target) -> list[RoleFunction]:
    """The functions of the program and its libraries that give packets back; none where all are inlined."""
    found: list[RoleFunction] = []
    modules = target.modules()
    for module in [*modules[:1], *sorted(modules[1:], key=lambda module: not module.name.startswith(MAIN_LIBRARY))]:
        if _is_driver(module) or not _uses_pools(module, is_program=module is modules[0]):
            continue
        for function in _functions_that_free(module):
            many = FREE_MANY in function.aliases
            program = make_program(FREE, MANY if many else ONE, MBUF)
            found.append(RoleFunction(function.address, function.label, FREE, program, f"{module.name} frees packets"))
    return found[:COPIES_MAX]


def _is_driver(module: Module) -> bool:
    return module.name.startswith(tuple(f"{LIBRARY_PREFIX}{kind}_" for kind in DRIVERS))


def _uses_pools(module: Module, is_program: bool) -> bool:
    """Whether it frees by itself: then it refers to the pools' table, by name or linked in without one."""
    return is_program or OPS_TABLE in module.image.data


def _functions_that_free(module: Module) -> Iterator[Function]:
    for function in functions_of(module):
        named = FREE_ONE in function.aliases or FREE_MANY in function.aliases
        if named or (function.size in SIZES and frees_its_argument(module, function.offset, function.size)):
            yield function


def frees_its_argument(module: Module, offset: int, size: int) -> bool:
    """Whether the code is that of rte_pktmbuf_free."""
    code = module.image.read(offset, size)
    if TEST_RDI not in code[:BEGIN_BYTES]:
        return False
    instructions = list(Decoder(64, code, ip=offset))
    enqueues = any(
        one.flow_control == FlowControl.INDIRECT_CALL and one.memory_displacement == ENQUEUE for one in instructions
    )
    return enqueues and _works_on_segments(instructions) and infer(module.image, offset, size).arguments == 1


def _works_on_segments(instructions: Sequence[Instruction]) -> bool:
    """Whether it reads of its argument what a free needs, and nothing else."""
    read, written = set(), set()
    for instruction, packets in zip(instructions, _where_packets_are(instructions), strict=True):
        for memory in _information.info(instruction).used_memory():
            if memory.base in packets and memory.index == Register.NONE:
                read.update([memory.displacement] if memory.access in _READS else [])
                written.update([memory.displacement] if memory.access in _WRITES else [])
    return read <= READ and {REFCNT, NEXT} <= read and NB_SEGS in written


def _where_packets_are(instructions: Sequence[Instruction]) -> list[set[int]]:
    """For each instruction the registers that can hold a segment's address before it, on some way from the entry."""
    places = {instruction.ip: position for position, instruction in enumerate(instructions)}
    before: list[set[int]] = [set() for _ in instructions]
    before[0] = {Register.RDI}
    left = [0]
    while left:
        position = left.pop()
        after = _after(instructions[position], before[position])
        for follower in _followers(instructions[position], position, places):
            if not after <= before[follower]:
                before[follower] |= after
                left.append(follower)
    return before


def _followers(instruction: Instruction, position: int, places: dict[int, int]) -> Iterator[int]:
    flow = instruction.flow_control
    jumps = flow in (FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH)
    if jumps and instruction.near_branch_target in places:
        yield places[instruction.near_branch_target]
    if flow in (FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH, *_CALLS) and position + 1 < len(places):
        yield position + 1


def _after(instruction: Instruction, packets: set[int]) -> set[int]:
    copies = instruction.mnemonic == Mnemonic.MOV and instruction.op0_kind == OpKind.REGISTER
    from_register = instruction.op1_kind == OpKind.REGISTER and instruction.op1_register in packets
    from_next = instruction.memory_base in packets and instruction.memory_displacement == NEXT
    kept = packets & _KEPT if instruction.flow_control in _CALLS else set(packets)
    for register in _information.info(instruction).used_registers():
        if register.access in _WRITES:
            kept.discard(Registers.full_register(register.register))
    return kept | {instruction.op0_register} if copies and (from_register or from_next) else kept
