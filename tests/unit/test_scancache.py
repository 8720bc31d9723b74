# SPDX-License-Identifier: Apache-2.0
"""Scans that are kept on disk are those that decoding gives, and are taken for exactly the code they were made from."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from otel_nfprobe import cache
from otel_nfprobe.elf import ElfImage
from otel_nfprobe.modules import Module
from otel_nfprobe.x86_64.scan import FunctionScan, scan_function
from otel_nfprobe.x86_64.scancache import load_scans, store_scans

LIBRARY = next(Path("/lib").glob("*/libc.so.6"))


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ElfImage:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Module.from_file(LIBRARY).image


def test_equal_to_decoding(image: ElfImage) -> None:
    frames = image.frames.frames
    assert load_scans(image, frames) is None
    scans = [scan_function(image, frame) for frame in frames]
    store_scans(image, frames, scans)
    found = load_scans(image, frames)
    assert found is not None
    names = [field.name for field in fields(FunctionScan)]
    for known, fresh in zip(found, scans, strict=True):
        assert [getattr(known, name) for name in names] == [getattr(fresh, name) for name in names]


def test_other_code_of_the_same_build_id(image: ElfImage, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = image.frames.frames
    store_scans(image, frames, [scan_function(image, frame) for frame in frames])
    assert load_scans(image, frames[:-1]) is None
    read = image.read
    monkeypatch.setattr(image, "read", lambda address, size: b"\x90" + read(address, size)[1:])
    assert load_scans(image, frames) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"[1]", b"{}", b"null", b"[[]]", b"not json"])
def test_damaged(image: ElfImage, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(cache, "load", lambda *_: content)
    assert load_scans(image, image.frames.frames) is None
