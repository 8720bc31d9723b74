# SPDX-License-Identifier: Apache-2.0
"""The dtypes are the C structures, field by field; several takes become one."""

from __future__ import annotations

import numpy as np
import pytest
from otel_nfprobe._core import ffi, lib

from otel_nfprobe.arch import codescan
from otel_nfprobe.base import columns
from otel_nfprobe.base.columns import BATCH, CALL, NONE, PACKET, Columns, PacketFlag


@pytest.mark.parametrize(
    ("struct", "dtype"),
    [
        ("nfp_record", columns.RECORD),
        ("nfp_call", CALL),
        ("nfp_batch", BATCH),
        ("nfp_packet", PACKET),
        ("nfp_topic", columns.TOPIC),
        ("nfp_handover", columns.HANDOVER),
        ("nfp_call_counters", columns.CALL_COUNTERS),
        ("nfp_message", columns.MESSAGE),
        ("nfp_thread_shared", columns.THREAD),
        ("nfp_capture_policy", columns.LATE_WISH),
    ],
)
def test_layout(struct: str, dtype: np.dtype) -> None:
    fields = ffi.typeof(f"struct {struct}").fields
    assert [name for name, _ in fields] == list(dtype.names)
    for name, field in fields:
        kind, offset = dtype.fields[name][:2]
        assert (name, offset) == (name, ffi.offsetof(f"struct {struct}", name))
        assert (name, kind.itemsize) == (name, ffi.sizeof(field.type))
        if field.type.kind == "struct":
            continue
        scalar = field.type.item if field.type.kind == "array" else field.type
        if scalar.cname != "char":
            assert (name, kind.base.kind, kind.base.itemsize) == (name, "u", ffi.sizeof(scalar))
    assert dtype.itemsize == ffi.sizeof(f"struct {struct}")


@pytest.mark.parametrize(
    ("struct", "dtype"), [("nfp_code_function", codescan.FUNCTION), ("nfp_code_event", codescan.EVENT)]
)
def test_layout_of_scans(struct: str, dtype: np.dtype) -> None:
    found = [(name, field.offset, ffi.sizeof(field.type)) for name, field in ffi.typeof(f"struct {struct}").fields]
    assert found == [(name, dtype.fields[name][1], dtype[name].itemsize) for name in dtype.names]
    assert dtype.itemsize == ffi.sizeof(f"struct {struct}")


@pytest.mark.parametrize(
    ("flags", "prefix"),
    [
        (columns.CallFlag, "NFP_CALL_"),
        (columns.BatchFlag, "NFP_BATCH_"),
        (columns.PacketFlag, "NFP_PACKET_"),
        (columns.HandoverFlag, "NFP_HANDOVER_"),
        (columns.CountersFlag, "NFP_COUNTERS_"),
    ],
)
def test_flags(flags: type, prefix: str) -> None:
    for flag in flags:
        assert flag.value == getattr(lib, prefix + flag.name)


def test_dispositions() -> None:
    for name in ("UNKNOWN", "TRANSMITTED", "DROPPED", "PUNTED", "ABSORBED"):
        assert getattr(columns, name) == getattr(lib, f"NFP_{name}")


def part(batch_id: int) -> Columns:
    calls, batches, packets = np.zeros(3, CALL), np.zeros(1, BATCH), np.zeros(2, PACKET)
    calls["parent"], calls["batch"] = [NONE, NONE, 1], [NONE, 0, 0]
    batches["id"], batches["first_call"], batches["calls"], batches["packets"] = batch_id, 1, 2, 2
    return Columns(calls, batches, packets)


def test_concatenate() -> None:
    whole = columns.concatenate([part(5), Columns(), part(6)])
    assert whole.calls["parent"].tolist() == [NONE, NONE, 1, NONE, NONE, 4]
    assert whole.calls["batch"].tolist() == [NONE, 0, 0, NONE, 1, 1]
    assert whole.batches["first_call"].tolist() == [1, 4]
    assert whole.batches["first_packet"].tolist() == [0, 2]
    assert whole.packets["batch"].tolist() == [0, 0, 1, 1]
    assert len(columns.concatenate([]).calls) == 0


def test_latency() -> None:
    batches, packets = np.zeros(1, BATCH), np.zeros(4, PACKET)
    batches["start_ticks"] = 1000
    packets["done_ticks"] = [1500, 1500, 1500, 0]
    packets["disposition"] = [1, 1, 2, 0]
    packets["arrival_ticks"] = [0, 700, 1200, 0]
    packets["flags"] = [0, 1, 1, 0]
    given = Columns(np.zeros(0, CALL), batches, packets)
    assert columns.life_start_ticks(given).tolist() == [1000, 700, 1000, 1000]
    assert columns.latency_ticks(given).tolist() == [500, 800, 500, 0]


def test_convert_arrivals() -> None:
    packets = np.zeros(3, PACKET)
    packets["arrival_ticks"] = [10, 20, 30]
    packets["flags"] = [PacketFlag.ARRIVAL_UNIX_NS, PacketFlag.ARRIVAL_KNOWN, 0]
    columns.convert_arrivals(packets, lambda ns: ns * np.uint64(3))
    assert packets["arrival_ticks"].tolist() == [30, 20, 30]
    assert packets["flags"].tolist() == [1, 1, 0]
