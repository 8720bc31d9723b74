# SPDX-License-Identifier: Apache-2.0
"""The structures of the C headers as NumPy sees them: dtypes read from what cffi knows of them, never written twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_nfprobe._core import ffi


def dtype_of(name: str) -> np.dtype[Any]:
    """The dtype of `struct NAME`: the same names at the same offsets. An array of char is text."""
    kind = ffi.typeof(f"struct {name}")
    fields = kind.fields or []
    return np.dtype(
        {
            "names": [field for field, _ in fields],
            "formats": [_format(member.type) for _, member in fields],
            "offsets": [member.offset for _, member in fields],
            "itemsize": ffi.sizeof(kind),
        }
    )


def _format(kind: Any) -> Any:
    if kind.kind == "struct":
        return dtype_of(kind.cname.removeprefix("struct "))
    if kind.kind == "array":
        return f"S{kind.length}" if kind.item.cname == "char" else (_format(kind.item), (kind.length,))
    if kind.cname in ("float", "double"):
        return f"<f{ffi.sizeof(kind)}"
    return f"<{'u' if int(ffi.cast(kind, -1)) > 0 else 'i'}{ffi.sizeof(kind)}"
