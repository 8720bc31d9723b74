# SPDX-License-Identifier: Apache-2.0
"""Where in the kernel a thread sleeps, by the names in its call chain."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from otel_nfprobe.linux import kallsyms, kernelplaces
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
    rows = "200 T __x64_sys_read", "100 t pipe_read", "150 d no_function", "180 t vfs_read\t[module]"
    symbols.write_text("".join(f"{row:0>{len(row) + 13}}\n" for row in rows))
    monkeypatch.setattr(kallsyms, "KALLSYMS", symbols)
    places = KernelPlaces()
    assert places.find([0x110, 0x190, 0x2FF]) == KernelPlace(PlaceKind.CALL, "read", "pipe_read")
    assert places.find([0x10, 1 << 63]) == KernelPlace(PlaceKind.CALL, "read", "")
    assert places.find([]) is None
    assert not places.is_hidden


@pytest.mark.parametrize("text", ["0000000000000000 T schedule\n", "", "\x00\xff what T\n", "0000000000000100 T"])
def test_hidden_addresses_name_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    symbols = tmp_path / "kallsyms"
    symbols.write_text(text)
    monkeypatch.setattr(kallsyms, "KALLSYMS", symbols)
    places = KernelPlaces()
    assert places.find([0x110]) is None
    assert places.is_hidden


def test_names_that_take_too_long_are_waited_for_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A drain that waited for them at each chain would leave the rings to fill."""
    symbols = tmp_path / "kallsyms"
    os.mkfifo(symbols)  # nobody writes: reading begins when it has a writer
    monkeypatch.setattr(kallsyms, "KALLSYMS", symbols)
    monkeypatch.setattr(kernelplaces, "READING_S_MAX", 0.01)
    places = KernelPlaces()
    assert places.find([0x110]) is None
    monkeypatch.setattr(kernelplaces, "READING_S_MAX", None)  # from here on a wait would not end
    assert places.find([0x110]) is None
    symbols.write_text(f"{'100 T ksys_read':0>28}\n")
    while (found := places.find([0x110])) is None:
        pass
    assert found == KernelPlace(PlaceKind.CALL, "read", "")


@pytest.mark.parametrize("chunk_bytes", [40, 64, 1 << 16])
def test_functions_are_those_of_all_symbols(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chunk_bytes: int) -> None:
    random_, lines = random.Random(3), []
    for number in range(300):
        module = random_.choice(["", "\t[kvm]"])
        lines.append(f"{random_.randrange(1 << 64):016x} {random_.choice('tTwWdDbr')} name{'x' * number}{module}")
    lines += ["0000000000000000 t hidden", "x" * 16 + " t no_address", "f" * 16 + " t", "", "short"]
    random_.shuffle(lines)
    (tmp_path / "kallsyms").write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(kallsyms, "KALLSYMS", tmp_path / "kallsyms")
    monkeypatch.setattr(kallsyms, "_CHUNK_BYTES", chunk_bytes)
    addresses, names = kallsyms.read_functions()
    rows = (line.split() for line in lines)
    known = [(int(row[0], 16), row[2]) for row in rows if len(row) > 2 and row[0][0] != "x" and row[1] in "tTwW"]
    expected = sorted(pair for pair in known if pair[0])
    assert list(zip(addresses.tolist(), names, strict=True)) == expected
    assert list(names[:2]) == [name for _, name in expected[:2]]
