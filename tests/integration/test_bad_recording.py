# SPDX-License-Identifier: Apache-2.0
"""Recordings that are cut, damaged or none at all, and reports that nobody can take: never a traceback."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.cli.main import main
from tests.support.firewall import DEAD, DESCRIPTION, Firewall, assert_no_traceback, assert_told, fails
from tests.support.otlp_receiver import Receiver

pytestmark = [pytest.mark.integration, pytest.mark.shared]


@pytest.fixture(scope="module")
def small_recording(firewall_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "small.nfprobe"
    firewall = Firewall(firewall_binary, 1_000)
    try:
        words = [
            "attach",
            str(firewall.pid),
            "--adapter",
            str(DESCRIPTION),
            "--packets",
            "all",
            "--for",
            "0.6s",
            "--record",
            str(path),
        ]
        assert main(words) == 0
    finally:
        firewall.end()
    return path


def read_damaged(path: Path, capfd: pytest.CaptureFixture[str], whole: str) -> None:
    """A report of what is whole and a statement, or an error."""
    capfd.readouterr()
    status = main(["report", str(path)])
    captured = capfd.readouterr()
    if status == 0:
        assert captured.out
        assert captured.err.startswith("nfprobe: The recording ") or captured.out == whole, captured.err
        assert_no_traceback(captured.err)
    else:
        assert status == 2
        assert_told(captured.err, str(path))


def test_cut_recordings(small_recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = small_recording.read_bytes()
    path = tmp_path / "cut.nfprobe"
    for length in range(0, len(content), 1000):
        path.write_bytes(content[:length])
        read_damaged(path, capfd, "")


def test_flipped_bytes(small_recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = bytearray(small_recording.read_bytes())
    path = tmp_path / "flipped.nfprobe"
    rng = random.Random(6)
    for position in [*range(0, 100, 2), *rng.sample(range(len(content)), 250)]:
        before, content[position] = content[position], content[position] ^ 1 << rng.randrange(8)
        path.write_bytes(content)
        read_damaged(path, capfd, "")
        content[position] = before


@pytest.fixture
def endpoint() -> Iterator[str]:
    """Of a receiver that takes everything: where it is dead, an export may end before it comes to the damage."""
    receiver = Receiver()
    yield f"http://127.0.0.1:{receiver.port}"
    receiver.stop()


def test_export_of_damaged_recordings(
    small_recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], endpoint: str
) -> None:
    content = small_recording.read_bytes()
    path = tmp_path / "damaged.nfprobe"
    rng = random.Random(7)
    for number in range(10):
        position = rng.randrange(len(content) * 2 // 3, len(content))
        flipped = bytes([content[position] ^ 4]) + content[position + 1 :]
        path.write_bytes(content[:position] + (flipped if number % 2 else b""))
        capfd.readouterr()
        assert main(["export", str(path), "--endpoint", endpoint]) == 0  # what was whole is sent
        errors = capfd.readouterr().err
        assert errors.startswith("nfprobe: The recording "), errors
        assert_no_traceback(errors)


def test_what_is_no_recording(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("hello\n" * 1000)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for name in (
        "missing",
        "",
        "empty",
        "text",
        "pipe",
        "loop",
        "/dev/zero",
        "/dev/null",
        "text/x",
        "\udcff",
    ):
        path = tmp_path / name
        fails(capfd, 2, "report", path)
        fails(capfd, 2, "export", path, "--endpoint", DEAD)


def test_report_whose_output_goes_nowhere(nfprobe: Any, small_recording: Path, tmp_path: Path) -> None:
    command = " ".join(nfprobe.command)
    for shell, status in [
        (f"{command} report {small_recording} | head -1", 0),
        (f"{command} report {small_recording} >&-", 0),
        (f"{command} report {small_recording} <&- 2>&-", 0),
        (f"{command} report {small_recording} >/dev/full", 1),
    ]:
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == status, (shell, done)
        assert_no_traceback(done.stderr)
        assert "Exception ignored" not in done.stderr
    done = nfprobe.run("report", small_recording, "-o", tmp_path / "no" / "report.html")
    assert done.returncode == 1
    assert_told(done.stderr, "report.html")
