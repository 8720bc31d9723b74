# SPDX-License-Identifier: Apache-2.0
"""Templates of trampolines (native/core/trampoline.h), and filling them in."""

from __future__ import annotations

from functools import cache
from typing import Any

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.shm.session import GATE_OUTER, Session

NO_ARGUMENT = lib.NFP_ABSENT
_BYTES = ffi.typeof("uint8_t[]")


def template_values(session: Session) -> Any:
    """Returns the values of a template (struct nfp_trampoline) for a plain call of function 0."""
    plain = {"gate": GATE_OUTER, "return_mask": 0xFFFFFFFF, "queue_argument": NO_ARGUMENT}
    return ffi.new("struct nfp_trampoline *", {"tls_offset": session.tls_offset} | plain)


@cache
def template_bytes(shape: int) -> int:
    """Returns the size of a template (enum nfp_shape) in bytes."""
    return int(lib.nfp_trampoline_bytes(shape))


def fill_template(shape: int, values: Any) -> bytes:
    """Fills in a template (enum nfp_shape) from a struct nfp_trampoline."""
    size = template_bytes(shape)
    room = ffi.new(_BYTES, size)
    lib.nfp_trampoline_write(shape, values, room, size)
    return bytes(ffi.buffer(room, size))
