# SPDX-License-Identifier: Apache-2.0
"""What ran on a CPU instead of a thread, from buffers as the kernel writes them, and from hostile ones."""

from __future__ import annotations

import mmap
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.layouts import dtype_of
from otel_nfprobe.pipeline.absences import ABSENCE, AbsenceFlag, AbsenceKind, name_absence
from tests.support.marks import in_parts
from tests.support.perf_records import LOST, make_sample

SWITCH, WAKING = 372, 375  # tracepoints, with the fields at these offsets
LAYOUT = {
    "switch_id": SWITCH,
    "waking_id": WAKING,
    "previous_at": 24,
    "next_at": 56,
    "next_name_at": 40,
    "woken_at": 24,
}
CPU, NF, HOG, SHORT, WAKER = 3, 11, 71, 72, 9
US = 1000


def switch(time_us: int, previous: int, following: int, name: bytes) -> bytes:
    data = bytearray(64)
    struct.pack_into("<HBBI", data, 0, SWITCH, 0, 0, previous)
    struct.pack_into("<I", data, 24, previous)
    struct.pack_into("<16sI", data, 40, name, following)
    return make_sample(time_us * US, bytes(data))


def waking(time_us: int, waker: int, woken: int, flags: int = 0) -> bytes:
    data = bytearray(40)
    struct.pack_into("<HBBI", data, 0, WAKING, flags, 0, waker)
    struct.pack_into("<I", data, 24, woken)
    return make_sample(time_us * US, bytes(data))


class Cpus:
    """A reader of two buffers: of a CPU that is watched, and of one where tasks are woken only."""

    def __init__(self) -> None:
        self.reader: Any = ffi.new("struct nfp_cpu_reader *")
        self.events = ffi.new("struct nfp_cpu_event[]", 3)
        self._runs = ffi.new("struct nfp_cpu_run[]", lib.NFP_CPU_RUNS)
        self._buffers = [mmap.mmap(-1, 9 * mmap.PAGESIZE) for _ in range(2)]
        self._heads = [0, 0]
        self.reader.events, self.reader.count = self.events, 3
        for name, value in LAYOUT.items():
            setattr(self.reader.layout, name, value)
        self._memory = [ffi.from_buffer("uint8_t[]", buffer) for buffer in self._buffers]
        for event, memory, cpu in zip((self.events[0], self.events[2]), self._memory, (CPU, 0), strict=True):
            event.page, event.ring, event.ring_bytes = memory, memory + mmap.PAGESIZE, 8 * mmap.PAGESIZE
            event.cpu = cpu
        self.events[0].runs = self._runs

    def put(self, *records: bytes, ring: int = 0) -> None:
        for record in records:
            for byte in record:
                self._buffers[ring][mmap.PAGESIZE + self._heads[ring] % (8 * mmap.PAGESIZE)] = byte
                self._heads[ring] += 1
        struct.pack_into("<Q", self._buffers[ring], 1024, self._heads[ring])
        lib.nfp_cpus_read(self.reader)

    def explain(self, out_us: int, in_us: int, flags: int = AbsenceFlag.PREEMPTED, cpu: int = CPU) -> np.void:
        rows = np.zeros(1, dtype_of("nfp_absence"))
        rows["out_ns"], rows["in_ns"], rows["flags"], rows["from_cpu"] = out_us * US, in_us * US, flags, cpu
        rows["code"], rows["name"] = SHORT, b"first"
        lib.nfp_cpus_explain(self.reader, NF, ffi.cast("struct nfp_absence *", ffi.from_buffer(rows)))
        return rows.view(ABSENCE)[0]

    def close(self) -> None:
        for memory, buffer in zip(self._memory, self._buffers, strict=True):
            ffi.release(memory)
            buffer.close()


@pytest.fixture
def cpus() -> Iterator[Cpus]:
    made = Cpus()
    yield made
    made.close()


def test_the_task_that_ran_longest_is_named_not_the_first(cpus: Cpus) -> None:
    cpus.put(
        switch(100, NF, SHORT, b"short"),
        switch(150, SHORT, HOG, b"hog"),
        switch(1150, HOG, SHORT, b"short"),
        switch(1300, SHORT, HOG, b"hog"),
        switch(2300, HOG, NF, b"nf"),
    )
    row = cpus.explain(100, 2300)
    assert (row["code"], row["name"], row["part_ticks"]) == (HOG, b"hog", 2000 * US)
    assert name_absence(row) == "hog (tid 71)"
    assert cpus.explain(100, 2300, cpu=CPU + 1)["name"] == b"first"  # another CPU: nothing is known
    assert cpus.explain(5000, 6000)["name"] == b"first"  # nothing ran then but the thread itself


