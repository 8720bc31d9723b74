# SPDX-License-Identifier: Apache-2.0
"""Where a VPP keeps the number of vectors of a frame, and the vectors, as its own node functions tell.

A node function gets its frame as third argument and reads `n_vectors`, the last 16-bit field of the frame's
header, and in later releases before it the offset of its vectors. Which fields these are differs between releases, so
the code is asked. Reads files only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from otel_nfprobe.arch.architecture import of_image
from otel_nfprobe.elf.symbols import Function

HEADER_BYTES = 16  # of a frame, before its scalar and vector arguments
CODE_BYTES = 1024  # of a function, from its start
WITNESSES_MIN = 4
FRAME_ARGUMENT = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """Where things are in a frame. Offsets in bytes.

    Attributes:
        count: of `n_vectors`.
        array: of a 16-bit offset of the vectors, in releases that have one; else they stand at `vectors`.
    """

    count: int
    array: int | None
    vectors: int = HEADER_BYTES


def find_frame(functions: Iterable[Function]) -> Frame | None:
    """The fields of a frame in which most of the functions agree; None when they do not."""
    read = [offsets for offsets in map(_read_offsets, functions) if offsets]
    count = _most_common([max(offsets) for offsets in read])
    if count is None:
        return None
    others = [min(offsets) for offsets in read if len(offsets) > 1 and max(offsets) == count]
    return Frame(count, _most_common(others))


def _most_common(offsets: Sequence[int]) -> int | None:
    """What more than two thirds of them are."""
    for offset, count in Counter(offsets).most_common(1):
        return offset if count >= WITNESSES_MIN and 3 * count > 2 * len(offsets) else None
    return None


def _read_offsets(function: Function) -> set[int]:
    """Offsets of 16-bit fields in the frame's header that a function reads."""
    image = function.module.image
    code_bytes = min(function.size, CODE_BYTES)
    found = of_image(image).short_fields(image, function.offset, code_bytes, FRAME_ARGUMENT)
    return {offset for offset in found if 2 <= offset < HEADER_BYTES}
