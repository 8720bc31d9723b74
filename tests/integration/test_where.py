# SPDX-License-Identifier: Apache-2.0
"""Targets in other namespaces, below other root directories, of other users, with files that are gone: counts
are exact, or the refusal is named and nothing is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.target.loadedlibrary import library_path
from otel_nfprobe.target.target import Target
from tests.support.other_user import NOBODY, run_as
from tests.support.rooms import Room, need_unshare, root_of

pytestmark = [pytest.mark.integration, pytest.mark.shared]

Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def where(compile_target: Callable[..., Path]) -> Path:
    return compile_target("where")


@pytest.fixture
def for_all(where: Path) -> Iterator[Path]:
    """The program where every user can reach it."""
    if not _can_reach(library_path()):
        pytest.skip("another user cannot reach the probe library of this checkout")
    with tempfile.TemporaryDirectory(prefix="nfprobe-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(shutil.copy(where, Path(folder) / "where"))


@pytest.mark.parametrize(
    "kinds",
    [
        ("--net",),
        ("--pid", "--fork", "--kill-child", "--mount-proc"),
        ("--pid", "--fork", "--kill-child"),  # its /proc shows the numbers of the namespace above
        ("--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts"),
    ],
    ids=lambda kinds: "+".join(word.strip("-") for word in kinds[:2]),
)
def test_namespaces(kinds: tuple[str, ...], where: Path, spawn: Spawn) -> None:
    room = Room(spawn, [*need_unshare(*kinds), where])
    probed = room.measure()
    names = {thread.tid: thread.name for thread in probed.target.threads()}
    standing = [thread.tid for thread in probed.threads if thread.tid in names]
    assert room.pid in standing  # as the monitor numbers them, not as the target does
    assert len(standing) == 4
    assert all(names[tid].startswith("where") for tid in standing)


def test_a_second_session_finds_the_library(where: Path, spawn: Spawn) -> None:
    room = Room(spawn, [*need_unshare("--pid", "--fork", "--kill-child", "--mount-proc"), where])
    assert room.measure().monitor.attachment.injected.fresh
    assert not room.measure().monitor.attachment.injected.fresh


def test_private_mounts_and_no_proc(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    script = f"mount -t tmpfs none {tmp_path}; umount -l /proc; exec {where}"
    room = Room(spawn, [*need_unshare("--mount"), "sh", "-c", script])
    assert not os.path.exists(f"/proc/{room.pid}/root/proc/self")
    room.measure()


def test_files_of_a_foreign_user_namespace(for_all: Path, spawn: Spawn) -> None:
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    script = f"mount -t tmpfs none /dev/shm && mount -t tmpfs none /proc && exec {for_all}"
    need_unshare("--user", "--map-root-user", "--mount")
    room = Room(spawn, [*words, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script])
    room.measure()


def test_a_bare_root_directory(where: Path, spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    root = root_of(tmp_path, where)
    room = Room(spawn, ["chroot", root, "/where"])
    room.measure()
    assert not room.measure().monitor.attachment.injected.fresh
    assert sorted(path.name for path in root.iterdir()) == ["lib", "lib64", "where"]  # the library's file is gone
    place = nfprobe.json("doctor", room.pid, status=2)["target"]["place"]
    assert (place["root"], place["sees_proc"], place["c_library"]) == (str(root), False, "glibc")


def test_a_link_in_the_root_directory_leads_nowhere(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    root = root_of(tmp_path, where)
    (root / "tmp").symlink_to(outside)
    (root / "work").mkdir()
    script = f"mount --bind {root} {root}; mount -o remount,ro,bind {root}; exec chroot {root} /where"
    room = Room(spawn, [*need_unshare("--mount"), "sh", "-c", script])
    with pytest.raises(RefusedError):
        check_target(Target(room.pid))
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("has_room", [True, False])
def test_a_read_only_root_directory(has_room: bool, where: Path, spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    root = root_of(tmp_path, where)
    for name in ("tmp", "run"):
        (root / name).mkdir()
    script = f"mount --bind {root} {root}; mount -o remount,ro,bind {root}; mount -t tmpfs -o noexec none {root}/tmp; "
    script += f"mount -t tmpfs none {root}/run; " if has_room else ""
    room = Room(spawn, [*need_unshare("--mount"), "sh", "-c", f"{script} exec chroot {root} /where"])
    if has_room:
        room.measure()
        return
    before = room.maps()
    done = nfprobe.run("attach", room.pid, "--functions", "*:step")
    assert done.returncode == 3
    assert "sees no /proc and no directory from which a library can be loaded" in done.stderr
    assert room.maps() == before
    room.call(3)


def test_a_deleted_program(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    program = shutil.copy(where, tmp_path / "where-deleted")
    room = Room(spawn, [program])
    os.unlink(program)
    room.measure()


def test_a_replaced_program(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    program = tmp_path / "where-replaced"
    shutil.copy(where, program)
    room = Room(spawn, [program])
    build_id = Target(room.pid).modules()[0].build_id
    program.unlink()
    shutil.copy(shutil.which("sleep") or "", program)
    target = Target(room.pid)
    assert target.modules()[0].build_id == build_id
    room.measure()


def test_a_replaced_library_without_the_right_to_read_it(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    root = root_of(tmp_path, where)
    library = root / "lib/x86_64-linux-gnu/libc.so.6"
    room = Room(spawn, ["chroot", root, "/where"])
    shutil.copy("/lib/x86_64-linux-gnu/libm.so.6", tmp_path / "new")
    os.replace(tmp_path / "new", library)
    assert "libc.so.6" in [module.image.soname for module in Target(room.pid).modules()]  # by what is mapped

    def look() -> str:
        target = Target(room.pid)
        names = [module.image.soname for module in target.modules()]
        return f"{names} {target.unreadable}"

    capabilities = ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"]
    answer = run_as(NOBODY, capabilities, look)
    assert "libm.so.6" not in answer.split("]")[0]
    assert str(library) in answer.split("]")[1]


def _can_reach(path: Path) -> bool:
    return run_as(NOBODY, [], lambda: str(os.access(path, os.R_OK))) == "True"


@pytest.mark.parametrize(
    ("owner", "capabilities"),
    [(NOBODY, []), (1000, ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"]), (0, ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"])],
)
def test_a_monitor_that_is_not_root(owner: int, capabilities: list[str], for_all: Path, spawn: Spawn) -> None:
    words = ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups"]
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if not capabilities and scope.exists() and scope.read_text().strip() != "0":
        pytest.skip("Yama keeps users from tracing their own processes here")
    room = Room(spawn, [*words, for_all])

    def measure() -> str:
        room.measure()
        return "exact"

    assert run_as(NOBODY, capabilities, measure) == "exact"
    assert run_as(NOBODY, capabilities, measure) == "exact"


def test_one_capability_is_not_enough(for_all: Path, spawn: Spawn) -> None:
    room = Room(spawn, ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", for_all])
    before = room.maps()

    def check() -> str:
        try:
            check_target(Target(room.pid))
        except NfprobeError as error:
            return error.sentence
        return "allowed"

    answer = run_as(NOBODY, ["CAP_SYS_PTRACE"], check)
    assert "CAP_SYS_PTRACE and CAP_DAC_OVERRIDE" in answer
    assert room.maps() == before


def test_through_the_dynamic_linker(where: Path, spawn: Spawn) -> None:
    Room(spawn, ["/lib64/ld-linux-x86-64.so.2", where]).measure()
