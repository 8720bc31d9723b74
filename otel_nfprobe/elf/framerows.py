# SPDX-License-Identifier: Apache-2.0
"""Rows of a frame program by the C core, for those that it knows all instructions of."""

from __future__ import annotations

from otel_nfprobe._core import ffi, lib

_WORDS = lib.NFP_FRAME_ROWS_MAX * lib.NFP_FRAME_ROW_WORDS
_ADDRESS_MAX = (1 << 64) - 1
_OFFSET_MAX = (1 << 31) - 1


def quick_rows(
    program: bytes, address: int, until: int | None, register: int, offset: int
) -> list[tuple[int, int, int]] | None:
    """Address, register and offset of each row, or None: the program must be run by other means.

    Args:
        program: frame instructions; an address advances by ones.
        address: where the first row begins.
        until: an address behind which the rules are not wanted.
        register, offset: the canonical frame address there.
    """
    last = _ADDRESS_MAX if until is None else until
    if not (0 <= address <= last <= _ADDRESS_MAX and 0 <= offset <= _OFFSET_MAX):
        return None
    start = ffi.new("struct nfp_frame_start *", (address, last, register, offset))
    rows = ffi.new("int64_t[]", _WORDS)  # of its own: several threads may read frames
    count = int(lib.nfp_frame_rows(program, len(program), start, rows))
    if count < 0:
        return None
    words = iter(ffi.unpack(rows, count * lib.NFP_FRAME_ROW_WORDS))
    return list(zip(words, words, words, strict=True))
