# SPDX-License-Identifier: Apache-2.0
"""Adapter for Open vSwitch's ovs-vswitchd, with and without DPDK, stripped or not.

    ports of DPDK             the drivers' burst functions, as the dpdk adapter finds them
    system, tap, vhost, ...   `rxq_recv` and `send` of the kind of port, which are handed a batch:
                              by their names, or in a build with DPDK by the tables of functions (below)

A batch is struct dp_packet_batch; the probes check what they read as they do what a person described. In a build
with DPDK a packet begins with its rte_mbuf.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.adapters.base import (
    CAPACITY,
    COUNT_MEMORY,
    KNOWS_PROGRAM,
    RECEIVE,
    TRANSMIT,
    WHEN_ZERO,
    Batch,
    Buffer,
    Burst,
    RoleFunction,
    make_program,
)
from otel_nfprobe.adapters.dpdk import Table, find_table
from otel_nfprobe.adapters.dpdk_free import free_roles
from otel_nfprobe.adapters.dpdk_stamps import with_stamp
from otel_nfprobe.adapters.ethdev import MBUF, mbuf_note, port_roles
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at, functions_of
from otel_nfprobe.target.target import Target

PROGRAM = "ovs-vswitchd"
SIGN = b"dpif_netdev"  # its userspace datapath's log module
DPDK_SIGN = b"netdev_dpdk"

# struct dp_packet_batch {size_t count; bool trunc; struct dp_packet *packets[NETDEV_MAX_BURST];}
BATCH = Batch(count=0, count_bytes=8, pointers=16, capacity=32)
# int rxq_recv(struct netdev_rxq *, struct dp_packet_batch *, int *qfill): 0, or an error number.
RXQ_RECV = Burst(1, CAPACITY, COUNT_MEMORY, batch=BATCH, when=WHEN_ZERO, checked=True, queue=0)
# int send(struct netdev *, int qid, struct dp_packet_batch *, bool concurrent_txq): it takes all packets.
SEND = Burst(2, CAPACITY, COUNT_MEMORY, batch=BATCH, checked=True)
# struct dp_packet of a build without DPDK: base_, data_ofs, size_.
DP_PACKET = Buffer(data=0, data_offset=10, length=12, length_bytes=4, segment_length=12, segment_bytes=4)

KIND_NAMES = {
    "system": ("netdev_linux_rxq_recv", "netdev_linux_send"),
    "afxdp": ("netdev_afxdp_rxq_recv", "netdev_afxdp_batch_send"),
    "dummy": ("netdev_dummy_rxq_recv", "netdev_dummy_send"),
    "dpdkvhostuser": ("netdev_dpdk_vhost_rxq_recv", "netdev_dpdk_vhost_send"),
}
# Worth a probe where they have names: the datapath's way of a batch, misses of its caches, and what frees packets.
INNER = (
    "dp_netdev_input__", "fast_path_processing", "handle_packet_upcall", "upcall_cb", "dp_netdev_execute_actions",
    "dp_netdev_pmd_flush_output_on_port", "netdev_send", "free_dpdk_buf",
)  # fmt: skip


class OvsAdapter:
    """Finds the functions that receive and transmit on the ports of ovs-vswitchd's own datapath."""

    name = "ovs"
    knows = KNOWS_PROGRAM

    def __init__(self) -> None:
        self.inner: list[str] = []
        self.finds_free = True
        self._kinds: list[PortKind] = []

    def recognise(self, target: Target) -> str | None:
        """See Adapter."""
        modules = target.modules()
        if not modules or not modules[0].name.startswith(PROGRAM) or SIGN not in modules[0].image.data:
            return None
        return f"its program is {modules[0].name}, Open vSwitch {'with' if _has_dpdk(modules[0]) else 'without'} DPDK"

    def roles(self, target: Target) -> list[RoleFunction]:
        """See Adapter."""
        program = target.modules()[0]
        named = {function.name: function.address for function in functions_of(program)}
        self.inner = [f"{program.name}:{name}" for name in INNER if name in named]
        table = find_table(target) if _has_dpdk(program) else None
        roles = port_roles(target, table, with_stamp(target, MBUF)) if table is not None and table.started() else []
        self._kinds = _find_kinds(target, named, table)
        if target.may_check_memory:
            roles += _kind_roles(program, self._kinds, MBUF if table is not None else DP_PACKET)
        if table is not None and self.finds_free:
            roles += free_roles(target)
        if not any(role.role == RECEIVE for role in roles):
            raise RefusedError(
                f"Process {target.pid} ({target.name}) has no port of DPDK and its functions have no names: "
                "which of them receive and transmit must be told by a description (docs/adapters.md), or by names "
                "(a package of debug symbols, --archive).",
                f"nfprobe attach {target.pid} --adapter FILE.yaml",
            )
        return roles

    def notes(self, target: Target) -> list[str]:
        """See Adapter."""
        layout = mbuf_note(target) if _has_dpdk(target.modules()[0]) else "dp_packet is read as Open vSwitch 3.1 has it"
        pollers = [thread.name for thread in target.threads() if thread.name.startswith("pmd-")]
        notes = [layout, f"polling threads: {', '.join(pollers) or 'none'}"]
        if self._kinds and not target.may_check_memory:
            notes.append("a seccomp filter may forbid process_vm_readv: only ports of DPDK are measured")
        return notes


