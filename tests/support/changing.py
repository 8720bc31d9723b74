# SPDX-License-Identifier: Apache-2.0
"""Sessions whose counters are changed while they run, and work on a target meanwhile.

The counters are those of tests/targets/counted.c, each of which counts in steps of its own, or events of the kernel.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import CountersFlag
from otel_nfprobe.counters.choice import Counter, CounterChoice
from otel_nfprobe.counters.compensation import Compensation
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.counters.threads import ThreadCounters
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.arena import Arenas
from otel_nfprobe.recording.recording import RecordingWriter
from tests.support.counted import GLOBS, KeptCalls, read_truth
from tests.support.probed import Talker, counters_by_call, wait_until

CALLS, ROUNDS_MAX = 1000, 50  # of each change; in all no more than the ring holds


class NoKernel(Kernel):
    """Opens nothing: the counters are in the target."""

    def open(self, *_: object, **__: object) -> int:
        return os.open("/dev/null", os.O_RDONLY)

    def enable(self, leader: int) -> None:
        pass

    def disable(self, leader: int) -> None:
        pass

    def read(self, descriptor: int) -> tuple[int, int, int]:
        return 1, 1, 1


class OwnCounters(ThreadCounters):
    """The target's own pages instead of descriptors: a counter's event says which one."""

    pages = 0

    def _hand_over(self, index: int, group: object) -> None:
        first = self.pages + 8 * self.counters[0].events[0].config
        assert self.session.ask(lib.NFP_COMMAND_COUNT, index, len(self.counters), first, self.change) == 0

    def calibrate(self, arenas: Arenas, module: Module, meanwhile: object = None) -> Compensation:
        return Compensation()  # its processor counts in work() only


def own(*places: int) -> CounterChoice:
    """Counters of the target's processor, which stand one after the other."""
    return CounterChoice(counters=tuple(Counter(f"by{place + 1}", (Event(4, place),)) for place in places))


class Changing(KeptCalls):
    """A session whose counters are changed by the thread that drains, as `nfprobe counters` has it done."""

    def __init__(
        self,
        talker: Talker,
        recording: RecordingWriter | None,
        has_own_counters: bool = True,
        adapter: Path | None = None,
        globs: Sequence[str] = GLOBS,
    ) -> None:
        super().__init__(talker, recording, globs, adapter)
        self.has_own_counters = has_own_counters
        self._wish: CounterChoice | None = None
        self._changed = threading.Event()

    def prepare(self) -> None:
        """See KeptCalls."""
        if self.has_own_counters:
            counting = OwnCounters(self.monitor.attachment.session, (), self.monitor.notify, kernel=NoKernel())
            counting.pages = int(self.talker.ask("where 0"), 16)
            self.monitor.counting = counting

    def change(self, choice: CounterChoice) -> None:
        self._wish = choice
        assert self._changed.wait(60)
        self._changed.clear()

    def step(self) -> None:
        """See KeptCalls."""
        if self._wish is not None:
            self.monitor.change_counters(self._wish)
            self._wish = None
            self._changed.set()

    def rows(self, name: str) -> np.ndarray:
        """The counters of each call of a function, in their order."""
        return np.asarray(counters_by_call(self.columns)[self.find_calls(name)])

    def code(self) -> list[bytes]:
        """Patch sites and trampolines of all probes, as they stand in the target."""
        found = []
        with Path(f"/proc/{self.talker.pid}/mem").open("rb") as memory:
            for probe in self.monitor.attachment.probes:
                for address, size in ((probe.request.plan.site, 16), (probe.trampoline, 256)):
                    memory.seek(address)
                    found.append(memory.read(size))
        return found


class Worker:
    """Has the target work, and keeps what was true of each call."""

    def __init__(self, talker: Talker, path: Path) -> None:
        self.talker, self.path = talker, path
        self.true: list[np.ndarray] = []

    def work(self, calls: int) -> None:
        self.talker.ask(f"work {calls}")
        self.true.append(read_truth(self.path))

    def work_during(self, act: Callable[[], None]) -> None:
        """Works while something is done, and once more."""
        thread = threading.Thread(target=act)
        thread.start()
        for _ in range(ROUNDS_MAX):
            if thread.is_alive():
                self.work(CALLS)
        thread.join()
        self.work(CALLS)

    def work_through(self, session: Changing, changes: Sequence[CounterChoice]) -> None:
        """Works during each change; no byte of code may change."""
        before = session.code()
        self.work(10)  # a thread has an entry in the table once it has written a record
        assert wait_until(lambda: any(count.tid for count in session.monitor.attachment.session.threads.counts()))
        for choice in changes:
            self.work_during(partial(session.change, choice))
        assert session.code() == before


def assert_counted_as_changed(
    rows: np.ndarray, amounts: np.ndarray, changes: Sequence[CounterChoice], calls_min: int
) -> np.ndarray:
    """Each call counted what it did, with the counters of the change that its row names. Returns which were counted.

    Args:
        calls_min: of each change that chose counters more calls than these were counted.
    """
    assert len(rows) == len(amounts)
    valid = (rows["flags"] & CountersFlag.VALID) != 0
    for number, choice in enumerate(changes, 1):
        mine = valid & (rows["set"] == number)
        assert (mine.sum() > calls_min) == bool(choice.counters), (number, mine.sum())
        expected = np.zeros((int(mine.sum()), 6), np.uint64)
        for place, counter in enumerate(choice.counters):
            expected[:, place] = amounts[mine] * np.uint64(counter.events[0].config + 1)
        assert np.array_equal(rows["inclusive"][mine], expected), number
    return np.asarray(valid)


class OfTheKernel(CounterChoice):
    """Software events, handed over as those of a processor are."""

    @property
    def hardware(self) -> tuple[Counter, ...]:
        return self.counters

    @property
    def software(self) -> tuple[Counter, ...]:
        return ()
