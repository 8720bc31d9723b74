# SPDX-License-Identifier: Apache-2.0
"""Reads the damaged memory of a session in this process: each case must end in what is well-formed, or in a sentence.

    python session_child.py PID DESCRIPTOR FIRST LAST [SECONDS]

The session is one that a killed monitor has left in a target. In every third case a process writes into it while it
is read. Prints the seed before each case, so that the test that started this process knows which one killed it: a
case that takes too much processor time is ended by SIGPROF, one that asks for too much memory fails to get it. Stops
after SECONDS.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from otel_nfprobe._core import lib
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.status import _states
from otel_nfprobe.monitor.fork_tracker import _runs_on_memory_of
from otel_nfprobe.probes.arena import Arenas, read_arenas
from otel_nfprobe.probes.capture_programs import find_verdicts
from otel_nfprobe.probes.evidence import find_doubts
from otel_nfprobe.probes.inherited import _inherited, _stands
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.shm.session import ARENA_BYTES, ARENA_OFFSET, PROBE_COUNT, THREAD_COUNT, Session
from otel_nfprobe.shm.thread_reaper import EndedThreads
from otel_nfprobe.shm.threadcounts import COUNT_MAX
from otel_nfprobe.target.target import Target
from tests.fuzz.mutate_session import SharedMemory, known_tids

CASE_SECONDS = 30  # of processor time; most take a hundredth of one, a full probe table one
MEMORY_BYTES = 4 << 30  # of addresses; rings of 64 MiB and tables of 72 are among them
RESIDENT_BYTES = 600 << 20
CLAIMS = 500  # of a case, that are compared with the files
RECORD_BYTES = 16


def read_threads(session: Session, chance: random.Random) -> None:
    """Counters are numbers that can be; only what the kernel confirms is a thread."""
    tids = known_tids(session.pid)
    for row in session.threads.counts():
        numbers = (row.empty_polls, row.batches, row.received, row.transmitted, row.dropped, *row.lost)
        assert all(0 <= number <= COUNT_MAX for number in numbers), row
    for late in session.threads.late_counts():
        assert 0 <= late.identified <= COUNT_MAX, late
    for claim in session.threads.living():
        assert claim.tid in tids, claim
    assert all(0 <= index < THREAD_COUNT for index in session.threads.by_tid().values())
    assert session.helper_tid in (0, *tids)
    assert 0 <= session.used_entries() <= THREAD_COUNT
    assert all(0 <= number < 1 << 64 for number in session.unregistered())
    ended = EndedThreads(session)
    found = ended.find()
    confirmed = ended.confirm(found)
    assert all(0 <= index < THREAD_COUNT for index in confirmed)
    session.free_threads(confirmed)
    session.choose_packets(1 << 40, 1)
    session.choose_packets(0, 0, chance.randrange(THREAD_COUNT))


def read_rings(session: Session, chance: random.Random) -> None:
    """No ring gives more than some laps."""
    most = 4 * session.ring_bytes // RECORD_BYTES
    for _ in range(2):
        taken: Counter[int] = Counter()
        for swept in session.drain():
            for thread, records in swept.by_thread():
                taken[thread] += len(records)
        assert all(0 <= thread < THREAD_COUNT and count <= most for thread, count in taken.items()), taken
    last = [chance.randrange(THREAD_COUNT) for _ in range(8)]
    assert sum(len(swept.records) for swept in session.take_last(last)) <= len(last) * most


def read_code(session: Session, target: Target) -> None:
    """No arena lies over another one or outside, and what may be put back is what the file has there."""
    arenas, given = read_arenas(session)
    ranges = sorted((arena.address, arena.address + arena.bytes) for arena in arenas)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    for arena in arenas:
        assert not arena.offset or ARENA_OFFSET <= arena.offset <= ARENA_OFFSET + given - arena.bytes
        assert given <= ARENA_BYTES
        if arena.offset:
            session.map_arena(arena.offset, arena.bytes).close()
    Arenas(session, target).holds(int(session.header.helper_address), target.modules()[0])


def read_patches(session: Session, target: Target) -> None:
    assert 0 <= session.probe_count <= PROBE_COUNT
    patcher = Patcher(session, target)
    claimed = list(islice(sorted(session.patches.claimed), CLAIMS))
    doubts = find_doubts(target, session.patches, claimed)
    assert all(index in claimed and doubt for index, doubt in doubts.items())
    for index in claimed:
        patcher.is_in_place(index)
        patcher.is_left_behind(index)
        entry = session.probe(index)
        if index not in doubts and entry.kind != lib.NFP_SITE_GOT:
            length = int(entry.length)
            assert bytes(entry.old_bytes)[:length] == file_bytes(target, int(entry.site), length), index
    reader = cast(Any, SimpleNamespace(inode=0))
    for entry in islice(_inherited(reader, target), CLAIMS):
        _stands(entry, target)


def file_bytes(target: Target, address: int, length: int) -> bytes:
    """What the file has that is mapped executable there."""
    for mapping in target.maps():
        if mapping.start <= address and address + length <= mapping.end and mapping.is_executable:
            with open(mapping.path, "rb") as file:
                file.seek(mapping.offset + address - mapping.start)
                return file.read(length)
    return b""


def read_rest(session: Session, target: Target) -> None:
    json.dumps(_states(target.pid))
    roles = [cast(Any, SimpleNamespace(name="function", label="receive"))] * 64
    assert all(sentence.endswith(".") for _, sentence in find_verdicts(session, roles))
    source = SimpleNamespace(attachment=SimpleNamespace(session=session))
    _runs_on_memory_of(cast(Any, source), target.pid)
    assert session.helper_is_there in (True, False)


def check_sentence(error: NfprobeError) -> None:
    assert error.sentence.endswith("."), error.sentence


def read(target: Target, number: int, chance: random.Random) -> int:
    """Returns how many of the parts were refused with a sentence."""
    try:
        session = Session(target.pid, number)
    except NfprobeError as error:
        check_sentence(error)
        return 1
    refused = 0
    parts = (
        lambda: read_threads(session, chance),
        lambda: read_rings(session, chance),
        lambda: read_code(session, target),
        lambda: read_patches(session, target),
        lambda: read_rest(session, target),
    )
    try:
        for part in parts:
            try:
                part()
            except NfprobeError as error:
                check_sentence(error)
                refused += 1
    finally:
        session.close()
    return refused


@contextmanager
def scribbling(memory: SharedMemory, seed: int) -> Iterator[None]:
    """A process that writes into the session's memory meanwhile."""
    child = os.fork()
    if child == 0:
        chance = random.Random(seed)
        while os.getppid() != 1:
            memory.scribble(chance)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_case(memory: SharedMemory, target: Target, number: int, seed: int) -> int:
    chance = random.Random(seed)
    memory.restore()
    memory.mutate(chance)
    if seed % 3:
        return read(target, number, chance)
    with scribbling(memory, seed):
        return read(target, number, chance)


def main(pid: int, number: int, first: int, last: int, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    memory, target = SharedMemory(f"/proc/{pid}/fd/{number}"), Target(pid)
    ends: Counter[str] = Counter()
    started, descriptors = time.monotonic(), 0
    for seed in range(first, last):
        if time.monotonic() - started > seconds:
            break
        print("case", seed, flush=True)
        signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
        try:
            ends["refused" if run_case(memory, target, number, seed) else "whole"] += 1
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
            assert resident < RESIDENT_BYTES, resident
            gc.collect()
            opened = len(os.listdir("/proc/self/fd"))
            assert opened <= (descriptors or opened), opened
            descriptors = descriptors or opened + 2
        except Exception:
            print("finding", seed, traceback.format_exc().replace("\n", " | "), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
    with suppress(OSError):
        memory.restore()
    print("end", dict(ends), flush=True)


if __name__ == "__main__":
    arguments = [int(word) for word in sys.argv[1:5]]
    main(*arguments, float(sys.argv[5]) if len(sys.argv) > 5 else 1e9)