def _has_dpdk(program: Module) -> bool:
    return DPDK_SIGN in program.image.data


def _find_kinds(target: Target, named: dict[str, int], table: Table | None) -> list[PortKind]:
    """The kinds of ports besides DPDK's, by name or else by their tables."""
    kinds = [
        PortKind(kind, named[receive], named[send])
        for kind, (receive, send) in KIND_NAMES.items()
        if receive in named and send in named
    ]
    if kinds or table is None:
        return kinds
    return find_port_kinds(target, table.address)


def _kind_roles(program: Module, kinds: list[PortKind], packet: Buffer) -> Iterator[RoleFunction]:
    """One role for each function; several kinds share them."""
    for role, word, burst in ((RECEIVE, "receive", RXQ_RECV), (TRANSMIT, "transmit", SEND)):
        by_address: dict[int, list[str]] = {}
        for kind in kinds:
            by_address.setdefault(kind.receive if role == RECEIVE else kind.send, []).append(kind.name)
        for address, names in by_address.items():
            function = function_at(program, address - program.base)
            if function is None:
                continue
            label = f"{'/'.join(names)} {word}"
            yield RoleFunction(address, function.label, role, make_program(role, burst, packet), label)


# ---- classes --------------------------------------------------------------------------------------------------------
# Where a stripped Open vSwitch keeps the functions of its kinds of ports.
#
# Each kind is a constant table of functions (struct netdev_class) that begins with a pointer to its name. Where in
# a table `send` and `rxq_recv` stand differs between versions. In a build with DPDK the kind "dpdk" tells: both of its
# functions, and no others of it, refer to rte_eth_fp_ops, and `send` comes first. Reads the target only.


DPDK = "dpdk"
# Kinds whose packets pass only here. "dpdk" itself is seen in its drivers.
KINDS = ("system", "tap", "internal", "dummy", "afxdp", "afxdp-nonpmd", "dpdkvhostuser", "dpdkvhostuserclient")
CLASS_BYTES_MAX = 1024
WORD_BYTES = 8


class PortKind(NamedTuple):
    """A kind of ports: its name, and addresses in the target."""

    name: str
    receive: int
    send: int


class _Data(NamedTuple):
    """Words of the program's data from an address on."""

    address: int
    words: NDArray[Any]

    def places_of(self, values: Sequence[int]) -> list[int]:
        """Indexes of the words that have one of the values."""
        return [int(index) for index in np.flatnonzero(np.isin(self.words, np.array(values, np.uint64)))]


