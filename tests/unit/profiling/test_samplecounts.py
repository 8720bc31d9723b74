# SPDX-License-Identifier: Apache-2.0
"""What threads counted between samples: kept in recordings, folded by counter, and refused where it makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base import recording_pb2
from otel_nfprobe.cli.main import main
from otel_nfprobe.profiling.samples import (
    NAMES_MAX,
    NOT_KNOWN,
    SAMPLE,
    SAMPLES_MAX,
    CountColumns,
    CountedSamples,
    SampleCounts,
    decode_counts,
    encode_counts,
    find_name,
)
from otel_nfprobe.recording.recording import SAMPLE_COUNTS, SAMPLES, RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import RecordingFacts, read_facts
from otel_nfprobe.report.flame import FlameRequest, fold
from tests.support.synthetic_recording import write_recording
from tests.unit.recording.test_recording import seal
from tests.unit.report.test_flame import PLACES, SLOW_NS, batch_start, sample

BOTH = ("page-faults", "cpu/event=0xc2,umask=0x1/")
ROWS = [
    sample(batch_start(1) + 1000, 0x1010),
    sample(batch_start(1) + 1500, 0x1110),
    sample(batch_start(25) + 1500, 0x1110),
    sample(batch_start(2) - 10_000, 0x1110),
]
COUNTS = [[NOT_KNOWN, 3, 40, 500], [7, 0, NOT_KNOWN, 1 << 40]]


def counted(names: tuple[str, ...] = BOTH, rows: list[tuple[int, ...]] = ROWS) -> CountedSamples:
    return CountedSamples(np.array(rows, SAMPLE), SampleCounts(names, np.array(COUNTS, np.uint64)[: len(names)]))


def read(path: Path) -> RecordingFacts:
    return read_facts(RecordingReader(path))


def test_each_stack_weighs_what_was_counted(tmp_path: Path) -> None:
    reader = RecordingReader(write_recording(tmp_path / "r", samples=counted()))
    facts = read_facts(reader)
    facts.places = PLACES
    assert fold(reader, facts, FlameRequest(counter="page-faults")) == {
        "outside batches;helper: odd": 500,
        "batch;nf_work;helper: odd": 43,
    }
    assert fold(reader, facts, FlameRequest(counter=BOTH[1])) == {
        "outside batches;helper: odd": 1 << 40,
        "batch;nf_work": 7,
    }
    slow = FlameRequest(slow_only=True, slower_ns=SLOW_NS, counter="page-faults")
    assert fold(reader, facts, slow) == {"batch;nf_work;helper: odd": 40}
    assert fold(reader, facts, FlameRequest())["batch;nf_work;helper: odd"] == 2


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_recording(tmp_path / "r", samples=counted()))
    flame = "report", path, "--format", "flame", "--by"
    assert main([*flame, "Page-Faults"]) == 0
    output, errors = capsys.readouterr()
    assert sum(int(line.rsplit(" ", 1)[1]) for line in output.splitlines()) == 543
    assert "the increase of page-faults before 1 of 4 samples is unknown, and left out." in errors
    assert main([*flame, "cycles"]) == 2
    said = f"nfprobe: No sample contains 'cycles'; they contain {', '.join(BOTH)}.\n"
    assert capsys.readouterr().err == f"{said}next: nfprobe report {path} --format flame --by page-faults\n"
    assert main(["report", path, "--by", "page-faults"]) == 2
    without = str(write_recording(tmp_path / "without"))
    assert main(["report", without, "--format", "flame", "--by", "cycles"]) == 2
    assert "contain no counters such as 'cycles': use --by samples or time." in capsys.readouterr().err
    assert main(["report", path, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["profile"]["counters"] == {
        "page-faults": {"samples": 3, "total": 543},
        BOTH[1]: {"samples": 3, "total": 7 + (1 << 40)},
    }
    slowest = report["packets"]["slowest"][0]
    assert slowest["sample_counts"] == {"page-faults": {"[unknown]": 40}, BOTH[1]: {"[unknown]": 0}}


def test_sets_of_one_recording_differ(tmp_path: Path) -> None:
    """A thread without hardware counters, samples without any, more than one block holds; nothing is mixed up."""
    many = np.zeros(20_000, SAMPLE)
    counts = np.arange(20_000, dtype=np.uint64)
    writer = RecordingWriter(tmp_path / "r", RecordingHeader())
    writer.samples(many[:5])
    writer.samples(many, SampleCounts(("a", "b"), np.stack((counts, counts + 7))))
    writer.samples(many[:2], SampleCounts(("b",), np.array([[1, 2]], np.uint64)))
    writer.samples(many[:1], SampleCounts((), np.empty((0, 1), np.uint64)))
    writer.finish({})
    facts = read(tmp_path / "r")
    nothing = [NOT_KNOWN]
    assert len(facts.samples) == 20_008
    assert facts.sample_counts["a"].tolist() == nothing * 5 + counts.tolist() + nothing * 3
    assert facts.sample_counts["b"].tolist() == nothing * 5 + (counts + 7).tolist() + [1, 2] + nothing


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff" * 30,
        encode_counts(SampleCounts((), np.empty((0, 3), np.uint64))),
        encode_counts(SampleCounts(("a", "a"), np.zeros((2, 3), np.uint64))),
        encode_counts(SampleCounts(("a\n", "b"), np.zeros((2, 3), np.uint64))),
        encode_counts(SampleCounts(("a" * 300,), np.zeros((1, 3), np.uint64))),
        encode_counts(SampleCounts(tuple(map(str, range(NAMES_MAX + 1))), np.zeros((NAMES_MAX + 1, 1), np.uint64))),
        recording_pb2.SampleCounts(name=["a"], counts=bytes(23)).SerializeToString(),
        recording_pb2.SampleCounts(name=["a", "b"], counts=bytes(24)).SerializeToString(),
    ],
)
def test_blocks_that_make_no_sense_end_the_recording(payload: bytes, tmp_path: Path) -> None:
    path = write_recording(tmp_path / "r", finish=False)
    path.write_bytes(path.read_bytes() + seal(SAMPLE_COUNTS, 0, payload))
    facts = read(path)
    assert "holds a block that makes no sense" in facts.damage
    assert facts.sample_counts == {}
    assert len(facts.functions) == 3


def test_counts_of_other_samples_are_left_out(tmp_path: Path) -> None:
    """Of none, of more or fewer than came last, and a second time."""
    path = write_recording(tmp_path / "r", finish=False)
    rows = np.array(ROWS, SAMPLE).tobytes()
    pairs = encode_counts(SampleCounts(("p",), np.array([[1, 2, 3, 4]], np.uint64)))
    wrong = encode_counts(SampleCounts(("q",), np.zeros((1, 3), np.uint64)))
    kinds = [(SAMPLE_COUNTS, pairs), (SAMPLES, rows), (SAMPLE_COUNTS, wrong), (SAMPLE_COUNTS, pairs),
             (SAMPLE_COUNTS, encode_counts(SampleCounts(("r",), np.zeros((1, 4), np.uint64))))]  # fmt: skip
    path.write_bytes(path.read_bytes() + b"".join(seal(kind, 0, payload) for kind, payload in kinds))
    facts = read(path)
    assert {name: column.tolist() for name, column in facts.sample_counts.items()} == {"p": [1, 2, 3, 4]}


def test_memory_is_bounded() -> None:
    """Of a recording with more samples and names than are kept."""
    columns, half = CountColumns(), SAMPLES_MAX // 2 + 1
    row = np.zeros((1, half), np.uint64)
    for number in range(30):
        columns.add_samples(half)
        columns.add(SampleCounts((f"name {number % 3}",), row))
    found = columns.finish()
    assert list(found) == ["name 0", "name 1"]  # what comes later belongs to samples that are not kept
    assert [len(column) for column in found.values()] == [SAMPLES_MAX] * 2
    columns = CountColumns()
    columns.add_samples(SAMPLES_MAX)
    columns.add(SampleCounts(tuple(map(str, range(NAMES_MAX))), np.zeros((NAMES_MAX, 1), np.uint64).repeat(2, axis=1)))
    columns.add(
        SampleCounts(
            tuple(map(str, range(NAMES_MAX))),
            np.broadcast_to(np.zeros((1, 1), np.uint64), (NAMES_MAX, SAMPLES_MAX)),
        )
    )
    assert len(columns.finish()) == 16


def test_what_is_encoded_is_read() -> None:
    names, counts = decode_counts(encode_counts(counted().counted))
    assert (names, counts.tolist()) == (BOTH, COUNTS)


def test_names() -> None:
    assert find_name(["a", "A", "b"], "A") == "A"
    assert find_name(["page-faults"], "PAGE-faults") == "page-faults"
    assert find_name(["a"], "x") is None
