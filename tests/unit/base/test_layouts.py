# SPDX-License-Identifier: Apache-2.0
"""A row of a dtype that was read from a C structure holds, field by field, what C has written there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from otel_nfprobe._core import ffi
from otel_nfprobe.base.layouts import dtype_of

STRUCTURES = ("nfp_record", "nfp_call", "nfp_packet", "nfp_thread_shared", "nfp_tail", "nfp_code_function", "nfp_hold")


def fill(place: Any, kind: Any, number: int) -> Any:
    """Writes a value into a field; what NumPy should read there."""
    if kind.kind == "struct":
        return tuple(fill_struct(place, kind, number))
    if kind.kind == "array" and kind.item.cname == "char":
        return b"text"
    if kind.kind == "array":
        return [number + i for i in range(kind.length)]
    return number


def fill_struct(place: Any, kind: Any, number: int) -> list[Any]:
    wanted = []
    for at, (name, field) in enumerate(kind.fields):
        value = fill(getattr(place, name), field.type, (number + at) % 100)
        if field.type.kind != "struct":
            setattr(place, name, value)
        wanted.append(value)
    return wanted


@pytest.mark.parametrize("name", STRUCTURES)
def test_dtype_is_the_structure(name: str) -> None:
    kind = ffi.typeof(f"struct {name}")
    memory = ffi.new(f"struct {name}[2]")
    wanted = [fill_struct(memory[row], kind, 1 + row) for row in range(2)]
    rows = np.frombuffer(ffi.buffer(memory), dtype_of(name))
    for row, values in zip(rows, wanted, strict=True):
        for field, value in zip(rows.dtype.names, values, strict=True):
            read = row[field].tolist()
            assert (field, read) == (field, value)


def test_signed_and_unsigned() -> None:
    tail = dtype_of("nfp_tail")
    assert [tail[name].str for name in ("excess_ns", "batch_id", "share", "kind")] == ["<i8", "<u8", "<f8", "<u4"]
