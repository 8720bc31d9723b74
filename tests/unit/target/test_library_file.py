# SPDX-License-Identifier: Apache-2.0
"""A library that a target will run is written only where nobody else can put another one in its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_nfprobe.target.library_file import WORKING_DIRECTORY, directories
from otel_nfprobe.target.target import Target

EVE = 12345
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="gives directories to other users")


def taken(*places: Path | str) -> list[str]:
    found = []
    for path, directory in directories(Target(os.getpid()), [str(place) for place in places]):
        os.close(directory)
        found.append(path)
    return found


def make(path: Path, mode: int, owner: int = 0) -> Path:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o1777, 0o1775])
def test_where_others_can_replace_nothing(tmp_path: Path, mode: int) -> None:
    folder = make(tmp_path / "folder", mode)
    assert taken(folder) == [str(folder)]


@pytest.mark.parametrize(("mode", "owner"), [(0o777, 0), (0o775, 0), (0o755, EVE), (0o1777, EVE)])
def test_where_others_can(tmp_path: Path, mode: int, owner: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "folder", mode, owner)
    inner = make(folder / "inner", 0o755)
    before = len(os.listdir("/proc/self/fd"))
    assert taken(folder, inner) == []
    monkeypatch.chdir(folder)
    assert taken(WORKING_DIRECTORY) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_and_what_is_missing(tmp_path: Path) -> None:
    folder = make(tmp_path / "folder", 0o755)
    (tmp_path / "link").symlink_to(folder)
    assert taken(tmp_path / "link", tmp_path / "missing", tmp_path / "missing" / "inner") == []
