# SPDX-License-Identifier: Apache-2.0
"""A file is known again where it is mapped, in this process or another, under any name and also without one."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from otel_nfprobe.linux.mappedfile import MappedFile
from otel_nfprobe.target.target import Mapping, Target


def mapped(path: Path) -> MappedFile:
    fd = os.open(path, os.O_RDONLY)
    try:
        return MappedFile.of(fd)
    finally:
        os.close(fd)


def mappings_of(file: MappedFile) -> list[Mapping]:
    return [mapping for mapping in Target(os.getpid()).maps() if file.names(mapping.device, mapping.inode)]


def test_is_found_by_what_it_is(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for path in (one, other):
        path.write_bytes(bytes(2 * mmap.PAGESIZE))
    file, copy = mapped(one), mapped(other)
    one.rename(tmp_path / "renamed")
    other.rename(one)
    assert [Path(mapping.path).name for mapping in mappings_of(file)] == ["renamed"]
    (tmp_path / "renamed").unlink()
    assert [Path(mapping.path).name for mapping in mappings_of(file)] == ["renamed (deleted)"]
    assert [mapping.path for mapping in mappings_of(copy)] == [str(one)]


def test_memory_files_are_told_apart() -> None:
    files = []
    for _ in range(2):
        fd = os.memfd_create("same name")
        os.ftruncate(fd, mmap.PAGESIZE)
        files.append(MappedFile.of(fd))
        os.close(fd)
    assert [len(mappings_of(file)) for file in files] == [1, 1]
    assert not files[0].names(files[1].device, files[1].inode)


def test_an_empty_file_cannot_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError):
        mapped(tmp_path / "empty")
