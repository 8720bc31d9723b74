# SPDX-License-Identifier: Apache-2.0
"""Other counters for a session that runs: no byte of code changes, every record stays, no count is ever wrong.

On the processor of tests/targets/counted.c, whose six counters count in steps of their own: which counters a call was
counted with is seen in its counts.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from otel_nfprobe._core import lib
from probed import KeepAll, Probed, Talker, wait_until
from test_counters import TRUTH

from otel_nfprobe.arena import Arenas
from otel_nfprobe.cli.main import main
from otel_nfprobe.clock import Clock
from otel_nfprobe.columns import CountersFlag, concatenate
from otel_nfprobe.counters.change import change_counters
from otel_nfprobe.counters.choice import Counter, CounterChoice, choose_counters
from otel_nfprobe.counters.compensation import Compensation
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.counters.threads import ThreadCounters
from otel_nfprobe.modules import Module
from otel_nfprobe.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.report import build_report

pytestmark = pytest.mark.integration

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


class Changing(Probed):
    """A session whose counters are changed by the thread that drains, as `nfprobe counters` has it done."""

    def __init__(
        self,
        talker: Talker,
        recording: RecordingWriter | None,
        has_own_counters: bool = True,
        adapter: Path | None = None,
        globs: tuple[str, ...] = ("counted*:work", "counted*:inner"),
    ) -> None:
        super().__init__(talker.pid, globs, adapter, ring_bytes=64 << 20)
        self.talker, self.recording, self.has_own_counters = talker, recording, has_own_counters
        self._wish: CounterChoice | None = None
        self._changed = threading.Event()

    def __enter__(self) -> Changing:
        self.monitor.attach()
        self.monitor.start(Clock.start(), self.recording, None)
        self.keep = self.monitor.drain.statistics = KeepAll()
        if self.has_own_counters:
            counting = OwnCounters(self.monitor.session, (), self.monitor.say, kernel=NoKernel())
            counting.pages = int(self.talker.ask("where 0"), 16)
            self.monitor.counting = counting
        self._thread = threading.Thread(target=self.monitor.run, args=(None, self._step))
        self._thread.start()
        return self

    def change(self, choice: CounterChoice) -> None:
        self._wish = choice
        assert self._changed.wait(60)
        self._changed.clear()

    def _step(self) -> None:
        if self._wish is not None:
            change_counters(self.monitor, self._wish)
            self._wish = None
            self._changed.set()

    def rows(self, name: str) -> np.ndarray:
        """The counters of each call of a function, in their order."""
        columns = concatenate(self.keep.kept)
        calls = np.flatnonzero(columns.calls["function"] == self.monitor.names_by_id().index(name))
        calls = calls[np.argsort(columns.calls["start_ticks"][calls], kind="stable")]
        rows = np.zeros(len(columns.calls), columns.counters.dtype)
        rows[columns.counters["call"]] = columns.counters
        return np.asarray(rows[calls])

    def code(self) -> list[bytes]:
        """Patch sites and trampolines of all probes, as they stand in the target."""
        found = []
        with Path(f"/proc/{self.talker.pid}/mem").open("rb") as memory:
            for probe in self.monitor.probes:
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
        self.true.append(np.fromfile(self.path, TRUTH))

    def work_during(self, act: Callable[[], None]) -> None:
        """Works while something is done, and once more."""
        thread = threading.Thread(target=act)
        thread.start()
        for _ in range(ROUNDS_MAX):
            if thread.is_alive():
                self.work(CALLS)
        thread.join()
        self.work(CALLS)


@pytest.fixture
def talker(
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Talker:
    monkeypatch.setenv("TRUTH", str(tmp_path / "truth"))
    return Talker(spawn(compile_target("counted"), stdin=subprocess.PIPE))


def test_changed_while_threads_run(talker: Talker, tmp_path: Path) -> None:
    header = RecordingHeader(session="1", pid=talker.pid, settings={})
    recording = RecordingWriter(tmp_path / "changed.nfp", header)
    changes = [own(0, 1), own(3, 4, 5), own(2), CounterChoice(), own(1, 2, 3, 4), own(0, 1)]
    with Changing(talker, recording) as session:
        before = session.code()
        worker = Worker(talker, tmp_path / "truth")
        worker.work(1)  # a thread has an entry in the table once it has written a record
        assert wait_until(lambda: any(count.tid for count in session.monitor.session.thread_counts()))
        for choice in changes:
            worker.work_during(partial(session.change, choice))
        assert session.code() == before
    recording.finish({})
    session.assert_exact()  # no record lost, torn or unpaired
    true = np.concatenate(worker.true)
    rows = session.rows("work")
    assert len(rows) == len(true)
    valid = (rows["flags"] & CountersFlag.VALID) != 0
    amounts = true["amount"].astype(np.uint64) + 7
    for number, choice in enumerate(changes, 1):
        places = [counter.events[0].config for counter in choice.counters]
        mine = valid & (rows["set"] == number)
        assert (mine.sum() > CALLS // 2) == bool(places), (number, mine.sum())
        expected = np.zeros((int(mine.sum()), 6), np.uint64)
        for place, counter in enumerate(places):
            expected[:, place] = amounts[mine] * np.uint64(counter + 1)
        assert np.array_equal(rows["inclusive"][mine], expected), number
    assert set(np.diff(rows["set"][valid].astype(int)).tolist()) <= {0, 1, 2}
    check_sums(session, tmp_path / "changed.nfp", valid, rows, amounts, changes)


def check_sums(
    session: Changing,
    path: Path,
    valid: np.ndarray,
    rows: np.ndarray,
    amounts: np.ndarray,
    changes: list[CounterChoice],
) -> None:
    """What the session sums up, and what its recording gives when it is read, is the truth of each counter."""
    sums = session.monitor.drain.counter_sums
    assert sums is not None
    found = sums.of_function(session.monitor.names_by_id().index("work"))
    for place in range(6):
        with_it = [number for number, choice in enumerate(changes, 1) if f"by{place + 1}" in str(choice)]
        chosen = valid & np.isin(rows["set"], with_it)
        assert found[f"by{place + 1}"]["total"] == int(amounts[chosen].sum()) * (place + 1)
        assert found[f"by{place + 1}"]["calls"] == chosen.sum() > 0
    document = build_report(RecordingReader(path)).document
    assert {entry["name"]: entry["counters"] for entry in document["functions"]}["work"] == found
    assert sums.changes == len(changes)


def test_command(talker: Talker, capfd: pytest.CaptureFixture[str]) -> None:
    """`nfprobe counters` on a session of `nfprobe attach`: says, changes, refuses; the session goes on."""
    pid = talker.pid

    def counters(*names: str) -> tuple[int, str, str]:
        capfd.readouterr()
        status = main(["counters", str(pid), *names])
        return status, *capfd.readouterr()

    assert counters()[2].startswith(f"nfprobe: Nothing is attached to process {pid}.\nnext: nfprobe attach {pid} --")
    attach = [sys.executable, "-m", "otel_nfprobe", "attach", str(pid), "--functions", "counted*:work", "--json"]
    with subprocess.Popen(attach, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as session:
        try:
            assert wait_until(lambda: counters()[0] == 0)
            assert counters()[1] == f"{pid}: probes read no counters\n"
            both = "page-faults, context-switches"
            expected = f"{pid}: probes read no counters; read at intervals: {both}; changes so far: 1\n"
            assert counters(both.replace(" ", ""))[1] == expected
            status, _, said = counters("cycels")
            assert status == 2
            assert said.startswith("nfprobe: No counter is called 'cycels'; near it are cycles")
            assert counters()[1] == expected
            answer = json.loads(counters("none", "--json")[1])
            assert (answer["counters"], answer["software"], answer["changes"]) == ([], [], 2)
        finally:
            session.send_signal(signal.SIGTERM)
            output, _ = session.communicate(timeout=60)
    summary = json.loads(output.splitlines()[-1])
    assert session.returncode == 0
    assert (summary["counters"]["changes"], summary["not_restored"]) == (2, [])


class OfTheKernel(CounterChoice):
    """Software events, handed over as those of a processor are."""

    @property
    def hardware(self) -> tuple[Counter, ...]:
        return self.counters

    @property
    def software(self) -> tuple[Counter, ...]:
        return ()


def test_descriptors_of_the_real_kernel(talker: Talker) -> None:
    """A session that began without counters is given some, others, and none: their pages come and go."""
    maps = Path(f"/proc/{talker.pid}/maps")
    with Changing(talker, None, has_own_counters=False) as session:
        talker.ask("work 10")
        assert maps.read_text().count("[perf_event]") == 0
        for names in ("task-clock,page-faults", "context-switches,cpu-migrations,task-clock"):
            session.change(OfTheKernel(counters=choose_counters(names).counters))
            # The first page of all stays, so that rdpmc does.
            assert maps.read_text().count("[perf_event]") in (names.count(",") + 1, names.count(",") + 2)
            talker.ask("work 10")
        session.change(OfTheKernel())
        assert maps.read_text().count("[perf_event]") == 1
        talker.ask("work 10")
    session.assert_exact()
    columns = concatenate(session.keep.kept)
    assert not columns.counters["flags"].any()  # no processor counts these: nothing is made up
    assert set(columns.counters["set"].tolist()) == {1, 2}
