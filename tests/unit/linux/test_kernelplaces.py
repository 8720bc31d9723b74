# SPDX-License-Identifier: Apache-2.0
"""Where in the kernel a thread sleeps, by the names in its call chain."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_nfprobe.linux import kallsyms
from otel_nfprobe.linux.kernelplaces import KernelPlace, KernelPlaces, PlaceKind, find_place

ENTRY = ["do_syscall_64", "entry_SYSCALL_64_after_hwframe"]
SCHEDULE = ["__traceiter_sched_switch", "__schedule", "schedule"]


@pytest.mark.parametrize(
    ("frames", "kind", "call", "function"),
    [
        (
            "io_schedule bit_wait_io __wait_on_bit jbd2_log_wait_commit ext4_sync_file vfs_fsync_range do_fsync"
            " __x64_sys_fsync",
            PlaceKind.CALL,
            "fsync",
            "ext4_sync_file",
        ),
        ("anon_pipe_read vfs_read ksys_read __x64_sys_read", PlaceKind.CALL, "read", "anon_pipe_read"),
        # Where the entry only jumps on, it has no frame.
        ("anon_pipe_read vfs_read ksys_read", PlaceKind.CALL, "read", "anon_pipe_read"),
        ("__skb_wait_for_more_packets udp_recvmsg __sys_recvfrom", PlaceKind.CALL, "recvfrom", "udp_recvmsg"),
        ("ep_poll do_epoll_wait", PlaceKind.CALL, "epoll_wait", "ep_poll"),
        ("futex_do_wait __futex_wait futex_wait do_futex", PlaceKind.WAIT, "futex", "futex_wait"),
        ("futex_do_wait __futex_wait futex_wait do_futex __x64_sys_futex", PlaceKind.WAIT, "futex", "futex_wait"),
        (
            "io_schedule folio_wait_bit_common filemap_fault __do_fault do_fault __handle_mm_fault handle_mm_fault"
            " do_user_addr_fault exc_page_fault asm_exc_page_fault",
            PlaceKind.FAULT,
            "",
            "filemap_fault",
        ),
        ("do_signal_stop get_signal exit_to_user_mode_loop", PlaceKind.STOPPED, "", ""),
        ("__x64_sys_sched_yield", PlaceKind.CALL, "sched_yield", ""),
    ],
)
def test_chains_of_the_kernel(frames: str, kind: PlaceKind, call: str, function: str) -> None:
    assert find_place(SCHEDULE + frames.split() + ENTRY) == KernelPlace(kind, call, function)


def test_a_chain_that_says_nothing() -> None:
    assert find_place([]) is None
    assert find_place(["", "schedule", "ret_from_fork"]) is None


def test_addresses_are_named_by_the_function_that_they_lie_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    symbols = tmp_path / "kallsyms"
    symbols.write_text("00200 T __x64_sys_read\n00100 t pipe_read\n00150 d no_function\n00180 t vfs_read\t[module]\n")
    monkeypatch.setattr(kallsyms, "KALLSYMS", symbols)
    places = KernelPlaces()
    assert places.find([0x110, 0x190, 0x2FF]) == KernelPlace(PlaceKind.CALL, "read", "pipe_read")
    assert places.find([0x10, 1 << 63]) == KernelPlace(PlaceKind.CALL, "read", "")
    assert places.find([]) is None
    assert not places.is_hidden


@pytest.mark.parametrize("text", ["0000000000000000 T schedule\n", "", "\x00\xff what T\n"])
def test_hidden_addresses_name_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    symbols = tmp_path / "kallsyms"
    symbols.write_text(text)
    monkeypatch.setattr(kallsyms, "KALLSYMS", symbols)
    places = KernelPlaces()
    assert places.find([0x110]) is None
    assert places.is_hidden
