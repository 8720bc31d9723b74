# SPDX-License-Identifier: Apache-2.0
"""`--flight-recorder` and `--max-size` on a running firewall: what is written when, and what the exit status is."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.recording.recording import RECORDS, RecordingReader
from otel_nfprobe.report.report import build_report
from tests.support.firewall import DESCRIPTION, Firewall, fails

pytestmark = [pytest.mark.integration, pytest.mark.shared]
PATIENCE_S = 120
WORDS = ("--adapter", DESCRIPTION, "--trial", "0s", "--ring-size", "64MiB")


def records_of(path: Path) -> int:
    return sum(len(block.payload) // 16 for block in RecordingReader(path).blocks() if block.type == RECORDS)


def test_it_writes_on_a_signal(nfprobe: Any, start_firewall: Callable[..., Firewall], tmp_path: Path) -> None:
    firewall = start_firewall(20_000)
    options = ("--flight-recorder", "30s", "--record", tmp_path / "flight.nfp", "--json")
    monitor = nfprobe.start("attach", firewall.pid, *WORDS, *options)
    until = time.monotonic() + PATIENCE_S
    while nfprobe.run("status", firewall.pid).returncode:
        assert monitor.poll() is None
        assert time.monotonic() < until
    assert list(tmp_path.iterdir()) == []
    files: list[Path] = []
    while not files or not records_of(files[-1]):  # the first signal may come before the first packet
        monitor.send_signal(signal.SIGUSR2)
        files.append(tmp_path / f"flight-{len(files) + 1}.nfp")
        while not is_whole(files[-1]):
            assert monitor.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=PATIENCE_S)
    assert monitor.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["recording"]["files"] == list(map(str, files))
    assert summary["recording"]["bytes"] == sum(path.stat().st_size for path in files)
    document = build_report(RecordingReader(files[-1])).document
    assert document["recording"]["complete"]
    assert 0 < document["records"] == records_of(files[-1]) <= summary["records"]["read"]
    assert "fw_receive" in {row["name"] for row in document["functions"] if row["calls"]}
    firewall.assert_restored()


def is_whole(path: Path) -> bool:
    try:
        reader = RecordingReader(path)
    except UsageError:  # not there yet, or without its header
        return False
    return bool(list(reader.blocks())) and reader.complete and not reader.damage


def test_it_writes_when_packets_are_slow(nfprobe: Any, start_firewall: Callable[..., Firewall], tmp_path: Path) -> None:
    """Every packet is: then the files hold all records but the last ones, each once."""
    firewall, record = start_firewall(20_000), tmp_path / "flight.nfp"
    options = ("--flight-recorder", "1s", "--trigger", "1ns", "--record", record, "--for", "2s")
    summary = nfprobe.json("attach", firewall.pid, *WORDS, *options)
    files = summary["recording"]["files"]
    assert sorted(map(str, tmp_path.iterdir())) == files
    assert len(files) >= 2
    assert all(RecordingReader(path).blocks() and build_report(RecordingReader(path)).document for path in files)
    assert 0 < sum(map(records_of, files)) <= summary["records"]["read"]
    firewall.assert_restored()


def test_a_bound_ends_the_recording_only(nfprobe: Any, start_firewall: Callable[..., Firewall], tmp_path: Path) -> None:
    firewall, record = start_firewall(100_000), tmp_path / "bounded.nfp"
    options = ("--for", "3s", "--packets", "all", "--record", record, "--max-size", "1MiB", "--json")
    done = nfprobe.run("attach", firewall.pid, *WORDS, *options)
    assert done.returncode == 0, done.stderr
    assert f"The recording {record} ends before the session: it has reached --max-size." in done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["recording"]["reached_max"] is True
    assert record.stat().st_size <= 1 << 20
    assert is_whole(record)
    assert 0 < records_of(record) < summary["records"]["read"]
    assert build_report(RecordingReader(record)).document["packets"]["transmitted"] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--flight-recorder", "1s"], "--flight-recorder needs --record"),
        (["--max-size", "1GiB"], "--max-size needs --record"),
        (["--record", "x", "--max-size", "1kB"], "1MiB or more"),
        (["--record", "x", "--trigger", "1ms"], "--trigger needs"),
        (["--record", "x", "--flight-recorder", "2h"], "from 100ms to 1h"),
        (["--record", "/none/x", "--flight-recorder", "2s"], "Cannot write the recording"),
    ],
)
def test_options_that_do_not_fit(
    capfd: pytest.CaptureFixture[str], start_firewall: Callable[..., Firewall], options: list[str], said: str
) -> None:
    firewall = start_firewall(1_000)
    if said.startswith("Cannot"):
        options = [*options, "--adapter", str(DESCRIPTION), "--trial", "0s"]
    fails(capfd, 2, "attach", firewall.pid, *options, said=said)
    firewall.assert_untouched()
