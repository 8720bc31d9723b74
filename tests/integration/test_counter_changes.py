# SPDX-License-Identifier: Apache-2.0
"""Other counters for a session that runs: no byte of code changes, every record stays, no count is ever wrong.

On the processor of tests/targets/counted.c, whose six counters count in steps of their own: which counters a call was
counted with is seen in its counts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.counters.choice import CounterChoice, choose_counters
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.report.report import build_report
from tests.support.changing import CALLS, Changing, OfTheKernel, Worker, assert_counted_as_changed, own
from tests.support.probed import Talker, wait_until

pytestmark = pytest.mark.integration


def test_changed_while_threads_run(talker: Talker, truth: Path, tmp_path: Path) -> None:
    header = RecordingHeader(session="1", pid=talker.pid, settings={})
    recording = RecordingWriter(tmp_path / "changed.nfp", header)
    changes = [own(0, 1), own(3, 4, 5), own(2), CounterChoice(), own(1, 2, 3, 4), own(0, 1)]
    with Changing(talker, recording) as session:
        worker = Worker(talker, truth)
        worker.work_through(session, changes)
    recording.finish({})
    session.assert_exact()  # no record lost, torn or unpaired
    rows, amounts = session.rows("work"), np.concatenate(worker.true)["amount"].astype(np.uint64) + 7
    valid = assert_counted_as_changed(rows, amounts, changes, CALLS // 2)
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
    found = sums.of_function(session.monitor.attachment.names_by_id().index("work"))
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
            assert said.startswith("nfprobe: No counter is called 'cycels'; similar names: cycles")
            assert counters()[1] == expected
            answer = json.loads(counters("none", "--json")[1])
            assert (answer["counters"], answer["software"], answer["changes"]) == ([], [], 2)
        finally:
            session.send_signal(signal.SIGTERM)
            output, _ = session.communicate(timeout=120)
    summary = json.loads(output.splitlines()[-1])
    assert session.returncode == 0
    assert (summary["counters"]["changes"], summary["not_restored"]) == (2, [])


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
    assert not session.columns.counters["flags"].any()  # no processor counts these: nothing is made up
    assert set(session.columns.counters["set"].tolist()) == {1, 2}
