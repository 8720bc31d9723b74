# SPDX-License-Identifier: Apache-2.0
"""Functions and inlined calls of debug information, beside what pyelftools reads entry by entry."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from elftools.dwarf.ranges import BaseAddressEntry
from elftools.elf.elffile import ELFFile

from otel_nfprobe.elf import cache
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.dwarf import open_dwarf
from otel_nfprobe.elf.names.inlined import inlined_in
from otel_nfprobe.elf.symbols import functions_of
from tests.support.marks import thorough

pytestmark = pytest.mark.usefixtures("private_cache")

SOURCE = """
#include <cstdio>
#include <map>
#include <string>
#include <vector>
struct Shape { virtual double area(double scale) const; int sides; };
double Shape::area(double scale) const { return sides * scale; }
namespace net { namespace { inline int step(int a) { for (int i = 0; i < a; i++) if (a & i) a ^= i * 3; return a; } } }
using net::step;
static inline int walk(int a, int b) { return step(a) > b ? step(b) - a : step(a + b); }
int outer(int a, const char *text) { return walk(a, text[0]) + walk(text[1], a); }
typedef std::map<std::string, std::vector<int>> Table;
Table fill(int count) { Table t; for (int i = 0; i < count; i++) t["a"].push_back(step(i)); return t; }
int main(int count, char **words) { return outer(count, words[0]) + (int)fill(count).size(); }
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dwarf") / "a.cpp"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def built(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once, and read only; its object is beside it."""
    path = tmp_path_factory.mktemp("built") / "a"
    subprocess.run(["g++", "-g", "-O2", "-c", "-o", f"{path}.o", str(source)], check=True)
    subprocess.run(["g++", "-Wl,--build-id", "-o", str(path), f"{path}.o"], check=True)
    return path


class Oracle:
    """Functions and inlined calls of a file, by pyelftools' own tree."""

    def __init__(self, path: Path) -> None:
        self.information = ELFFile(path.open("rb"), lambda name: open(name, "rb")).get_dwarf_info()  # noqa: SIM115
        self.functions: Counter[tuple[int, str, int]] = Counter()
        self.inlined: Counter[tuple[str, int, Any, int]] = Counter()
        for unit in self.information.iter_CUs():
            self._walk(unit.get_top_DIE(), 0)

    def _walk(self, entry: Any, enclosing: int) -> None:
        if entry.tag == "DW_TAG_subprogram":
            ranges = self._ranges(entry)
            enclosing = ranges[0][0] if ranges else 0
            if enclosing:
                count = sum(child.tag == "DW_TAG_formal_parameter" for child in entry.iter_children())
                self.functions[enclosing, self._name(entry), count] += 1
        elif entry.tag == "DW_TAG_inlined_subroutine" and enclosing:
            line = entry.attributes.get("DW_AT_call_line")
            self.inlined[self._name(entry), enclosing, self._ranges(entry), line.value if line else 0] += 1
        for child in entry.iter_children():
            self._walk(child, enclosing)

    def _ranges(self, entry: Any) -> tuple[tuple[int, int], ...]:
        attributes = entry.attributes
        if "DW_AT_ranges" in attributes:
            base = entry.cu.get_top_DIE().attributes.get("DW_AT_low_pc")
            start, found = base.value if base else 0, []
            lists = self.information.range_lists()
            for item in lists.get_range_list_at_offset(attributes["DW_AT_ranges"].value, entry.cu):
                if isinstance(item, BaseAddressEntry):
                    start = item.base_address
                elif item.end_offset > item.begin_offset:
                    shift = 0 if item.is_absolute else start
                    found.append((item.begin_offset + shift, item.end_offset + shift))
            return tuple(found)
        if "DW_AT_low_pc" not in attributes:
            return ()
        low, high = attributes["DW_AT_low_pc"].value, attributes["DW_AT_high_pc"]
        end = high.value if high.form == "DW_FORM_addr" else low + high.value
        return ((low, end),) if end > low else ()

    def _scope(self, entry: Any) -> str:
        if entry.tag != "DW_TAG_namespace":
            return ""
        name = entry.attributes.get("DW_AT_name")
        return f"{self._scope(entry.get_parent())}{name.value.decode() if name else '(anonymous namespace)'}::"

    def _name(self, entry: Any) -> str:
        while True:
            for key in ("DW_AT_linkage_name", "DW_AT_MIPS_linkage_name", "DW_AT_name"):
                if key in entry.attributes:
                    name = str(entry.attributes[key].value.decode())
                    return name if key != "DW_AT_name" else self._scope(entry.get_parent()) + name
            for key in ("DW_AT_abstract_origin", "DW_AT_specification"):
                if key in entry.attributes:
                    entry = entry.get_DIE_from_attribute(key)
                    break
            else:
                return ""


def _compare(path: Path) -> None:
    module = Module.from_file(path)
    dwarf = open_dwarf(module)
    assert dwarf is not None
    contents, oracle = dwarf.contents(), Oracle(path)
    assert module.cache.get("notes", []) == []
    assert contents.is_whole
    assert Counter((item.start, item.name, len(item.parameters)) for item in contents.functions) == oracle.functions
    found = Counter((item.name, item.enclosing, item.ranges, item.call_line) for item in contents.inlined)
    assert found == oracle.inlined
    assert len(contents.functions) > 4
    assert len(contents.inlined) > 20
    starts = {function.offset for function in functions_of(module)}
    assert {item.start for item in contents.functions} <= starts


