# SPDX-License-Identifier: Apache-2.0
"""The regions of the session's memory."""

from otel_nfprobe._core import ffi
from otel_nfprobe.shm import session


def test_regions_do_not_overlap() -> None:
    assert ffi.sizeof("struct nfp_session_header") <= session.PROGRAM_OFFSET
    program_end = session.PROGRAM_OFFSET + session.PROGRAM_COUNT * ffi.sizeof("struct nfp_program")
    assert program_end <= session.THREAD_TABLE_OFFSET
    thread_end = session.THREAD_TABLE_OFFSET + session.THREAD_COUNT * ffi.sizeof("struct nfp_thread_shared")
    assert thread_end <= session.PROBE_TABLE_OFFSET
    probe_end = session.PROBE_TABLE_OFFSET + session.PROBE_COUNT * ffi.sizeof("struct nfp_probe")
    assert probe_end <= session.ARENA_OFFSET
    assert session.ARENA_OFFSET + session.ARENA_BYTES <= session.RING_OFFSET
