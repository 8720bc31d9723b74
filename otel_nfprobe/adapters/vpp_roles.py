# SPDX-License-Identifier: Apache-2.0
"""What a graph node of VPP does with packets, by its type and name.

Nodes that end a packet's way, or begin it, are few; all others hand their packets on.
"""

from __future__ import annotations

import re

from otel_nfprobe.adapters.base import CALL, DEQUEUE, DROP, KEEP, PUNT, RECEIVE, REPLACE, TRANSMIT
from otel_nfprobe.adapters.vpp_graph import INPUT, Graph, Node

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
HANDS_ON = re.compile(rf"({INTERFACES}|{FEATURES})-tx(-deleted)?")
PUNT_SOCKET = re.compile(r".+-punt-socket")  # writes its packets to the socket of a program
REASSEMBLY = re.compile(r"ip[46](-local)?-full-reassembly(-feature|-custom)?")
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