@pytest.mark.parametrize("version", [*thorough(3, 4), 5])
@pytest.mark.parametrize("compiler", ["g++", *thorough("clang++")])
def test_every_version_is_read_as_pyelftools_reads_it(
    compiler: str, version: int, source: Path, tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed: scripts/set-up test")
    flags = [f"-gdwarf-{version}", "-O2", "-Wl,--build-id"]
    subprocess.run([compiler, *flags, "-o", str(tmp_path / "a"), str(source)], check=True)
    _compare(tmp_path / "a")


@pytest.mark.thorough
def test_compressed_sections(source: Path, tmp_path: Path) -> None:
    subprocess.run(["g++", "-g", "-gz=zlib", "-O2", "-o", str(tmp_path / "a"), str(source)], check=True)
    _compare(tmp_path / "a")


@pytest.mark.thorough
def test_a_file_that_others_share(source: Path, tmp_path: Path) -> None:
    if shutil.which("dwz") is None:
        pytest.skip("dwz is not installed: scripts/set-up test")
    for name in ("a", "b"):
        subprocess.run(["g++", "-g", "-O2", "-o", str(tmp_path / name), str(source)], check=True)
    words = ["dwz", "-m", str(tmp_path / "shared"), str(tmp_path / "a"), str(tmp_path / "b")]
    subprocess.run(words, check=True)
    _compare(tmp_path / "a")
    (tmp_path / "shared").unlink()
    module = Module.from_file(tmp_path / "b")
    assert open_dwarf(module) is None
    assert "missing" in module.cache["notes"][0]


@pytest.mark.parametrize("version", thorough(4, 5))
def test_rust(version: int, tmp_path: Path) -> None:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    (tmp_path / "a.rs").write_text(
        "#[inline(never)] fn outer(v: &[u32]) -> u32 { v.iter().map(|x| x * 3).filter(|x| x % 2 == 0).sum() }\n"
        'fn main() { println!("{}", outer(&std::env::args().map(|a| a.len() as u32).collect::<Vec<_>>())); }\n'
    )
    # Without the standard library's own debug information, which is large.
    words = ["rustc", "-O", "-g", f"-Cdwarf-version={version}", "-o", str(tmp_path / "a"), str(tmp_path / "a.rs")]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("this rustc cannot choose the version")
    module = Module.from_file(tmp_path / "a")
    dwarf = open_dwarf(module)
    assert dwarf is not None
    outer = [item for item in dwarf.contents().functions if item.name.startswith("_") and "outer" in item.name]
    assert [len(item.parameters) for item in outer] == [1]
    assert [item.returns for item in outer] == ["u32"]


def test_what_was_read_is_kept(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_dwarf(Module.from_file(built))
    assert first is not None
    contents = first.contents()
    again = open_dwarf(Module.from_file(built))
    assert again is not None
    monkeypatch.setattr(again, "_read", None)  # it would be called
    assert again.contents() == contents
    assert cache.load(Module.from_file(built).build_id, "dwarf") is not None


def test_one_function_is_looked_up_without_reading_everything(built: Path, tmp_path: Path) -> None:
    (tmp_path / "b.c").write_text("int other(int a, int b) { return a * b; }\n")
    subprocess.run(["g++", "-g", "-O2", "-o", str(tmp_path / "a"), f"{built}.o", str(tmp_path / "b.c")], check=True)
    module = Module.from_file(tmp_path / "a")
    dwarf = open_dwarf(module)
    assert dwarf is not None
    start = next(item.offset for item in functions_of(module) if "other" in item.name)
    assert [item.start for item in dwarf.functions_at([start])] == [start]
    assert dwarf.functions_at([1, 2]) == []


def test_inlined_calls_name_their_function_and_place(built: Path, source: Path) -> None:
    module = Module.from_file(built)
    starts = {item.offset: item for item in functions_of(module)}
    found = inlined_in([module], lambda name: "walk" in name)
    lines = {(starts[item.call.enclosing].display_name, item.call.call_line) for item in found}
    assert ("outer(int, char const*)", 10) in lines
    assert all(item.call.call_file == str(source) for item in found)


@pytest.mark.thorough
def test_damaged_debug_information_never_raises(source: Path, tmp_path: Path) -> None:
    subprocess.run(["g++", "-g", "-O2", "-Wl,--build-id=none", "-o", str(tmp_path / "a"), str(source)], check=True)
    content = (tmp_path / "a").read_bytes()
    sections = {
        name: (section["sh_offset"], section["sh_size"])
        for section in ELFFile(io.BytesIO(content)).iter_sections()
        if (name := section.name).startswith(".debug_")
    }
    randomly = random.Random(7)
    for number in range(24):
        damaged = bytearray(content)
        start, size = sections[randomly.choice(sorted(sections))]
        for _ in range(randomly.randrange(1, 40)):
            damaged[start + randomly.randrange(size)] = randomly.randrange(256)
        path = tmp_path / f"damaged{number}"
        path.write_bytes(damaged)
        module = Module.from_file(path)
        dwarf = open_dwarf(module)
        if dwarf is not None:
            with contextlib.suppress(RecursionError):
                dwarf.contents()
            dwarf.functions_at([function.offset for function in functions_of(module)][:3])
