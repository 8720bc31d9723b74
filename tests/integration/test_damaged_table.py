# SPDX-License-Identifier: Apache-2.0
"""The probe table lies in memory that the target can write: what stands there is never written into code unseen.

While the monitor lives it uses its own copy. After it was killed, what the table says is compared with the files.
"""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.shm.session import FIXED_BYTES, PROBE_COUNT, PROBE_TABLE_OFFSET
from otel_nfprobe.target.leftover import session_descriptors
from otel_nfprobe.target.target import Target
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.target("processes"), pytest.mark.shared]

GLOBS = ["processes-*:*"]
SLOT_GLOBS = ["libz.so*:crc32", "libz.so*:adler32"]
ENTRY_BYTES = ffi.sizeof("struct nfp_probe")
DETACH_PATIENCE_S = 240  # with a full table
RING_BYTES = 16 << 20  # what attach takes


class SharedTable:
    """The session's memory of a target, as the target itself could write it."""

    def __init__(self, pid: int) -> None:
        file = os.open(f"/proc/{pid}/fd/{session_descriptors(pid)[-1]}", os.O_RDWR)
        start = ffi.from_buffer(mmap.mmap(file, FIXED_BYTES), require_writable=True)
        os.close(file)
        self._start = start
        self.header = ffi.cast("struct nfp_session_header *", start)
        self.entries = ffi.cast("struct nfp_probe *", start + PROBE_TABLE_OFFSET)

    def armed(self) -> list[Any]:
        """Entries of probes that are in place."""
        return [self.entries + index for index in range(self.header.probes) if self.entries[index].armed]


class Whole:
    """The code and the slots of a target, to be compared with later."""

    def __init__(self, pid: int) -> None:
        self.target = Target(pid)
        self.modules = [module for module in self.target.modules() if not module.is_probe_library]
        self.code = text_digests(self.target, self.modules)

    def is_as_before(self) -> bool:
        return text_digests(self.target, self.modules) == self.code


@contextmanager
def killed(nfprobe: Any, pid: int, globs: list[str], *options: str) -> Iterator[SharedTable]:
    """What a monitor leaves that was killed with its probes in place."""
    words = [word for glob in globs for word in ("--functions", glob)]
    monitor = nfprobe.start("attach", pid, "--adapter", "none", "--trial", "0s", *words, *options)
    assert wait_until(lambda: nfprobe.run("status", pid).returncode == 0 or monitor.poll() is not None)
    assert monitor.poll() is None, monitor.communicate()
    monitor.kill()
    monitor.communicate()
    yield SharedTable(pid)


