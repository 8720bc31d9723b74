# SPDX-License-Identifier: Apache-2.0
"""The cache of analyses: private, bounded, and never believed when it is damaged."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from otel_nfprobe.elf import cache

BUILD_ID = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nfprobe"


def test_what_was_stored_is_loaded(folder: Path) -> None:
    assert cache.load(BUILD_ID, "scan") is None
    cache.store(BUILD_ID, "scan", b"value")
    assert cache.load(BUILD_ID, "scan") == b"value"
    assert cache.load(BUILD_ID, "other") is None
    assert cache.load(BUILD_ID, "scan", "another key") is None
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def test_home_is_used_without_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    cache.store(BUILD_ID, "scan", b"value")
    assert (tmp_path / ".cache" / "nfprobe" / f"{BUILD_ID}-scan").is_file()


@pytest.mark.parametrize("build_id", ["", "../../etc/passwd", "xyz", "abc"])
def test_a_module_without_build_id_has_no_cache(build_id: str, folder: Path) -> None:
    cache.store(build_id, "scan", b"value")
    assert cache.load(build_id, "scan") is None
    assert not folder.exists() or not list(folder.iterdir())


def test_every_damage_is_noticed(folder: Path) -> None:
    cache.store(BUILD_ID, "scan", b"value" * 10)
    (path,) = folder.iterdir()
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        assert cache.load(BUILD_ID, "scan") is None
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert cache.load(BUILD_ID, "scan") is None
    path.write_bytes(content)
    assert cache.load(BUILD_ID, "scan") == b"value" * 10


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    (tmp_path / "shared" / "nfprobe").mkdir(parents=True)
    (tmp_path / "shared" / "nfprobe").chmod(0o777)
    cache.store(BUILD_ID, "scan", b"value")
    assert cache.load(BUILD_ID, "scan") is None
    assert not list((tmp_path / "shared" / "nfprobe").iterdir())


def test_a_folder_that_others_can_only_look_into_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~/.cache/nfprobe` may have been made for the stack before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "open"))
    folder = tmp_path / "open" / "nfprobe"
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    cache.store(BUILD_ID, "scan", b"value")
    assert cache.load(BUILD_ID, "scan") == b"value"
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


def test_an_entry_that_others_can_write_is_not_believed(folder: Path) -> None:
    cache.store(BUILD_ID, "scan", b"value")
    (path,) = folder.iterdir()
    path.chmod(0o666)
    assert cache.load(BUILD_ID, "scan") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_folder_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    cache.store(BUILD_ID, "scan", b"value")
    assert cache.load(BUILD_ID, "scan") is None
    assert not list(home.iterdir())


def test_writers_at_the_same_time_leave_a_whole_entry(folder: Path) -> None:
    values = [bytes([number]) * 50_000 for number in range(8)]
    seen: list[bytes | None] = []

    def write(value: bytes) -> None:
        for _ in range(10):
            cache.store(BUILD_ID, "scan", value)
            seen.append(cache.load(BUILD_ID, "scan"))

    threads = [threading.Thread(target=write, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) <= set(values)
    assert [path.name for path in folder.iterdir()] == [f"{BUILD_ID}-scan"]


def test_the_oldest_entries_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "ENTRIES_MAX", 3)
    for number in range(5):
        cache.store(f"{number:040x}", "scan", b"value")
        os.utime(folder / f"{number:040x}-scan", ns=(number, number))
    assert sorted(path.name for path in folder.iterdir()) == [f"{number:040x}-scan" for number in (2, 3, 4)]


def test_large_entries_go_when_there_is_too_much_of_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "LARGE_ENTRY_BYTES", 1000)
    monkeypatch.setattr(cache, "TOTAL_BYTES_MAX", 9000)
    for number in range(5):
        cache.store(f"{number:040x}", "scan", os.urandom(4000))
        os.utime(folder / f"{number:040x}-scan", ns=(number, number))
    assert sorted(path.name for path in folder.iterdir()) == [f"{number:040x}-scan" for number in (3, 4)]


def test_values_of_other_code_are_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store(BUILD_ID, "scan", b"value")
    monkeypatch.setattr(cache, "_code_identity", lambda: "another version")
    assert cache.load(BUILD_ID, "scan") is None
