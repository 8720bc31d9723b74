# SPDX-License-Identifier: Apache-2.0
"""Link map: the dynamic linker's list of loaded modules, read from a process to detect changes.

    _r_debug of ld.so:   version | map ---> link_map: addr | name | ld | next ---> ...      (all words)
                         brk | state | ldbase | next namespace (version 2)

One read of 40 bytes per module; nothing is parsed and no lock of the target is taken. A change only means "read
/proc/PID/maps again": the list belongs to the target, may be torn or hostile, and every walk is bounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.target import Target

NODES_MAX = 4096  # modules of all namespaces in total
NAMESPACES_MAX = 16  # glibc's own limit
CONSISTENT, REMOVING = 0, 2  # enum r_state; 1: modules are being added
Listed = tuple[tuple[Any, ...], ...]  # a row per namespace or, without a list, per mapping
_DEBUG = struct.Struct("<i4xQQi4xQ")
_NODE = struct.Struct("<QQQQQ")
_SYMBOLS = {"_r_debug": False, "_dl_debug_addr": True}  # glibc: the structure; musl: a pointer to it


class LinkMap:
    """Detects whether modules were loaded or unloaded since the last check.

    Args:
        target: a process with a dynamic linker.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._address = _find_debug(target)

    def has_started(self) -> bool:
        """Returns whether everything that the program was linked with is loaded and relocated, and no load is in
        progress.

        musl fills in the structure when that is done. glibc does so when it begins, and its state is "being added" from
        then on. A linker without this structure is assumed to have finished.

        Raises:
            NfprobeError: as read does, or the linker itself has not started.
        """
        if not self._address:
            return self._address is None
        version, first, state = next(self._namespaces())
        return version > 0 and first != 0 and state == CONSISTENT

    def read(self) -> tuple[bool, Listed]:
        """Returns whether the dynamic linker is idle, and a value representing the list, which differs when the list
        changes.

        Raises:
            NfprobeError: the target has ended, or its list cannot be read at this moment.
        """
        if not self._address:
            return True, tuple(sorted((m.start, m.path, m.inode) for m in self._target.maps() if m.is_executable))
        nodes: list[tuple[int, ...]] = []
        at_rest = True
        for version, first, state in self._namespaces():
            at_rest &= state == CONSISTENT
            nodes.append((version, state, *self._walk(first, NODES_MAX - len(nodes))))
        return at_rest, tuple(nodes)

    def still_holds(self, listed: Listed | None) -> bool:
        """Returns whether everything that `read` returned is still loaded, and no removal is in progress; more may be
        loaded.

        Raises:
            NfprobeError: as read does.
        """
        if listed is None:  # nothing known to compare with
            return False
        _, now = self.read()
        if listed == now:
            return True
        if not self._address:
            return set(listed) <= set(now)
        return _modules(listed) <= _modules(now) and all(state != REMOVING for _, state, *_ in now)

    def _namespaces(self) -> Iterator[tuple[int, int, int]]:
        address, count = self._address or 0, 0
        while address and count < NAMESPACES_MAX:
            version, first, _, state, _ = _DEBUG.unpack(self._target.read(address, _DEBUG.size))
            yield version, first, state
            address = self._target.read_word(address + _DEBUG.size) if version >= 2 else 0
            count += 1

    def _walk(self, node: int, room: int) -> list[int]:
        found: list[int] = []
        seen: set[int] = set()
        while node and node not in seen and len(seen) < room:
            seen.add(node)
            base, _, dynamic, following, _ = _NODE.unpack(self._target.read(node, _NODE.size))
            found += (node, base, dynamic)
            node = following
        return found


def _modules(listed: Listed) -> set[tuple[Any, ...]]:
    """Returns node, base and dynamic section of each module of all namespaces."""
    return {words[at : at + 3] for _, _, *rest in listed for words in [tuple(rest)] for at in range(0, len(words), 3)}


def _find_debug(target: Target) -> int | None:
    """Returns the address of the structure, 0 while it is unknown, None without one: memory maps are then compared."""
    for module in target.modules():
        if not (module.is_dynamic_linker or module.is_musl):
            continue
        for name, is_pointer in _SYMBOLS.items():
            symbol = module.image.find_export(name)
            if symbol is None:
                continue
            address = module.base + symbol.address
            try:
                return target.read_word(address) if is_pointer else address
            except NfprobeError:
                return 0
    return None
