# SPDX-License-Identifier: Apache-2.0
"""Names of functions that only a process can tell: what its GOT slots hold for a name that was imported.

A stripped C library names `memcpy` where it chooses an implementation, and none of the implementations. The
slots of a running process hold the chosen one. Reads only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module

if TYPE_CHECKING:
    from otel_nfprobe.target.target import Target

WINDOW_BYTES = 4096


def imported_names(target: Target, addresses: Iterable[int]) -> dict[int, str]:
    """Names under which slots of the process lead to some addresses."""
    wanted = frozenset(addresses)
    found: dict[int, str] = {}
    for module in target.modules() if wanted else []:
        try:
            values = _values(target, module)
        except NfprobeError:  # a part of the module is not mapped, or not any more
            continue
        for name, value in values:
            if name and value in wanted:
                found.setdefault(value, name)
    return found


def _values(target: Target, module: Module) -> list[tuple[str, int]]:
    found = []
    start, content = 0, b""
    for slot in module.image.slots:
        address = module.base + slot.address
        if not start <= address <= start + len(content) - 8:
            start, content = address, target.read(address, min(WINDOW_BYTES, module.high - address))
        found.append((slot.name, struct.unpack_from("<Q", content, address - start)[0]))
    return found
