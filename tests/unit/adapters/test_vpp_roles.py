# SPDX-License-Identifier: Apache-2.0
"""What nodes of VPP do with packets, by the names that VPP gives them."""

from __future__ import annotations

import pytest

from otel_nfprobe.adapters.base import CALL, DEQUEUE, DROP, KEEP, PUNT, RECEIVE, REPLACE, TRANSMIT
from otel_nfprobe.adapters.vpp import handles_packets, role_of
from otel_nfprobe.adapters.vpp_graph import INPUT, INTERNAL, Graph, Layout, Node

ROLES = {
    RECEIVE: ["pg-input", "dpdk-input", "memif-input", "af-packet-input", "virtio-input", "pipe-input", "port-rx-eth0"],
    DEQUEUE: ["crypto-deq", "crypto-dispatch", "nsim-wheel"],
}
INNER_ROLES = {
    TRANSMIT: ["memif0/0-tx", "host-vpp1-tx", "tap0-tx", "interface-1-tx-deleted", "pipe0.0-tx"],
    CALL: ["loop0-tx", "loop12-tx-deleted", "interface-output", "ip4-lookup", "error-drop", "error-punt", "crypto-enq"],
    DROP: ["drop"],
    PUNT: ["punt", "ip4-udp-punt-socket", "exception-punt-socket"],
    KEEP: ["ip4-full-reassembly", "ip6-full-reassembly-feature", "ip4-local-full-reassembly"],
    REPLACE: ["ip4-frag", "ip6-frag"],
}
TUNNELS = ["adj-midchain-tx", "mpls-tunnel-tx", "ip4-cnat-tx", "BondEthernet0-tx", "bvi3-tx", "lisp_gpe1-tx"]
OTHERS = ["ip4-sv-reassembly-feature", "ip4-full-reassembly-handoff", "ip4-udp-punt", "ip4-icmp-error"]
LAYOUT = Layout(0, 0, 0, 0, 0)


def make_node(name: str, kind: int) -> Node:
    return Node(1, name, kind, (), 1, 1)


@pytest.mark.parametrize(
    ("kind", "roles"), [(INPUT, ROLES), (INTERNAL, {**INNER_ROLES, CALL: [*INNER_ROLES[CALL], *OTHERS, *TUNNELS]})]
)
def test_roles(kind: int, roles: dict[int, list[str]]) -> None:
    graph = Graph((), (), LAYOUT, "drop", "punt")
    for role, names in roles.items():
        assert [role_of(make_node(name, kind), graph) for name in names] == [role] * len(names)
        assert all(handles_packets(make_node(name, kind)) for name in names)
    assert not handles_packets(make_node("appsl-rx-mqs-input", INPUT))


def test_releases_without_the_last_nodes() -> None:
    graph = Graph((), (), LAYOUT, "error-drop", "error-punt")
    assert role_of(make_node("error-drop", INTERNAL), graph) == DROP
    assert role_of(make_node("error-punt", INTERNAL), graph) == PUNT
