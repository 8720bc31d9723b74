# SPDX-License-Identifier: Apache-2.0
"""Sessions that are interrupted, doubled, or whose disk, terminal or receiver fails: the target goes on."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.recording.recording import RecordingReader
from tests.integration.test_testpmd import wait_until_armed
from tests.support.firewall import DEAD, DESCRIPTION, Firewall, assert_no_traceback, assert_told, fails
from tests.support.metrics_receiver import spans_of
from tests.support.otlp_receiver import Receiver
from tests.support.probed import cpu_ticks, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

SESSION_PATIENCE_S = 120  # for two seconds of session and a receiver that is not there
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def firewall(start_firewall: Callable[..., Firewall]) -> Firewall:
    return start_firewall(2_000)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "nfprobe-test", str(folder)]
    if subprocess.run(words, check=False).returncode:
        pytest.skip("this machine lets nobody mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(nfprobe: Any, start_firewall: Callable[..., Firewall], small_disk: Path) -> None:
    firewall = start_firewall(500_000)
    recording = small_disk / "full.nfprobe"
    monitor = nfprobe.start("attach", firewall.pid, "--adapter", DESCRIPTION, "--record", recording, "--json")
    said = list(takewhile(lambda line: "NOT RECORDED any more" not in line, monitor.stderr))  # a line a second says so
    full_at = time.monotonic()
    assert wait_until(lambda: time.monotonic() > full_at + 1)  # the session goes on
    monitor.send_signal(signal.SIGINT)
    errors, output = "".join(said) + monitor.stderr.read(), monitor.stdout.read()
    assert monitor.wait(timeout=120) == 1, errors
    assert f"nfprobe: The recording {recording} ends after" in errors
    assert f"next: nfprobe report {recording}" in errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["seconds"] >= 1
    assert "No space left" in summary["recording"]["error"]
    assert summary["not_restored"] == []
    firewall.assert_restored()
    reader = RecordingReader(recording)
    records = sum(len(block.payload) // 16 for block in reader.blocks() if block.type == 1)
    assert 0 < records < summary["records"]["read"]
    assert not reader.complete
    assert "has no end block" in reader.damage
    report = nfprobe.run("report", recording)
    assert report.returncode == 0, report.stderr
    assert reader.damage in report.stderr
    with contextlib.suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    no_room = nfprobe.run("attach", firewall.pid, "--adapter", DESCRIPTION, "--for", "1s", "--record", small_disk / "x")
    assert no_room.returncode == 1, no_room.stderr
    assert_no_traceback(no_room.stderr)
    firewall.assert_restored()


@pytest.fixture
def silent_endpoint() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in held:
            connection.close()


def test_endpoints_that_do_not_answer(
    nfprobe: Any, start_firewall: Callable[..., Firewall], silent_endpoint: str, tmp_path: Path
) -> None:
    """Without a spool: the recording is whole, every span is counted as dropped, the end comes in bounded time."""
    sessions = []
    for number, endpoint in enumerate([DEAD, silent_endpoint]):
        firewall = start_firewall(50_000)
        recording = tmp_path / f"{number}.nfprobe"
        words = ["--adapter", DESCRIPTION, "--for", "2s", "--sample", "0.01", "--endpoint", endpoint, "--spool", "none"]
        monitor = nfprobe.start("attach", firewall.pid, *words, "--record", recording, "--json")
        sessions.append((firewall, recording, endpoint, monitor))
    for firewall, recording, endpoint, monitor in sessions:
        output, errors = monitor.communicate(timeout=SESSION_PATIENCE_S)
        assert monitor.returncode == 1, errors
        assert_no_traceback(errors)
        assert f"next: nfprobe export {recording} --endpoint {endpoint}\n" in errors
        summary = json.loads(output.splitlines()[-1])
        assert summary["spans"]["exported"] == 0
        assert summary["spans"]["dropped"] == sum(summary["spans"]["dropped_reasons"].values()) > 0
        assert summary["packets"]["received"] > 0
        reader = RecordingReader(recording)
        assert (
            sum(len(block.payload) // 16 for block in reader.blocks() if block.type == 1) == summary["records"]["read"]
        )
        assert reader.complete
        firewall.assert_restored()


def test_a_receiver_that_is_away(nfprobe: Any, start_firewall: Callable[..., Firewall], tmp_path: Path) -> None:
    """What it does not take waits in the spool, and a later export sends it."""
    firewall, words = start_firewall(50_000), ["--spool", tmp_path / "spool"]
    monitor = nfprobe.start(
        *("attach", firewall.pid, "--adapter", DESCRIPTION, "--trial", "0s", "--for", "1s", "--sample", "0.01"),
        *("--endpoint", DEAD, "--json", *words),
    )
    output, errors = monitor.communicate(timeout=SESSION_PATIENCE_S)
    assert monitor.returncode == 0, errors
    spans = json.loads(output.splitlines()[-1])["spans"]
    assert spans["spooled"] > 0
    assert spans["dropped"] == spans["exported"] == 0
    assert f"next: nfprobe export --endpoint {DEAD} --spool {tmp_path / 'spool'}\n" in errors
    receiver = Receiver()
    sent = nfprobe.json("export", "--endpoint", f"http://127.0.0.1:{receiver.port}", *words)
    receiver.stop()
    assert sent["spans"]["exported"] == spans["spooled"] == sum(1 for _ in spans_of(receiver.requests))


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_at_random_moments(nfprobe: Any, firewall: Firewall, number: signal.Signals, tmp_path: Path) -> None:
    rng = random.Random(int(number))
    for _ in range(3):
        monitor = nfprobe.start("attach", firewall.pid, "--adapter", DESCRIPTION, "--record", tmp_path / "x.nfprobe")
        time.sleep(rng.uniform(0.3, 1.5))
        end_by_signal(monitor, number)
        firewall.assert_restored()


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_after_the_injection(nfprobe: Any, firewall: Firewall, number: signal.Signals, tmp_path: Path) -> None:
    monitor = nfprobe.start("attach", firewall.pid, "--adapter", DESCRIPTION, "--record", tmp_path / "x.nfprobe")
    while firewall.thread_ids() == firewall.threads:
        assert monitor.poll() is None, monitor.communicate()
    errors = end_by_signal(monitor, number)
    assert monitor.returncode in (0, 1), errors
    firewall.assert_restored()


def end_by_signal(monitor: subprocess.Popen[str], number: signal.Signals) -> str:
    monitor.send_signal(number)
    _, errors = monitor.communicate(timeout=120)
    # While Python starts, before the target is looked at, it is the interpreter that ends, in words of its own.
    assert monitor.returncode in (0, 1, 130, -number), errors
    if monitor.returncode == 1 and not errors.startswith("Fatal Python error: init_"):
        assert_told(errors, "Stopped")
    return errors


def test_second_monitor(nfprobe: Any, firewall: Firewall, capfd: pytest.CaptureFixture[str]) -> None:
    first = nfprobe.start("attach", firewall.pid, "--adapter", DESCRIPTION, "--json")
    wait_until_armed(nfprobe, firewall.pid, first)
    for _ in range(3):
        fails(capfd, 1, "attach", firewall.pid, "--adapter", DESCRIPTION, said=f"process {first.pid},")
    assert first.poll() is None
    assert_ends_well(first, firewall)
    firewall.assert_restored()


def test_two_monitors_at_the_same_moment(nfprobe: Any, firewall: Firewall) -> None:
    both = [nfprobe.start("attach", firewall.pid, "--adapter", DESCRIPTION, "--json") for _ in range(2)]
    assert wait_until(lambda: any(monitor.poll() is not None for monitor in both), 120), "both are attached"
    refused, first = sorted(both, key=lambda monitor: monitor.poll() is None)
    assert refused.returncode == 1
    assert_told(refused.communicate()[1], f"process {first.pid},")
    wait_until_armed(nfprobe, firewall.pid, first)
    assert_ends_well(first, firewall)
    firewall.assert_restored()


def assert_ends_well(monitor: subprocess.Popen[str], firewall: Firewall) -> None:
    until = cpu_ticks(firewall.pid) + 10
    assert wait_until(lambda: cpu_ticks(firewall.pid) > until)  # on a busy machine no packet may have come so far
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["packets"]["received"] > 0
    assert summary["not_restored"] == []
    assert not any(summary["records"]["lost"].values())


def test_bare_environment(nfprobe: Any, firewall: Firewall, tmp_path: Path) -> None:
    """No HOME, no locale, malformed variables that do not matter: it works."""
    environment = {
        "LC_ALL": "C",
        "OTEL_RESOURCE_ATTRIBUTES": "junk",
        "OTEL_EXPORTER_OTLP_HEADERS": "junk",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "100",
    }
    recording = tmp_path / "aufzeichnung-ä.nfprobe"
    words = ["--adapter", DESCRIPTION, "--for", "0.2s", "--record", recording]
    done = nfprobe.run("attach", firewall.pid, *words, env=environment)
    assert done.returncode == 0, done.stderr
    assert_no_traceback(done.stderr)
    done = nfprobe.run("report", recording, env=environment)
    assert done.returncode == 0, done.stderr
    assert_no_traceback(done.stderr)


def test_terminal_that_goes_away(nfprobe: Any, firewall: Firewall) -> None:
    """Neither progress nor summary can be written any more: the session goes on, and ends in order."""
    monitor = nfprobe.start("attach", firewall.pid, "--adapter", DESCRIPTION)
    wait_until_armed(nfprobe, firewall.pid, monitor)
    assert monitor.stderr is not None
    monitor.stderr.close()
    time.sleep(1.5)
    assert monitor.poll() is None
    monitor.send_signal(signal.SIGHUP)
    assert monitor.wait(SESSION_PATIENCE_S) in (0, 1)
    firewall.assert_restored()


def test_target_that_ends_during_the_attach(
    start_firewall: Callable[..., Firewall], capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(11)
    for _ in range(12):
        firewall = start_firewall(2_000)
        end = threading.Timer(rng.uniform(0.0, 0.15), firewall.end)
        capfd.readouterr()
        end.start()
        status = main(["attach", str(firewall.pid), "--adapter", str(DESCRIPTION), "--for", "0.3s"])
        end.join()
        errors = capfd.readouterr().err
        assert_no_traceback(errors)
        assert status in (0, 1, 2, 3)
        if status:
            assert_told(errors, str(firewall.pid))
