# SPDX-License-Identifier: Apache-2.0
"""What is found out for all functions of a module at once is what one function after the other says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.arch import scans
from otel_nfprobe.arch.branches import ModuleScan, scan_module
from otel_nfprobe.arch.codescan import CodeScan, scan_code
from otel_nfprobe.arch.x86_64 import sites
from otel_nfprobe.elf.ehframe import Frame
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import functions_of
from otel_nfprobe.probes import analysis
from otel_nfprobe.probes.analysis import FunctionPlan, plan_functions
from tests.support.marks import thorough

FOLDER = next(Path("/lib").glob("*/libc.so.6")).parent
LIBRARIES = ("libz.so.1", *thorough("libm.so.6", "libc.so.6", "libstdc++.so.6", "libssl.so.3", "libcrypto.so.3"))


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(analysis, "FUNCTIONS_MIN", 1 << 30)  # no plans are kept
    return FOLDER / str(request.param)


def plans_of(path: Path) -> list[FunctionPlan]:
    """The plans of a file as if it were not looked at before."""
    image = ElfImage(str(path), path.read_bytes())
    return plan_functions(functions_of(Module(str(path), 0, image, image.code_ranges)))


def fields_of(plan: FunctionPlan) -> list[object]:
    others = [getattr(plan, field.name) for field in fields(plan) if field.name != "function"]
    return [plan.offset, plan.name, *others]


def scan_nothing(image: ElfImage, frames: list[Frame]) -> CodeScan:
    """As if the C core knew no instruction."""
    found = scan_code(image, frames)
    for column in ("flags", "events", "rows", "head"):
        found.functions[column] = 0
    found.functions["trouble"] = lib.NFP_CODE_UNKNOWN
    return CodeScan(found.functions, found.events[:0], found.rows[:0])


def test_plans_are_those_that_the_decoder_alone_gives(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = [fields_of(plan) for plan in plans_of(library)]
    monkeypatch.setattr(scans, "scan_code", scan_nothing)
    slow = [fields_of(plan) for plan in plans_of(library)]
    assert len(fast) > 50
    assert fast == slow


def test_ordinary_functions_are_those_that_their_own_scans_call_so(library: Path) -> None:
    scan = ModuleScan(ElfImage(str(library), library.read_bytes()))
    found = [index for index, is_ordinary in enumerate(scan.ordinary) if is_ordinary]
    assert len(found) > len(scan.starts) // 3
    for index in found:
        own, start = scan.at(index), scan.starts[index]
        assert (own.own_entry, own.has_exit, own.trouble, own.outermost) == (True, True, "", False)
        assert not any(start <= address <= start + len(sites.ENDBR) for address in own.near)
        assert not scan.may_circle(index)
        assert not scan.is_part(index, False) or scan.is_called(start)


def test_gaps_are_those_that_nothing_enters_or_names(library: Path) -> None:
    scan = scan_module(ElfImage(str(library), library.read_bytes()))
    expected = {}
    for index, (low, high) in enumerate(
        zip((frame.start + frame.size for frame in scan.frames), scan.starts[1:], strict=False)
    ):
        if (
            scan.frames[index].size >= len(sites.ENDBR) + sites.JUMP_BYTES
            and sites.JUMP_BYTES <= high - low <= sites.PADDING_BYTES_MAX
            and not scan.at(index).runs_on
            and not scan.image.names_address(low, high)
            and not scan.enters(low, high)
            and scan.image.section_of(low) == scan.image.section_of(high)
        ):
            expected[index] = low, high
    assert sites._find_gaps(scan) == expected
    assert expected
