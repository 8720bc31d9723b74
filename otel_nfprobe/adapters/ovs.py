# SPDX-License-Identifier: Apache-2.0
"""Adapter for Open vSwitch's ovs-vswitchd, with and without DPDK, stripped or not.

    ports of DPDK             the drivers' burst functions, as the dpdk adapter finds them
    system, tap, vhost, ...   `rxq_recv` and `send` of the kind of port, which are handed a batch:
                              by their names, or in a build with DPDK by the tables of functions (ovs_classes.py)

A batch is struct dp_packet_batch; the probes check what they read as they do what a person described. In a build
with DPDK a packet begins with its rte_mbuf.
"""

from __future__ import annotations

from collections.abc import Iterator

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
from otel_nfprobe.adapters.ovs_classes import PortKind, find_port_kinds
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
        if table is not None:
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
