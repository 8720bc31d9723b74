# SPDX-License-Identifier: Apache-2.0
"""Recordings: what is written comes back; cut or damaged, all whole blocks before the damage do."""

from __future__ import annotations

import os
import re
import resource
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from otel_nfprobe import recording, recording_pb2
from otel_nfprobe.errors import NfprobeError, UsageError
from otel_nfprobe.recording import FunctionInfo, RecordingHeader, RecordingReader, RecordingWriter, ThreadInfo

RECORD = np.dtype([("word", "<u8"), ("tag", "<u4"), ("rsp", "<u4")])
ANCHOR = np.dtype([("ticks", "<u8"), ("unix_ns", "<u8"), ("ns_per_tick_q32", "<u8")])
HEADER = RecordingHeader("0.1.0", "s1", 42, "/bin/nf", "host", 123, 2.6e9, {"service.name": "nf"}, {"packets": "all"})
FUNCTION = FunctionInfo(0, 1, "/bin/nf", 0x1000, 64, "fw_receive", "dynsym", "in-stack call")
COUNTERS = recording.ThreadCounters(0, 5, 6, 7, 8, 9, 10, 11, 12, (1, 2, 3))
SUMMARY = {"pid": 42, "records": {"read": 300}}


def records(count: int, first: int = 0) -> np.ndarray:
    array = np.zeros(count, RECORD)
    array["word"] = np.arange(first, first + count)
    array["tag"] = 1
    return array


def write(path: Path, groups: int = 3, per_group: int = 100, finish: bool = True) -> Path:
    writer = RecordingWriter(path, HEADER)
    writer.functions([FUNCTION])
    writer.threads([ThreadInfo(0, 43, "worker")])
    writer.clock(np.array([(1, 2, 3 << 32)], ANCHOR))
    for group in range(groups):
        writer.records(group % 2, records(per_group, group * per_group))
    writer.counters([COUNTERS])
    writer.finish(SUMMARY) if finish else writer.close()
    return path


def block_ends(data: bytes) -> list[int]:
    # Where the header and each block end, by the drawing in proto/README.md and not by the reader.
    at = 16 + struct.unpack_from("<I", data, 12)[0] + 4
    ends = [at]
    while at < len(data):
        at += 16 + struct.unpack_from("<I", data, at + 4)[0]
        ends.append(at)
    return ends


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
    assert "was cut" in reader.damage
    assert not reader.complete


def test_cut_at_every_1000th_byte(tmp_path: Path) -> None:
    data = write(tmp_path / "r", groups=40, per_group=300).read_bytes()
    ends = block_ends(data)
    cut = tmp_path / "cut"
    for length in range(0, len(data), 1000):
        cut.write_bytes(data[:length])
        if length < ends[0]:
            with pytest.raises(UsageError):
                RecordingReader(cut)
            continue
        reader = RecordingReader(cut)
        assert len(list(reader.blocks())) == sum(end <= length for end in ends) - 1
        assert reader.damage
        assert not reader.complete


def test_every_byte_flipped(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "r", groups=2, per_group=5).read_bytes())
    ends = block_ends(data)
    path = tmp_path / "flipped"
    for position in range(len(data)):
        for mask in (0x01, 0x80, 0xFF):
            data[position] ^= mask
            path.write_bytes(data)
            data[position] ^= mask
            if position < ends[0]:
                with pytest.raises(UsageError):
                    RecordingReader(path)
                continue
            reader = RecordingReader(path)
            assert len(list(reader.blocks())) == sum(end <= position for end in ends) - 1, position
            assert reader.damage


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_hostile_blocks_with_a_right_crc(tmp_path: Path, data: st.DataObject) -> None:
    start = write(tmp_path / "r", groups=0, finish=False).read_bytes()
    tail = b""
    for kind, thread, payload in data.draw(
        st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2**32 - 1), st.binary(max_size=80)), max_size=4)
    ):
        crc = zlib.crc32(payload, zlib.crc32(struct.pack("<III", kind, len(payload), thread)))
        tail += struct.pack("<IIII", kind, len(payload), crc, thread) + payload
    (tmp_path / "hostile").write_bytes(start + tail + data.draw(st.binary(max_size=40)))
    reader = RecordingReader(tmp_path / "hostile")
    blocks = list(reader.blocks())
    assert len(blocks) >= 4
    assert all(block.thread < 1024 for block in blocks if block.type == recording.RECORDS)
    assert reader.complete or reader.damage


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_random_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(recording.MAGIC * (len(content) % 2) + content)
    with pytest.raises(UsageError):
        RecordingReader(tmp_path / "x")


def test_a_claimed_length_allocates_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "r", finish=False)
    with path.open("ab") as file:
        file.write(struct.pack("<IIII", 1, 0xFFFFFFF0, 0, 0))
    reader = RecordingReader(path)
    assert len(list(reader.blocks())) == 7
    assert "length" in reader.damage


def test_unknown_block_types_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "r", finish=False)
    with path.open("ab") as file:
        file.write(struct.pack("<IIII", 77, 2, zlib.crc32(b"hi", zlib.crc32(struct.pack("<III", 77, 2, 0))), 0) + b"hi")
    reader = RecordingReader(path)
    assert len(list(reader.blocks())) == 7
    assert "was cut" in reader.damage


def test_a_later_version_is_refused_by_number(tmp_path: Path) -> None:
    data = bytearray(write(tmp_path / "r").read_bytes())
    data[8:12] = struct.pack("<I", 2)
    length = struct.unpack_from("<I", data, 12)[0]
    data[16 + length : 20 + length] = struct.pack("<I", zlib.crc32(data[: 16 + length]))
    (tmp_path / "r").write_bytes(data)
    with pytest.raises(UsageError, match="version 2"):
        RecordingReader(tmp_path / "r")


def test_missing_file_and_directory(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="Cannot read"):
            RecordingReader(path)
    with pytest.raises(UsageError, match="Cannot write"):
        RecordingWriter(tmp_path / "none" / "r", HEADER)


def test_full_device() -> None:
    with pytest.raises(NfprobeError, match="No space left"):
        RecordingWriter("/dev/full", HEADER)


def test_full_disk_leaves_whole_blocks(tmp_path: Path) -> None:
    # In a child, because the limit on the file's size would hold for the whole test run.
    code = f"""
import sys, resource; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
import test_recording as t
from otel_nfprobe.errors import NfprobeError
writer = t.RecordingWriter({str(tmp_path / "r")!r}, t.HEADER)
writer.records(0, t.records(1000))
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
errors = 0
for group in range(3):
    try: writer.records(0, t.records(1000))
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
    assert "was cut" in reader.damage


def test_reading_takes_bounded_memory(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", HEADER)
    for _ in range(64):
        writer.records(0, records(65536))
    writer.finish({})
    assert os.path.getsize(tmp_path / "r") > 64 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    total = sum(len(block.payload) for block in RecordingReader(tmp_path / "r").blocks() if block.type == 1)
    assert total == 64 * 65536 * 16
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10


def test_generated_module_is_that_of_the_proto(tmp_path: Path) -> None:
    # Every message and field of the .proto must be in the description that the generated module carries.
    text = (Path(__file__).parents[2] / "proto/recording.proto").read_text()
    wanted = {}
    for name, body in re.findall(r"message (\w+) \{(.*?)\n\}", text, re.DOTALL):
        wanted[name] = {(n, int(i)) for n, i in re.findall(r"(\w+) = (\d+);", body)}
    found = {
        name: {(field.name, field.number) for field in message.fields}
        for name, message in recording_pb2.DESCRIPTOR.message_types_by_name.items()
    }
    assert found == wanted
