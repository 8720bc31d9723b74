# SPDX-License-Identifier: Apache-2.0
"""The numbers that Python repeats from session.h, boot.h and trampoline.h are those of the headers."""

import re
from pathlib import Path

import pytest
from otel_nfprobe._core import ffi

from otel_nfprobe.shm import session

INCLUDE = Path(__file__).resolve().parents[3] / "native" / "include" / "nfprobe"


def defines() -> dict[str, int]:
    found = {}
    for header in ("record.h", "ring.h", "session.h"):
        for name, value in re.findall(r"^#define (\w+) (.+?)(?: *//.*)?$", (INCLUDE / header).read_text(), re.M):
            if re.fullmatch(r"[0-9a-fx()< ]+u?", value):
                found[name] = int(eval(value.rstrip("u")))
    return found


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        (session.FIXED_BYTES, "NFP_ARENA_OFFSET"),
        (session.ARENA_OFFSET, "NFP_ARENA_OFFSET"),
        (session.ARENA_BYTES, "NFP_ARENA_BYTES"),
        (session.THREAD_TABLE_OFFSET, "NFP_THREAD_TABLE_OFFSET"),
        (session.THREAD_COUNT, "NFP_THREAD_COUNT"),
        (session.PROBE_TABLE_OFFSET, "NFP_PROBE_TABLE_OFFSET"),
        (session.PROBE_COUNT, "NFP_PROBE_COUNT"),
        (session.PROGRAM_OFFSET, "NFP_PROGRAM_OFFSET"),
        (session.PROGRAM_COUNT, "NFP_PROGRAM_COUNT"),
        (session.RING_OFFSET, "NFP_RING_OFFSET"),
        (session.RING_BYTES_MIN, "NFP_RING_BYTES_MIN"),
        (session.RING_BYTES_MAX, "NFP_RING_BYTES_MAX"),
        (session.MAGIC, "NFP_SESSION_MAGIC"),
        (session.VERSION, "NFP_SESSION_VERSION"),
        (session.GATE_OUTER, "NFP_GATE_OUTER"),
        (session.GATE_INNER, "NFP_GATE_INNER"),
        (session.GATE_PACKETS, "NFP_GATE_PACKETS"),
        (len(session.LOST_CLASSES), "NFP_LOST_CLASSES"),
    ],
)
def test_session_constants(ours: int, name: str) -> None:
    assert ours == defines()[name]


def test_regions_do_not_overlap() -> None:
    assert ffi.sizeof("struct nfp_session_header") <= session.PROGRAM_OFFSET
    program_end = session.PROGRAM_OFFSET + session.PROGRAM_COUNT * ffi.sizeof("struct nfp_program")
    assert program_end <= session.THREAD_TABLE_OFFSET
    thread_end = session.THREAD_TABLE_OFFSET + session.THREAD_COUNT * ffi.sizeof("struct nfp_thread_shared")
    assert thread_end <= session.PROBE_TABLE_OFFSET
    probe_end = session.PROBE_TABLE_OFFSET + session.PROBE_COUNT * ffi.sizeof("struct nfp_probe")
    assert probe_end <= session.ARENA_OFFSET
    assert session.ARENA_OFFSET + session.ARENA_BYTES <= session.RING_OFFSET
