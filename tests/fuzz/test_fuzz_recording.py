# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile recordings: each is read as far as it goes, or refused with a sentence; memory is bounded.

NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_recording.py reads more of them, NFPROBE_FUZZ_SEED=1000000 others.
A failure names the seed: mutate(Parts(good), seed) is the file.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.profiling.samples import SAMPLE, CountedSamples, SampleCounts
from otel_nfprobe.recording.recording import RECORDS, RecordingReader
from tests.fuzz.mutate_recording import Parts, bomb, seal
from tests.fuzz.seeds import FIRST, SECONDS
from tests.support.synthetic_recording import BATCHES, write_recording

ROOT = Path(__file__).resolve().parents[2]
CHILD = "tests.fuzz.recording_child"
EVERYDAY, EVERYDAY_SECONDS = 120, 30
PATIENCE_S = 300


def damaged(source: Path, first: int, last: int, seconds: float) -> Iterator[str]:
    """Findings of a child, and the case at which it died, if it did."""
    words = [sys.executable, "-m", CHILD, str(source), str(first), str(last), str(seconds)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds + PATIENCE_S, check=False)
    lines = done.stdout.splitlines()
    yield from (line for line in lines if line.startswith("finding"))
    if done.returncode:
        yield f"status {done.returncode} at {lines[-1] if lines else 'the beginning'}: {done.stderr[-2000:]}"


def counted_samples() -> CountedSamples:
    """One sample in each batch."""
    rows = np.array([(1_001_000 + number * 100_000, 0x1000, 0, 0, 1, 0) for number in range(BATCHES)], SAMPLE)
    counts = np.arange(2 * BATCHES, dtype=np.uint64).reshape(2, -1)
    return CountedSamples(rows, SampleCounts(("page-faults", "task-clock"), counts))


def test_damaged_recordings(tmp_path: Path) -> None:
    source = write_recording(tmp_path / "good.nfp", samples=counted_samples())
    assert list(damaged(source, 0, EVERYDAY, EVERYDAY_SECONDS)) == []
    if SECONDS:
        assert list(damaged(source, max(FIRST, EVERYDAY), 1 << 60, SECONDS)) == []


def peak_kib() -> int:
    """The most memory that this process had since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak_kib()


def test_bombs(tmp_path: Path) -> None:
    """Frames of a few bytes that would unpack to more than a frame may have, or to more than they say."""
    start = Parts(write_recording(tmp_path / "good.nfp").read_bytes()).start
    path, large = tmp_path / "bomb.nfp", 256 << 20
    for size, said in ((large, large), (large, 16 << 20), ((16 << 20) + 1, 16 << 20), (4096, 1 << 20)):
        path.write_bytes(start + bomb(size, said))
        assert path.stat().st_size < 50_000
        before = forget_peak()
        reader = RecordingReader(path)
        assert list(reader.blocks()) == []
        assert "damaged" in reader.damage
        assert peak_kib() - before < 20 << 10


def test_frames_as_large_as_they_may_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Zeros pack a thousand times over; each frame is forgotten before the next one is unpacked."""
    start = Parts(write_recording(tmp_path / "good.nfp").read_bytes()).start
    block = (RECORDS).to_bytes(4, "little") + bytes(4) + ((16 << 20) - 16).to_bytes(4, "little") + bytes(4)
    path = tmp_path / "large.nfp"
    path.write_bytes(start + seal(block + bytes((16 << 20) - 16)) * 8)
    before = forget_peak()
    assert sum(len(block.payload) for block in RecordingReader(path).blocks()) == 8 * ((16 << 20) - 16)
    assert peak_kib() - before < 80 << 10
    assert main(["report", str(path)]) == 0
    assert "is incomplete" in capsys.readouterr().err


def test_cut_recordings_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_recording(tmp_path / "good.nfp").read_bytes()
    path = tmp_path / "cut.nfp"
    for length in range(0, len(data), 13):
        path.write_bytes(data[:length])
        status = main(["report", str(path)])
        captured = capsys.readouterr()
        assert status in (0, 2)
        assert captured.err.startswith("nfprobe: ")
        assert captured.err.splitlines()[0].endswith(".")
        assert bool(captured.out) == (status == 0)