def find_port_kinds(target: Target, table_address: int) -> list[PortKind]:
    """The kinds of ports whose functions can be told; none when the tables are not found.

    Args:
        table_address: of rte_eth_fp_ops in the target.
    """
    program = target.modules()[0]
    data = list(_data_of(target, program))
    callers = _functions_that_use(program, data, table_address)
    offsets = _find_offsets(program, data, callers)
    if offsets is None:
        return []
    starts = {program.base + start for start in program.image.frames.starts}
    found = []
    for name in KINDS:
        for part in data:
            for place in part.places_of(_addresses_of_text(program, name)):
                send, receive = (_word(part, place + offset) for offset in offsets)
                if send != receive and {send, receive} <= starts:
                    found.append(PortKind(name, receive, send))
    return _without_doubtful(found)


def _without_doubtful(kinds: list[PortKind]) -> list[PortKind]:
    """Other tables begin with such a name, too: of several, the one is meant whose functions serve another kind."""
    names = Counter(kind.name for kind in kinds)
    shared = Counter((kind.receive, kind.send) for kind in kinds)
    return [kind for kind in kinds if names[kind.name] == 1 or shared[kind.receive, kind.send] > 1]


def _find_offsets(program: Module, data: list[_Data], callers: list[int]) -> tuple[int, int] | None:
    """Where `send` and `rxq_recv` stand, in words; None when several answers are possible."""
    found = {offsets for _, _, offsets in _dpdk_classes(program, data, callers)}
    return found.pop() if len(found) == 1 else None


def _dpdk_classes(
    program: Module, data: list[_Data], callers: list[int]
) -> Iterator[tuple[_Data, int, tuple[int, int]]]:
    for part in data:
        uses = part.places_of(callers)
        for place in part.places_of(_addresses_of_text(program, DPDK)):
            inside = [use - place for use in uses if 0 < use - place < CLASS_BYTES_MAX // WORD_BYTES]
            if len(inside) == 2:
                yield part, place, (inside[0], inside[1])


def _functions_that_use(program: Module, data: list[_Data], table_address: int) -> list[int]:
    """Functions of the program that refer to the table, or to a word that holds its address (GOT)."""
    referred = [table_address]
    for part in data:
        referred += [part.address + WORD_BYTES * index for index in part.places_of([table_address])]
    frames = program.image.frames.frames
    starts = program.image.frames.starts
    found = set()
    for low, high in program.image.code_ranges:
        code = np.frombuffer(program.image.read(low, high - low), np.uint8)
        for address in _references(code, low, {word - program.base for word in referred}):
            index = bisect_right(starts, address) - 1
            if index >= 0 and address < frames[index].start + frames[index].size:
                found.add(program.base + frames[index].start)
    return sorted(found)


def _references(code: NDArray[np.uint8], low: int, referred: set[int]) -> Iterator[int]:
    """Addresses of displacements that lead, from their own end, to one of the file's own addresses."""
    for shift in range(4):
        part = code[shift : shift + (len(code) - shift) // 4 * 4].view("<i4").astype(np.int64)
        places = low + shift + 4 * np.arange(len(part))
        for index in np.flatnonzero(np.isin(part + places + 4, np.array(sorted(referred), np.int64))):
            yield int(places[index])


def _data_of(target: Target, program: Module) -> Iterator[_Data]:
    for mapping in target.maps():
        if mapping.path == program.path and "x" not in mapping.permissions:
            content = target.read(mapping.start, (mapping.end - mapping.start) // WORD_BYTES * WORD_BYTES)
            yield _Data(mapping.start, np.frombuffer(content, "<u8"))


def _addresses_of_text(program: Module, text: str) -> list[int]:
    """Addresses in the target of a text with its zero byte, also as the end of a longer one."""
    wanted, found = text.encode() + b"\0", []
    for segment in program.image.segments:
        content = program.image.read(segment.address, segment.file_bytes)
        place = content.find(wanted)
        while place >= 0:
            found.append(program.base + segment.address + place)
            place = content.find(wanted, place + 1)
    return found


def _word(part: _Data, index: int) -> int:
    return int(part.words[index]) if index < len(part.words) else 0