@pytest.fixture
def slots(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    library = compile_target("looper", "-shared", "-fPIC")
    program = compile_target("slots", "-Wl,-z,now", str(library), "-l:libz.so.1")
    return Talker(spawn(program, stdin=subprocess.PIPE))


def test_stray_writes_while_the_session_runs(talker: Talker) -> None:
    """Over the whole table: it costs nothing, since the monitor has what it read before."""
    before = Whole(talker.pid)
    with Probed(talker.pid, GLOBS) as probed:
        assert talker.ask("steps 10") == "right"
        table = SharedTable(talker.pid)
        assert table.armed()
        ffi.buffer(table.entries, ENTRY_BYTES * table.header.probes)[:] = b"\xa5" * ENTRY_BYTES * table.header.probes
        table.header.probes = 0xFFFFFFFF
        assert talker.ask("steps 10") == "right"
    probed.assert_exact()
    assert probed.calls["step"] == 20
    assert before.is_as_before()
    assert talker.ask("steps 10") == "right"


def test_stray_writes_over_slots_while_the_session_runs(slots: Talker) -> None:
    before = slot_words(slots.pid)
    with Probed(slots.pid, SLOT_GLOBS, strategy="got") as probed:
        table = SharedTable(slots.pid)
        sites = [int(entry.site) for entry in table.armed()]
        for entry in table.armed():
            ffi.memmove(entry.old_bytes, b"\x10" * 8, 8)
        assert slots.ask("crc 10") == "right"
    probed.assert_exact()
    after = slot_words(slots.pid)
    assert sites
    assert [after[site] for site in sites] == [before[site] for site in sites]
    assert slots.ask("crc 10") == "right"


def slot_words(pid: int) -> dict[int, int]:
    target = Target(pid)
    modules = [module for module in target.modules() if not module.is_probe_library]
    return {
        module.base + slot.address: target.read_word(module.base + slot.address)
        for module in modules
        for slot in module.image.slots
    }


def damage_old_bytes(entry: Any) -> str:
    entry.old_bytes[1] ^= 0xFF
    return "its old bytes are not those of the file"


def damage_site(entry: Any) -> str:
    entry.site += 1
    return ""  # no jump of ours stands there


def damage_trampoline(entry: Any) -> str:
    entry.trampoline += 64
    return "not a jump to a trampoline"


def damage_length(entry: Any) -> str:
    entry.length = 1
    return "its length is impossible"


def damage_kind(entry: Any) -> str:
    entry.kind = 77
    return "its kind is invalid"


@pytest.mark.parametrize("damage", [damage_old_bytes, damage_site, damage_trampoline, damage_length, damage_kind])
def test_a_killed_monitor_and_one_damaged_entry(nfprobe: Any, talker: Talker, damage: Callable[[Any], str]) -> None:
    """It is not restored, which is said; all others are, and the target goes on through its trampoline."""
    before = Whole(talker.pid)
    with killed(nfprobe, talker.pid, GLOBS) as table:
        armed = table.armed()
        entry = armed[0]
        whole = bytes(ffi.buffer(entry))
        site = int(entry.site)
        standing = before.target.read(site, 5)
        said = damage(entry)
    done = nfprobe.run("detach", talker.pid)
    assert done.returncode == 1, done.stderr
    assert f"1 of {len(armed)} probes were not found unchanged; they were left alone." in done.stderr
    if said:
        assert "not restored: probe " in done.stderr
        assert said in done.stderr
    assert before.target.read(site, 5) == standing
    assert talker.ask("steps 10") == talker.ask("spawns 3") == "right"
    ffi.buffer(entry)[:] = whole
    assert nfprobe.json("detach", talker.pid)["restored"] == 1
    assert before.is_as_before()


def test_a_killed_monitor_and_an_entry_that_says_nothing_is_there(nfprobe: Any, talker: Talker) -> None:
    """The code says that something is."""
    before = Whole(talker.pid)
    with killed(nfprobe, talker.pid, GLOBS) as table:
        entry = next(entry for entry in table.armed() if not entry.island)
        entry.armed = 0
    done = nfprobe.run("detach", talker.pid)
    assert done.returncode == 1, done.stderr
    assert f"1 jumps to trampolines remain in the code of process {talker.pid}" in done.stderr
    assert f"({int(entry.site):#x}), which no session open there knows" in done.stderr
    assert talker.ask("steps 10") == talker.ask("spawns 3") == "right"
    entry.armed = 1
    assert nfprobe.json("detach", talker.pid)["restored"] == 1
    assert before.is_as_before()


def hide_session(talker: Talker) -> None:
    for descriptor in session_descriptors(talker.pid):
        assert talker.ask(f"close_descriptor {descriptor}") == "right"


def test_a_killed_monitor_and_a_hidden_session(nfprobe: Any, talker: Talker) -> None:
    """The memory that says what was changed is open nowhere: what stands in the code is said."""
    with killed(nfprobe, talker.pid, GLOBS) as table:
        armed = len(table.armed())
        hide_session(talker)
    status = nfprobe.run("status", talker.pid)
    assert status.returncode == 1
    assert "has closed its descriptor" in status.stdout
    assert f"nfprobe detach {talker.pid}" in status.stdout
    done = nfprobe.run("detach", talker.pid)
    assert done.returncode == 1, done.stderr
    assert f"{armed} jumps to trampolines remain in the code of process {talker.pid}" in done.stderr
    assert "nothing is attached" not in done.stderr
    assert talker.ask("steps 10") == talker.ask("spawns 3") == "right"


def test_a_killed_monitor_and_hidden_slots(nfprobe: Any, slots: Talker) -> None:
    with killed(nfprobe, slots.pid, SLOT_GLOBS, "--strategy", "got") as table:
        entry, *others = table.armed()
        entry.armed = 0
    done = nfprobe.run("detach", slots.pid)
    assert done.returncode == 1, done.stderr
    assert f"1 slots of process {slots.pid} point to trampolines" in done.stderr
    assert f"({int(entry.site):#x})" in done.stderr
    assert others
    hide_session(slots)
    done = nfprobe.run("detach", slots.pid)
    assert done.returncode == 1, done.stderr
    assert f"1 slots of process {slots.pid} point to trampolines" in done.stderr
    assert slots.ask("crc 10") == slots.ask("adler 10") == "right"


def test_a_living_monitor_and_a_hidden_session(nfprobe: Any, talker: Talker) -> None:
    """It is found by the memory that the target has mapped."""
    before = Whole(talker.pid)
    words = ("--adapter", "none", "--trial", "0s", "--functions", GLOBS[0])
    monitor = nfprobe.start("attach", talker.pid, *words)
    assert wait_until(lambda: nfprobe.run("status", talker.pid).returncode == 0 or monitor.poll() is not None)
    hide_session(talker)
    second = nfprobe.run("attach", talker.pid, *words, "--for", "0.1s")
    assert second.returncode == 1, second.stderr
    assert f"Another nfprobe, process {monitor.pid}, is attached" in second.stderr
    status = nfprobe.run("status", talker.pid).stdout  # read where the monitor has it open
    assert f"{talker.pid}: " in status
    assert f"monitor {monitor.pid}; the target has closed its descriptor of the session's memory" in status
    assert nfprobe.json("detach", talker.pid)["monitor"] == monitor.pid
    output = monitor.communicate()
    assert before.is_as_before()
    # By that descriptor the helper thread sees that its monitor lives: it has left, and the session says so.
    assert monitor.returncode == 1, output
    assert "The helper thread" in output[1]


def test_an_attach_that_finds_damaged_leftovers(nfprobe: Any, talker: Talker) -> None:
    before = Whole(talker.pid)
    with killed(nfprobe, talker.pid, GLOBS) as table:
        entry = next(entry for entry in table.armed() if entry.kind == lib.NFP_SITE_SINGLE)
        damage_old_bytes(entry)
    with Probed(talker.pid, GLOBS, ring_bytes=RING_BYTES) as probed:  # the same: the session's memory is taken up again
        assert talker.ask("steps 10") == "right"
    assert [said for said in probed.said if said.startswith("not restored: ") and "of the file" in said]
    assert probed.not_restored == []
    damage_old_bytes(entry)
    assert nfprobe.json("detach", talker.pid)["restored"] == 1
    assert before.is_as_before()


def test_a_killed_monitor_and_a_damaged_slot(nfprobe: Any, slots: Talker) -> None:
    before = slot_words(slots.pid)
    with killed(nfprobe, slots.pid, SLOT_GLOBS, "--strategy", "got") as table:
        entry, *others = table.armed()
        sites = [int(entry.site) for entry in table.armed()]
        whole = bytes(ffi.buffer(entry))
        other = next(value for value in before.values() if value != int.from_bytes(whole[40:48], "little") and value)
        ffi.memmove(entry.old_bytes, other.to_bytes(8, "little"), 8)
    done = nfprobe.run("detach", slots.pid)
    assert done.returncode == 1, done.stderr
    assert "its old value is not one that the dynamic linker stores" in done.stderr
    after = slot_words(slots.pid)
    assert [site for site in sites if after[site] != before[site]] == [int(entry.site)]
    assert slots.ask("crc 10") == slots.ask("adler 10") == "right"
    ffi.buffer(entry)[:] = whole
    assert nfprobe.json("detach", slots.pid)["restored"] == 1
    after = slot_words(slots.pid)
    assert [after[site] for site in sites] == [before[site] for site in sites]
    assert others


def test_a_full_table_of_overlapping_entries(nfprobe: Any, talker: Talker) -> None:
    before = Whole(talker.pid)
    with killed(nfprobe, talker.pid, GLOBS) as table:
        count = len(table.armed())
        first = bytes(ffi.buffer(table.armed()[0]))
        start = int(table.armed()[0].site)
        table.header.probes = PROBE_COUNT
        for index in range(count, PROBE_COUNT):
            ffi.buffer(table.entries + index)[:] = first
            table.entries[index].site = start + index % 4096 if index % 2 else start
            table.entries[index].armed = 1
    done = nfprobe.run("detach", talker.pid, timeout=DETACH_PATIENCE_S)
    assert done.returncode == 1, done.stderr
    assert "it overlaps another one" in done.stderr
    assert len(done.stderr.splitlines()) < 20
    assert before.is_as_before()
    assert talker.ask("steps 10") == talker.ask("spawns 3") == "right"


def test_a_trampoline_of_an_earlier_attach_that_is_not_there(talker: Talker) -> None:
    """It is not jumped to: another one is made."""
    for number in range(3):
        with Probed(talker.pid, GLOBS) as probed:
            assert talker.ask("steps 10") == "right"
        probed.assert_exact()
        assert probed.calls["step"] == 10
        table = SharedTable(talker.pid)
        for index in range(table.header.probes):
            table.entries[index].trampoline += 16 * (number + 1)
