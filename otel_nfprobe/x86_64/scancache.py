# SPDX-License-Identifier: Apache-2.0
"""Scans of a module's functions, kept on disk, so that the next attach need not decode it.

A wrong scan could make a target crash: what is kept is taken only for exactly the code and the frame rules that it
was made from. A module without a build id is found by its code. Called by branches.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields

from otel_nfprobe import cache
from otel_nfprobe.ehframe import Frame
from otel_nfprobe.elf import ElfImage
from otel_nfprobe.x86_64.scan import FunctionScan

FUNCTIONS_MIN = 1000  # a smaller module is decoded as fast as its scans are read
KIND = "scan"
_FIELDS = [field.name for field in fields(FunctionScan) if field.name != "frame"]
_TYPES = {name: type(getattr(FunctionScan(None), name)) for name in _FIELDS}  # type: ignore[arg-type]


def load_scans(image: ElfImage, frames: Sequence[Frame]) -> list[FunctionScan] | None:
    """The scans of all functions, or None when there are none for this code."""
    if len(frames) < FUNCTIONS_MIN:
        return None
    key = _key(image, frames)
    content = cache.load(image.build_id or key, KIND, key)
    try:
        rows = json.loads(content) if content is not None else None
        return [_scan(frame, row) for frame, row in zip(frames, rows, strict=True)] if rows is not None else None
    except (ValueError, TypeError):
        return None


def store_scans(image: ElfImage, frames: Sequence[Frame], scans: Sequence[FunctionScan]) -> None:
    """Keeps the scans of all functions of a module that is large enough."""
    if len(frames) >= FUNCTIONS_MIN:
        rows = [[getattr(scan, name) for name in _FIELDS] for scan in scans]
        key = _key(image, frames)
        cache.store(image.build_id or key, KIND, json.dumps(rows, separators=(",", ":")).encode(), key)


def _scan(frame: Frame, row: list[object]) -> FunctionScan:
    if len(row) != len(_FIELDS) or any(
        type(value) is not _TYPES[name] for name, value in zip(_FIELDS, row, strict=True)
    ):
        raise ValueError
    return FunctionScan(frame, *row)  # type: ignore[arg-type]


def _key(image: ElfImage, frames: Sequence[Frame]) -> str:
    digest = hashlib.blake2b(digest_size=20)
    for low, high in image.code_ranges:
        digest.update(f"{low:x} {high:x}".encode())
        digest.update(image.read(low, high - low))
    for frame in frames:
        digest.update(b"%x %x %d" % (frame.start, frame.size, frame.has_lsda))
        digest.update(frame.instructions)
        digest.update(frame.common.instructions)
    return digest.hexdigest()
