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

from collections.abc import Iterator

from otel_nfprobe.adapters.base import ABSENT, COUNT_ARGUMENT, COUNT_FIXED, FREE, Burst, RoleFunction, make_program
from otel_nfprobe.adapters.ethdev import MBUF
from otel_nfprobe.arch.architecture import of_image
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
    architecture = of_image(module.image)
    found = architecture.list_fields(module.image, offset, size, NEXT, ENQUEUE)
    if found is None:
        return False
    read, written = found
    is_free = read <= READ and {REFCNT, NEXT} <= read and NB_SEGS in written
    return is_free and architecture.infer(module.image, offset, size).arguments == 1
