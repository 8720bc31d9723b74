# SPDX-License-Identifier: Apache-2.0
"""Inherited probes: those in a forked child because they were armed in its parent.

They stay disabled while the child has no session. A session of its own would make them write records with the function
IDs of the parent's probe table: they are removed first. That table is read through the child's own memory, so its
entries are claims (evidence.py). Followed children (forks.py) are restored from their parent's monitor.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from otel_nfprobe._core import ffi
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.shm.session import FIXED_BYTES, MAGIC, PROBE_COUNT, PROBE_TABLE_OFFSET, VERSION, Session
from otel_nfprobe.target.leftover import SESSION_PATH
from otel_nfprobe.target.target import Target

ENTRY_BYTES = ffi.sizeof("struct nfp_probe")
SITE_BYTES_MAX = 32
ENTRIES_MAX = 4 * PROBE_COUNT  # maximum examined, over all ancestors


def remove_inherited(session: Session, target: Target, patcher: Patcher) -> int:
    """Restores the code that a parent's probes have changed in a process whose session has no probes yet.

    They pass through the session's own probe table, so that a monitor killed in the meantime leaves nothing that a
    later one cannot find. Returns their number.
    """
    if session.probe_count:
        return 0
    sites: set[int] = set()
    for entry in islice(_inherited(session, target), ENTRIES_MAX):
        if int(entry.site) in sites or len(sites) == PROBE_COUNT or not _stands(entry, target):
            continue
        index = len(sites)
        ffi.memmove(session.probe(index), ffi.addressof(entry), ENTRY_BYTES)
        session.patches.mark(index, True)
        session.patches.claimed.add(index)
        sites.add(int(entry.site))
        session.probe_count = len(sites)
    if sites:
        patcher.disarm()
        for index in range(len(sites)):
            ffi.memmove(session.probe(index), bytes(ENTRY_BYTES), ENTRY_BYTES)
            session.patches.mark(index, False)
        session.probe_count = 0
    return len(sites)


def _inherited(session: Session, target: Target) -> Iterator[Any]:
    """Yields probe table entries (struct nfp_probe) of the sessions of this process's ancestors."""
    seen = {session.inode}
    for mapping in target.maps():
        is_session = mapping.path.startswith(SESSION_PATH) and mapping.end - mapping.start == FIXED_BYTES
        if not is_session or mapping.offset or mapping.inode in seen:
            continue
        seen.add(mapping.inode)
        start = target.read(mapping.start, ffi.sizeof("struct nfp_session_header"))
        header = ffi.cast("struct nfp_session_header *", ffi.from_buffer(start))
        if header.magic == MAGIC and header.version == VERSION:
            count = min(int(header.probes), PROBE_COUNT)
            table = target.read(mapping.start + PROBE_TABLE_OFFSET, count * ENTRY_BYTES)
            yield from ffi.from_buffer("struct nfp_probe[]", table)


def _stands(entry: Any, target: Target) -> bool:
    length = int(entry.length)
    if not 0 < length <= SITE_BYTES_MAX:
        return False
    try:
        return target.read(int(entry.site), length) == bytes(ffi.buffer(entry.new_bytes))[:length]
    except NfprobeError:
        return False
