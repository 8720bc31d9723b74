# SPDX-License-Identifier: Apache-2.0
"""Graph nodes: calls of functions that count vectors, node by node, with the clocks of each vector."""

from __future__ import annotations

import numpy as np

from otel_nfprobe.adapters.base import VECTORS
from otel_nfprobe.base.columns import CALL, CallFlag, Columns, Rows
from otel_nfprobe.base.numbernames import NumberNames, decode_names, encode_names
from otel_nfprobe.recording.nodes import NodeCounts, node_rows
from otel_nfprobe.recording.sessionfacts import FunctionInfo

INPUT, LOOKUP, TX, OTHER = range(4)
NAMES = NumberNames({7: "tap0-tx", 8: "tap1-tx"}, {3: "ip4-input: ip4 ttl <= 1"}, {1: "tap0"})


def function(id: int, name: str, unit: str = VECTORS) -> FunctionInfo:
    return FunctionInfo(id, 0, "/bin/vpp", 64 * id, 64, name, "graph", "in-stack", unit=unit)


def calls(*rows: tuple[int, int, int, int, CallFlag]) -> Rows:
    """Function, ticks, what its probes cost of them, value, flags of each."""
    made = np.zeros(len(rows), CALL)
    for row, (id, ticks, cost, value, flags) in zip(made, rows, strict=True):
        row["function"], row["value"], row["flags"] = id, value, flags
        row["start_ticks"], row["end_ticks"], row["cost_ticks"] = 1000, 1000 + ticks, cost
    return made


def counts_of(*parts: Rows) -> NodeCounts:
    counts = NodeCounts()
    counts.learn([function(INPUT, "pg-input"), function(LOOKUP, "ip4-lookup")])
    counts.learn([function(TX, "tap0-tx/tap1-tx"), function(OTHER, "other", unit="")])
    for part in parts:
        counts.add(Columns(part))
    return counts


def test_nodes_that_share_a_function_are_apart() -> None:
    value = CallFlag.VALUE
    first = calls(
        (INPUT, 1000, 0, 256 | 256 << 32, value | CallFlag.RECEIVE),  # the upper half is what was asked for
        (LOOKUP, 5000, 1000, 100, value),
        (TX, 300, 0, 90 | 7 << 32, value | CallFlag.TRANSMIT),
        (TX, 500, 0, 10 | 8 << 32, value | CallFlag.TRANSMIT),
        (OTHER, 10**6, 0, 10**6, value),
    )
    second = calls((TX, 200, 0, 10 | 7 << 32, value), (LOOKUP, 1000, 0, 0, CallFlag(0)), (99, 5, 0, 5, value))
    found = {node["name"]: node for node in counts_of(first, calls(), second).describe(NAMES, 0.5)}
    assert {name: (node["calls"], node["vectors"]) for name, node in found.items()} == {
        "pg-input": (1, 256),
        "ip4-lookup": (1, 100),
        "tap0-tx": (2, 100),
        "tap1-tx": (1, 10),
    }
    assert list(found) == ["ip4-lookup", "pg-input", "tap0-tx", "tap1-tx"]  # by clocks
    assert found["ip4-lookup"]["clocks_per_vector"] == 40.0  # without what the probe cost
    assert found["ip4-lookup"]["ns_per_vector"] == 20.0
    assert found["tap0-tx"]["vectors_per_call"] == 50.0


def test_a_node_whose_number_has_no_name_is_called_as_its_function() -> None:
    unnamed = calls((TX, 300, 0, 90 | 9 << 32, CallFlag.VALUE), (TX, 300, 0, 10, CallFlag.VALUE))
    (node,) = counts_of(unnamed).describe(NAMES, 1.0)
    assert (node["name"], node["calls"], node["vectors"]) == ("tap0-tx/tap1-tx", 2, 100)


def test_a_node_without_vectors_has_no_clocks_for_each() -> None:
    (node,) = counts_of(calls((LOOKUP, 300, 0, 0, CallFlag.VALUE))).describe(NAMES, 1.0)
    assert (node["clocks_per_vector"], node["ns_per_vector"], node["vectors_per_call"]) == (None, None, 0.0)
    assert node_rows([node])[1] == ["ip4-lookup", "1", "0", "0.00", "-", "-"]


def test_names_are_read_as_they_were_written() -> None:
    assert decode_names(encode_names(NAMES)) == NAMES
    later = decode_names(encode_names(NumberNames({8: "memif1-tx"})))
    known = decode_names(encode_names(NAMES))
    known.learn([later])
    assert known.nodes == {7: "tap0-tx", 8: "memif1-tx"}
    assert known.interfaces == NAMES.interfaces
