# SPDX-License-Identifier: Apache-2.0
"""Recordings: what is written comes back; cut or damaged, all whole blocks before the damage do."""

from __future__ import annotations

import os
import re
import resource
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_nfprobe.base import recording_pb2
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.recording import recording
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.recordingfile import MAGIC, VERSION, RecordingFile
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo
from otel_nfprobe.report.report import build_report
from tests.support.marks import in_parts

RECORD = np.dtype([("value", "<u8"), ("tag", "<u4"), ("sp", "<u4")])
ANCHOR = np.dtype([("ticks", "<u8"), ("unix_ns", "<u8"), ("ns_per_tick_q32", "<u8")])
HEADER = RecordingHeader("0.1.0", "s1", 42, "/bin/nf", "host", 123, 2.6e9, {"service.name": "nf"}, {"packets": "all"})
FUNCTION = FunctionInfo(
    0, 1, "/bin/nf", 0x1000, 64, "fw_receive", "dynsym", "in-stack call", 1.5, 2.5, (300, -2), (450, 0)
)
COUNTERS = recording.ThreadTotals(0, 5, 6, 7, 8, 9, 10, 11, 12, (1, 2, 3), 13, 14, 15)
SUMMARY = {"pid": 42, "records": {"read": 300}}


def records(count: int, first: int = 0) -> np.ndarray:
    array = np.zeros(count, RECORD)
    array["value"] = np.arange(first, first + count)
    array["tag"] = 1
    return array


def write(path: Path, groups: int = 3, per_group: int = 100, finish: bool = True) -> Path:
    """Each group of records is a frame of its own."""
    writer = RecordingWriter(path, HEADER)
    writer.functions([FUNCTION])
    writer.threads([ThreadInfo(0, 43, "worker")])
    writer.clock(np.array([(1, 2, 3 << 32)], ANCHOR))
    for group in range(groups):
        writer.flush()
        writer.records(group % 2, records(per_group, group * per_group))
    writer.flush()
    writer.counters([COUNTERS])
    writer.finish(SUMMARY) if finish else writer.close()
    return path


def frame_ends(data: bytes) -> list[int]:
    # Where the header and each frame end, by the drawing in proto/README.md and not by the reader.
    at = 16 + struct.unpack_from("<I", data, 12)[0] + 4
    ends = [at]
    while at < len(data) - 16:
        at += 16 + struct.unpack_from("<I", data, at)[0]
        ends.append(at)
    return ends


def seal(kind: int, thread: int, payload: bytes) -> bytes:
    """A frame that holds one block, not compressed, by the drawing as well."""
    block = struct.pack("<IIII", kind, thread, len(payload), 0) + payload + bytes(-len(payload) % 16)
    start = struct.pack("<III", len(block), len(block), 0)
    return start[:8] + struct.pack("<II", zlib.crc32(block, zlib.crc32(start)), 0) + block


def test_round_trip(tmp_path: Path) -> None:
    reader = RecordingReader(write(tmp_path / "r"))
    assert reader.header == HEADER
    blocks = list(reader.blocks())
    assert [block.type for block in blocks] == [4, 3, 2, 1, 1, 1, 5, 6]
    assert blocks[0].payload == [FUNCTION]
    assert blocks[1].payload == [ThreadInfo(0, 43, "worker")]
    assert blocks[2].array(ANCHOR).tolist() == [(1, 2, 3 << 32)]
    assert [block.thread for block in blocks[3:6]] == [0, 1, 0]
    assert np.array_equal(np.concatenate([block.array(RECORD) for block in blocks[3:6]]), records(300))
    assert blocks[6].payload == [COUNTERS]
    assert (reader.damage, reader.complete, reader.summary) == ("", True, SUMMARY)
    assert len(list(reader.blocks())) == 8


