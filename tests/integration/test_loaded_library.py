# SPDX-License-Identifier: Apache-2.0
"""Targets that have loaded another file than the probe library, or run one under its name: no address in it is used."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.probes import inject
from otel_nfprobe.target.library_file import LibraryFile, write_library
from otel_nfprobe.target.loadedlibrary import library_name, library_offset, library_path
from otel_nfprobe.target.target import Target
from tests.support.hostile import Bait, assert_lives, attach, has_probes
from tests.support.probed import Talker
from tests.support.rooms import Room, need_unshare, root_of

pytestmark = [pytest.mark.integration, pytest.mark.shared]

Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def where(compile_target: Callable[..., Path]) -> Path:
    return compile_target("where")


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("load-copy", "it has not mapped the file it was given"),
        ("load-patched", "the mapped content differs from the library's file"),
        ("load-both", "its helper thread runs other code"),
    ],
)
def test_what_was_loaded(mode: str, reason: str, start_hostile: Callable[..., Talker], bait: Bait) -> None:
    """Another file with the same symbols: all would go well, until somebody changes that file."""
    talker = start_hostile(mode)
    attach(talker).assert_told(1, f"What process {talker.pid} has loaded is not the probe library: {reason}.")
    bait.assert_untouched()
    assert_lives(talker)


def test_a_file_of_its_name(start_hostile: Callable[..., Talker], bait: Bait) -> None:
    """Loaded before anybody attached: nothing is called there."""
    path = library_under_its_name(bait, changed=True)
    talker = start_hostile("named-as-library", path)
    before = Path(f"/proc/{talker.pid}/maps").read_text()
    attach(talker).assert_told(1, f"What process {talker.pid} has loaded is not the probe library: ")
    assert Path(f"/proc/{talker.pid}/maps").read_text() == before
    assert_lives(talker)


def test_a_file_of_its_name_as_data(start_hostile: Callable[..., Talker], bait: Bait) -> None:
    """Below the library, where its base address was taken to be: the second attach called what no code is."""
    talker = start_hostile("named-as-data", library_under_its_name(bait, changed=False))
    for _ in range(2):
        attach(talker).assert_told(0)
        assert_lives(talker)
    maps = Path(f"/proc/{talker.pid}/maps").read_text().splitlines()
    assert sum("r-xp" in line and "/memfd:libnfprobe-" in line for line in maps) == 1


def library_under_its_name(bait: Bait, changed: bool) -> Path:
    """A copy where every user can read it."""
    content = bytearray(library_path().read_bytes())
    if changed:
        offset = library_offset(False, "nfprobe_iterate_phdr")  # of code: its addresses are its offsets in the file
        content[offset] ^= 0xFF
    path = bait.folder / library_name()
    path.write_bytes(content)
    path.chmod(0o755)
    return path


# ---- targets without /proc, to which the library comes as a file ---------------------------------------------------


def test_a_file_that_was_replaced(where: Path, spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same content, which its owner could change later."""

    def write_and_replace(target: Target, content: bytes, name: str) -> LibraryFile:
        file = write_library(target, content, name)
        path = Path(f"/proc/self/fd/{file.directory}") / file.name
        other = path.with_name("other")
        other.write_bytes(content)
        other.chmod(0o755)
        other.rename(path)
        return file

    room = Room(spawn, ["chroot", root_of(tmp_path, where), "/where"])
    monkeypatch.setattr(inject, "write_library", write_and_replace)
    with pytest.raises(NfprobeError, match="it has not mapped the file it was given"):
        room.measure()
    room.call(3)
    assert not has_probes(room.pid)


def test_overlayfs(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    """Where some kernels list mappings with other numbers than fstat gives."""
    root = root_of(tmp_path, where)
    upper, work, merged = (tmp_path / name for name in ("upper", "work", "merged"))
    for folder in (upper, work, merged):
        folder.mkdir()
    mount = f"mount -t overlay none -o lowerdir={root},upperdir={upper},workdir={work} {merged}"
    if subprocess.run([*need_unshare("--mount"), "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no overlayfs can be mounted here")
    room = Room(spawn, [*need_unshare("--mount"), "sh", "-c", f"{mount} && exec chroot {merged} /where"])
    assert room.measure().monitor.attachment.injected.fresh
    assert not room.measure().monitor.attachment.injected.fresh