def test_what_still_runs_counts(cpus: Cpus) -> None:
    cpus.put(switch(100, NF, HOG, b"hog"))
    assert cpus.explain(100, 900)["part_ticks"] == 800 * US


def test_a_quota_that_is_used_up_leaves_the_cpu_idle(cpus: Cpus) -> None:
    """The end of idle time is no sample: it is the idle task's until the next one."""
    cpus.put(switch(100, NF, 0, b"swapper/3"), switch(5000, NF, HOG, b"hog"))
    assert name_absence(cpus.explain(100, 4000)) == "the idle task"


def test_who_woke_it(cpus: Cpus) -> None:
    cpus.put(waking(50, WAKER, HOG), waking(90, WAKER, SHORT), waking(2500, NF, HOG), ring=1)
    cpus.put(waking(40, 5, HOG, 0x8), switch(100, NF, HOG, b"hog"), switch(1000, HOG, NF, b"nf"))
    row = cpus.explain(100, 1000)
    assert (row["waker"], row["woken_ticks"], row["flags"]) == (WAKER, 50 * US, AbsenceFlag.PREEMPTED)
    # It was preempted in its turn: nobody woke it for the second time.
    cpus.put(switch(1100, NF, HOG, b"hog"), switch(2000, HOG, NF, b"nf"))
    assert cpus.explain(1100, 2000)["waker"] == 0


def test_an_interrupt_woke_it(cpus: Cpus) -> None:
    cpus.put(waking(90, NF, HOG, 0x8), switch(100, NF, HOG, b"hog"), switch(200, HOG, NF, b"nf"))
    row = cpus.explain(100, 200)
    assert row["flags"] & AbsenceFlag.WOKEN_BY_INTERRUPT
    assert name_absence(row) == "hog (tid 71), woken by an interrupt"


def test_a_thread_that_slept_was_woken_meanwhile(cpus: Cpus) -> None:
    cpus.put(waking(90, 1, NF), waking(400, WAKER, NF), waking(700, 2, NF), ring=1)
    assert cpus.explain(100, 500, flags=0)["waker"] == WAKER
    assert cpus.explain(410, 500, flags=0)["waker"] == 0


def test_after_a_loss_it_is_not_known_what_runs(cpus: Cpus) -> None:
    cpus.put(switch(100, NF, HOG, b"hog"), LOST, switch(900, SHORT, NF, b"nf"))
    assert cpus.explain(100, 900)["name"] == b"first"
    assert cpus.reader.lost == 1


def test_the_last_runs_are_kept(cpus: Cpus) -> None:
    """More than there is room for: what is too old counts for nothing."""
    for at in range(3000):
        cpus.put(switch(10 * at, HOG if at % 2 else SHORT, SHORT if at % 2 else HOG, b"x"))
    row = cpus.explain(0, 29_990)
    assert row["part_ticks"] == 10 * lib.NFP_CPU_RUNS // 2 * US
    assert cpus.events[0].switches == 3000


@in_parts(5)
def test_any_bytes_are_read_within_their_bounds(cpus: Cpus, part: int) -> None:
    random_ = random.Random(70 + part)
    for _ in range(600):
        data = struct.pack("<HBBI", random_.choice([SWITCH, WAKING, 1]), 8, 0, 5)
        data += random_.randbytes(random_.randrange(80))
        record = bytearray(make_sample(random_.randrange(1 << 64), data, frames=[1] * random_.choice([0, 100])))
        for _ in range(random_.choice([0, 0, 3])):
            record[random_.randrange(8, len(record))] = random_.randrange(256)
        if random_.random() < 0.05:
            record[6:8] = random_.randbytes(2)  # any size
        cpus.put(bytes(record), ring=random_.randrange(2))
        begin = random_.randrange(1 << 50)
        row = cpus.explain(begin, begin + random_.randrange(1 << 50), random_.choice([0, 1]))
        name_absence(row)
        assert row["kind"] == AbsenceKind.SWITCH