def test_mode_is_private_even_when_the_file_was_there(tmp_path: Path) -> None:
    path = tmp_path / "r"
    path.write_bytes(b"x" * 10)
    path.chmod(0o644)
    write(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_large_arrays_become_blocks_of_bounded_size(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", HEADER)
    writer.records(3, records(150_000))
    writer.records(3, records(0))
    writer.finish({})
    blocks = list(RecordingReader(tmp_path / "r").blocks())
    assert [len(block.payload) // 16 for block in blocks[:-1]] == [65536, 65536, 150_000 - 131_072]
    assert np.array_equal(np.concatenate([block.array(RECORD) for block in blocks[:-1]]), records(150_000))


def test_without_end_the_file_was_cut(tmp_path: Path) -> None:
    reader = RecordingReader(write(tmp_path / "r", finish=False))
    assert len(list(reader.blocks())) == 7
    assert "is incomplete" in reader.damage
    assert not reader.complete


def whole_blocks(ends: list[int], length: int) -> int:
    """Blocks in the whole frames of `write` that lie before a place: facts, a block for each group, counters, END."""
    frames = sum(end <= length for end in ends) - 1
    return 0 if not frames else 2 + frames


@pytest.mark.thorough
def test_cut_at_every_byte(tmp_path: Path) -> None:
    data = write(tmp_path / "r", groups=3, per_group=20).read_bytes()
    ends = frame_ends(data)
    cut = tmp_path / "cut"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        if length < ends[0]:
            with pytest.raises(UsageError):
                RecordingReader(cut)
            continue
        reader = RecordingReader(cut)
        assert len(list(reader.blocks())) == whole_blocks(ends, length)
        assert reader.damage
        assert reader.complete == (length >= ends[-1])  # only the way to the index is cut
        assert len(list(reader.blocks(leave_out=[recording.RECORDS]))) <= 5


@pytest.mark.thorough
def test_every_byte_flipped(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "r", groups=2, per_group=5).read_bytes())
    ends = frame_ends(data)
    path = tmp_path / "flipped"
    for position in range(len(data)):
        mask = (0x01, 0x80, 0xFF)[position % 3]
        data[position] ^= mask
        path.write_bytes(data)
        data[position] ^= mask
        if position < ends[0]:
            with pytest.raises(UsageError):
                RecordingReader(path)
            continue
        reader = RecordingReader(path)
        assert len(list(reader.blocks())) == whole_blocks(ends, position), position
        assert reader.damage


def test_the_index_leads_to_what_is_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "r", groups=40)
    without = [block.type for block in RecordingReader(path).blocks(leave_out=[recording.RECORDS])]
    assert without == [4, 3, 2, 5, 6]
    data = bytearray(path.read_bytes())
    ends = frame_ends(data)
    data[ends[20] + 40] ^= 1  # inside a frame of records: not looked at
    path.write_bytes(data)
    reader = RecordingReader(path)
    assert [block.type for block in reader.blocks(leave_out=[recording.RECORDS])] == [4, 3, 2, 5, 6]
    assert (reader.damage, reader.complete) == ("", True)
    assert len(list(reader.blocks())) == 22
    assert f"is damaged at byte {ends[20]}" in reader.damage


def test_it_is_read_while_it_is_written(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", HEADER)
    for count in range(1, 4):
        writer.records(0, records(10))
        writer.flush()
        reader = RecordingReader(tmp_path / "r")
        assert len(list(reader.blocks())) == count
        assert "is being written" in reader.damage
    writer.close()


def test_a_recording_of_the_firewall_is_read() -> None:
    """Of an earlier session, before there were TAKE blocks; counts are those that it reported then."""
    reader = RecordingReader(Path(__file__).with_name("recordings") / "firewall.nfp")
    blocks = list(reader.blocks())
    assert (reader.damage, reader.complete, reader.summary) == ("", True, {"pid": 1234})
    assert sum(len(block.payload) // 16 for block in blocks if block.type == recording.RECORDS) == 480
    document = build_report(reader).document
    assert {function["name"]: function["calls"] for function in document["functions"]}["fw_classify"] == 2
    assert (document["batches"]["count"], document["batches"]["latency_ns"]["max"]) == (2, 671222)
    packets = document["packets"]
    assert (packets["received"], packets["transmitted"], packets["dropped"]) == (64, 56, 8)
    assert packets["slowest"][0]["id"] == "6fcffd6dfd66552d"
    assert packets["slowest"][0]["content_id"] == "7f43796abbbfb697"


def test_a_slow_disk_costs_records_that_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the file takes nothing, records are left out; a LOST record stands in their place."""
    gate = threading.Event()
    append = RecordingFile.append

    def wait(self: RecordingFile, *arguments: Any) -> None:
        assert gate.wait(60)
        append(self, *arguments)

    monkeypatch.setattr(RecordingFile, "append", wait)
    monkeypatch.setattr(
        "otel_nfprobe.recording.recordingfile.FrameQueue.is_full", property(lambda queue: queue._waiting_bytes > 0)
    )
    writer = RecordingWriter(tmp_path / "r", HEADER)
    writer.functions([FUNCTION])
    writer.records(5, records(70_000))
    writer.records(5, records(7, 70_000))
    writer.records(6, records(1))
    writer.clock(np.array([(1, 2, 3 << 32)], ANCHOR))  # facts are kept all the same
    assert writer.left_out == 8
    gate.set()
    writer._sink.flush()
    writer.records(5, records(2, 70_007))
    writer.finish({})
    read = [block for block in RecordingReader(tmp_path / "r").blocks() if block.type == recording.RECORDS]
    assert [(block.thread, len(block.payload) // 16) for block in read] == [
        (5, 65536),
        (5, 4464),
        (5, 1),
        (5, 2),
        (6, 1),
    ]
    lost = [block.array(RECORD)[0].tolist() for block in read if len(block.payload) == 16]
    assert lost == [(7, 5 << 24, 0), (1, 5 << 24, 0)]


def test_a_bound_ends_it_whole(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", HEADER, max_bytes=1 << 20)
    chance = np.random.default_rng(1)
    for _ in range(30):
        rows = records(5_000)
        rows["value"] = chance.integers(0, 1 << 63, len(rows))
        writer.records(0, rows)
        writer.flush()
    assert writer.reached_max
    writer.finish(SUMMARY)
    assert (1 << 20) - 200_000 < os.path.getsize(tmp_path / "r") <= 1 << 20
    reader = RecordingReader(tmp_path / "r")
    assert 5 < len(list(reader.blocks())) < 30
    assert (reader.damage, reader.complete) == ("", True)


@in_parts(4)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_blocks_with_a_right_crc(tmp_path: Path, part: int, data: st.DataObject) -> None:
    start = write(tmp_path / "r", groups=0, finish=False).read_bytes()
    tail = b""
    for kind, thread, payload in data.draw(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2**32 - 1), st.binary(max_size=80)), max_size=4)
    ):
        tail += seal(kind, thread, payload)
    (tmp_path / "hostile").write_bytes(start + tail + data.draw(st.binary(max_size=40)))
    reader = RecordingReader(tmp_path / "hostile")
    blocks = list(reader.blocks())
    assert len(blocks) >= 4
    assert all(block.thread < 1024 for block in blocks if block.type == recording.RECORDS)
    assert reader.complete or reader.damage


@in_parts(4)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_random_files_are_refused(tmp_path: Path, part: int, content: bytes) -> None:
    (tmp_path / "x").write_bytes(MAGIC * (len(content) % 2) + content)
    with pytest.raises(UsageError):
        RecordingReader(tmp_path / "x")


def test_a_claimed_length_allocates_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "r", finish=False)
    with path.open("ab") as file:
        file.write(struct.pack("<IIII", 0xFFFFFFF0, 0xFFFFFFF0, 0, 1))
    reader = RecordingReader(path)
    assert len(list(reader.blocks())) == 7
    assert "length" in reader.damage


def test_unknown_block_types_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "r", finish=False)
    with path.open("ab") as file:
        file.write(seal(77, 0, b"hi"))
    reader = RecordingReader(path)
    assert len(list(reader.blocks())) == 7
    assert "is incomplete" in reader.damage


@pytest.mark.parametrize(("step", "command"), [(1, "pip install --upgrade"), (-1, "nfprobe attach PID --record FILE")])
def test_another_version_is_refused_by_number_with_what_helps(tmp_path: Path, step: int, command: str) -> None:
    data = bytearray(write(tmp_path / "r").read_bytes())
    data[8:12] = struct.pack("<I", VERSION + step)
    length = struct.unpack_from("<I", data, 12)[0]
    data[16 + length : 20 + length] = struct.pack("<I", zlib.crc32(data[: 16 + length]))
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(UsageError, match=f"version {VERSION + step}") as raised:
        RecordingReader(tmp_path / "r")
    assert raised.value.next_command.startswith(command)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="Cannot read"):
            RecordingReader(path)
    with pytest.raises(UsageError, match="Cannot write"):
        RecordingWriter(tmp_path / "none" / "r", HEADER)


def test_full_device() -> None:
    with pytest.raises(NfprobeError, match="No space left"):
        RecordingWriter("/dev/full", HEADER)


@pytest.mark.thorough
def test_full_disk_leaves_whole_blocks(tmp_path: Path) -> None:
    # In a child, because the limit on the file's size would hold for the whole test run.
    code = f"""
import sys, resource; sys.path[:0] = {sys.path!r}
import numpy as np
from tests.unit.recording import test_recording as t
from otel_nfprobe.base.errors import NfprobeError
writer = t.RecordingWriter({str(tmp_path / "r")!r}, t.HEADER)
rows = t.records(1000)
rows["value"] = np.random.default_rng(1).integers(0, 1 << 63, 1000)
writer.records(0, rows)
writer.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (12000, resource.RLIM_INFINITY))
errors = 0
for group in range(3):
    try: writer.records(0, rows); writer.flush()
    except NfprobeError as error: errors += 1; print(error.sentence, error.next_command)
writer.finish({{}})
assert errors == 1 and writer.failed, errors
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    assert f"nfprobe report {tmp_path}/r" in done.stdout
    reader = RecordingReader(tmp_path / "r")
    blocks = list(reader.blocks())
    assert [len(block.payload) for block in blocks] == [16000]
    assert "is incomplete" in reader.damage


def test_reading_takes_bounded_memory(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", HEADER)
    for _ in range(64):
        writer.records(0, records(65536))
    writer.finish({})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = sum(len(block.payload) for block in RecordingReader(tmp_path / "r").blocks() if block.type == 1)
    assert total == 64 * 65536 * 16
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


def test_generated_module_is_that_of_the_proto(tmp_path: Path) -> None:
    # Every message and field of the .proto must be in the description that the generated module carries.
    text = (Path(__file__).parents[3] / "proto/recording.proto").read_text()
    wanted = {}
    for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", text, re.DOTALL):
        wanted[name] = {(n, int(i)) for n, i in re.findall(r"(\w+) = (\d+);", body)}
    found = {
        name: {(field.name, field.number) for field in message.fields}
        for name, message in recording_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert found == wanted
