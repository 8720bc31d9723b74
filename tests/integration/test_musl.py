# SPDX-License-Identifier: Apache-2.0
"""Programs on musl, run directly and from a root directory laid out as Alpine's: exact counts from threads that
are older than the probe library and from newer ones, whatever thread-local storage the program has itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.target.target import Target
from tests.support.probed import Probed
from tests.support.rooms import MUSL_LINKER, Room, compile_musl, musl_root_of, need_unshare

pytestmark = [pytest.mark.integration, pytest.mark.shared]

Spawn = Callable[..., "subprocess.Popen[str]"]
LIBRARY_WITH_STORAGE = "__thread int stored[50];\nint *get_stored(void) { return stored; }\n"


@pytest.mark.parametrize(
    ("size", "alignment"),
    [(1, 1), (13, 1), (24, 8), (100, 64), (4000, 32)],
)
def test_storage_of_the_program(size: int, alignment: int, spawn: Spawn, tmp_path: Path) -> None:
    program = compile_musl(tmp_path / "where-musl", f"-DSTORAGE={size}", f"-DALIGNED={alignment}")
    room = Room(spawn, [program])
    assert Target(room.pid).runs_on_musl
    assert room.measure().monitor.attachment.injected.fresh
    assert not room.measure().monitor.attachment.injected.fresh


def test_alpines_layout(spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    root = musl_root_of(tmp_path, compile_musl(tmp_path / "where-musl"))
    room = Room(spawn, [*need_unshare("--pid", "--fork", "--kill-child"), "chroot", root, "/where"])
    room.measure()
    assert not [file for file in (root / "tmp").iterdir() if not file.name.startswith("libnfprobe-arena-")]
    target = nfprobe.json("doctor", room.pid, status=2)["target"]
    assert target["place"]["c_library"] == "musl"
    assert "pid" in target["place"]["namespaces"]


def test_through_the_dynamic_linker(spawn: Spawn, tmp_path: Path) -> None:
    Room(spawn, [MUSL_LINKER, compile_musl(tmp_path / "where-musl")]).measure()


def test_no_room_in_an_old_thread(spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    """A library with thread-local storage that was loaded later has taken what lies below the old threads'."""
    program = compile_musl(tmp_path / "where-musl")
    (tmp_path / "stored.c").write_text(LIBRARY_WITH_STORAGE)
    library = tmp_path / "stored.so"
    subprocess.run(["musl-gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "stored.c")], check=True)
    room = Room(spawn, [program], env={"LOADED": str(library)})
    assert room.talker.ask("load 1") == "loaded"
    before = room.maps()
    done = nfprobe.run("attach", room.pid, "--functions", "*:step")
    assert done.returncode == RefusedError.exit_status
    assert "is older than a library with thread-local storage" in done.stderr
    assert room.maps() == before
    room.call(3)


def test_a_library_that_is_loaded_after_ours(spawn: Spawn, tmp_path: Path) -> None:
    program = compile_musl(tmp_path / "where-musl")
    (tmp_path / "stored.c").write_text(LIBRARY_WITH_STORAGE)
    library = tmp_path / "stored.so"
    subprocess.run(["musl-gcc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "stored.c")], check=True)
    room = Room(spawn, [program], env={"LOADED": str(library)})
    room.measure()
    assert room.talker.ask("load 1") == "loaded"
    room.measure()


def test_threads_come_and_go_meanwhile(spawn: Spawn, tmp_path: Path) -> None:
    program = compile_musl(tmp_path / "where-musl")
    for _ in range(4):
        room = Room(spawn, [program])
        assert room.talker.ask("storm 1") == "right"
        probed = Probed(room.pid, ["*:step"])
        with probed:
            room.call(200)
        assert room.talker.ask("storm 0") == "right"
        room.call(3)
        assert probed.not_restored == []
        assert probed.calls["step"] > 0


def test_a_static_program_is_refused(spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    room = Room(spawn, [compile_musl(tmp_path / "where-musl", "-static")])
    done = nfprobe.run("attach", room.pid, "--functions", "*:step")
    assert done.returncode == RefusedError.exit_status
    assert "statically linked" in done.stderr
