# SPDX-License-Identifier: Apache-2.0
"""What is read of ELF files, beside what pyelftools reads of the same files; and files that change meanwhile."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf import elfplain, filecontent
from otel_nfprobe.elf.elf import ElfImage, read_image
from otel_nfprobe.elf.elftables import Slot
from otel_nfprobe.elf.filecontent import FileContent, forget_contents
from tests.support.marks import thorough

FOLDERS = ("/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0")
FILES = 12
FILE_BYTES_MAX = 512 << 10  # pyelftools takes its time
KINDS = {"STT_OBJECT": 1, "STT_FUNC": 2, "STT_LOOS": 10}  # 10 is STT_GNU_IFUNC
JUMP_SLOT, GLOB_DAT, RELATIVE = 7, 6, 8


def _files() -> list[Path]:
    """Some programs and libraries of this machine: the C library and the python that runs, and others by chance."""
    folders = filter(os.path.isdir, FOLDERS)
    found = [os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder))]
    random.Random(7).shuffle(found)
    libc = next(Path("/lib").glob("*/libc.so.6")).resolve()
    return [libc, *itertools.islice(filter(_is_small_elf, map(Path, found)), FILES)]


def _is_small_elf(path: Path) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > FILE_BYTES_MAX:
        return False
    with path.open("rb") as file:
        header = file.read(20)
    return header[:6] == b"\x7fELF\2\1" and header[16:20] in (b"\2\0>\0", b"\3\0>\0")


def _symbols(elf: Any) -> Iterator[tuple[int, int, str, int, str, str]]:
    numbers, defined, needed = map(elf.get_section_by_name, (".gnu.version", ".gnu.version_d", ".gnu.version_r"))
    for source in ("dynsym", "symtab"):
        section = elf.get_section_by_name(f".{source}")
        for index, symbol in enumerate(section.iter_symbols() if section else ()):
            kind = KINDS.get(symbol["st_info"]["type"])
            if kind is None or not symbol["st_value"] or symbol["st_shndx"] == "SHN_UNDEF" or not symbol.name:
                continue
            name, version = symbol.name, ""
            if source == "dynsym" and numbers is not None:
                number = numbers.get_symbol(index).entry["ndx"]
                if isinstance(number, int):
                    version = ("@" if number & 0x8000 else "@@") + _version_name(defined, needed, number & 0x7FFF)
            elif "@" in name[1:]:
                at = name.index("@", 1)
                name, version = name[:at], name[at:]
            yield symbol["st_value"], symbol["st_size"], name, kind, source, version if version != "@@" else ""


def _version_name(defined: Any, needed: Any, number: int) -> str:
    if number == 1:  # hidden and of no version; pyelftools would give the file's own name
        return ""
    for section in (defined, needed):
        if section is not None and (found := section.get_version(number)) is not None:
            return str((next(found[1]) if section is defined else found[1]).name)
    return ""


def _relocations(elf: Any) -> Iterator[tuple[int, int, int, str]]:
    names = elf.get_section_by_name(".dynsym")
    for name in (".rela.dyn", ".rela.plt"):
        section = elf.get_section_by_name(name)
        for row in section.iter_relocations() if section is not None and names is not None else ():
            symbol = names.get_symbol(row["r_info_sym"]).name if row["r_info_sym"] else ""
            yield row["r_offset"], row["r_info_type"], row["r_addend"], symbol


@pytest.mark.parametrize("path", [*thorough(_files()[0]), *_files()[1:]], ids=lambda path: path.name)
def test_tables_are_those_that_pyelftools_reads(path: Path) -> None:
    with path.open("rb") as file:
        image, elf = read_image(file, str(path)), ELFFile(file)
        symbols = {(s.address, s.size, s.name, s.kind, s.source, s.version) for s in image.symbols}
        assert symbols == set(_symbols(elf))
        rows = list(_relocations(elf))
        slots = {where: Slot(where, name, kind == JUMP_SLOT) for where, kind, _, name in rows if kind in (6, 7)}
        assert image.slots == [slots[where] for where in sorted(slots)]
        relative = [addend for _, kind, addend, _ in rows if kind == RELATIVE]
        if elf.get_section_by_name(".relr.dyn") is None:
            code = image.code_ranges
            assert image.code_pointers == sorted(a for a in relative if any(low <= a < high for low, high in code))
        notes = [note for part in elf.iter_segments("PT_NOTE") for note in part.iter_notes()]
        ids = [str(note["n_desc"]) for note in notes if note["n_type"] == "NT_GNU_BUILD_ID"]
        assert [image.build_id] == (ids or [""])
        assert image.sections == [(s.name, s["sh_addr"], s["sh_size"]) for s in elf.iter_sections()]


def test_tables_are_found_without_section_headers() -> None:
    path = _files()[0]
    data = path.read_bytes()
    bare = bytearray(data)
    bare[40:48] = bytes(8)  # e_shoff
    whole, stripped = ElfImage(str(path), data), ElfImage(str(path), bytes(bare))
    assert stripped.sections == []
    assert stripped.symbols == [symbol for symbol in whole.symbols if symbol.source == "dynsym"]
    assert (stripped.slots, stripped.code_pointers) == (whole.slots, whole.code_pointers)
    assert (stripped.build_id, stripped.soname) == (whole.build_id, "libc.so.6")


def test_packed_relocations_lead_to_the_same_code(tmp_path: Path) -> None:
    functions = "".join(f"int f{number}(void) {{ return {number}; }}\n" for number in range(200))
    table = "".join(f"f{number}, 0, " for number in range(200))
    (tmp_path / "table.c").write_text(f"{functions}int (*table[])(void) = {{{table}}};\n")
    found = []
    for words in ([], ["-Wl,-z,pack-relative-relocs"]):
        program = str(tmp_path / f"program{len(words)}")
        source = [str(tmp_path / "table.c"), "-x", "c", "-"]
        options = ["-O1", "-pie", "-fPIE", *words, "-o", program]
        subprocess.run(["gcc", *options, *source], check=True, input="int main(void) { return 0; }", text=True)
        image = ElfImage(program, Path(program).read_bytes())
        starts = {symbol.name: symbol.address for symbol in image.symbols}
        names = {starts[f"f{number}"]: number for number in range(200)}
        found.append([names[target] for target in image.code_pointers if target in names])
        assert (".relr.dyn" in [name for name, _, _ in image.sections]) == bool(words)
    assert found == [list(range(200))] * 2


def test_contents_are_read_again_and_only_those_of_the_same_file(tmp_path: Path) -> None:
    copy = Path(shutil.copy(_files()[0], tmp_path / "library"))
    with copy.open("rb") as file:
        content = FileContent(file, str(copy))
    data = copy.read_bytes()
    assert content.part(0, 64) == data[:64]
    assert content.part(len(data) - 4, 64) == data[-4:]
    assert content.part(len(data) + 4, 64) == content.part(1 << 70, 1 << 70) == b""
    assert content.whole() == data
    forget_contents()
    assert content.whole() == data
    forget_contents()
    copy.unlink()
    shutil.copy(_files()[1], copy)
    with pytest.raises(NfprobeError, match="was changed or removed"):
        content.whole()


def test_what_was_not_used_for_longest_is_forgotten_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filecontent, "KEPT_BYTES_MAX", 2500)
    forget_contents()
    contents = []
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode() * 1000)
        with (tmp_path / name).open("rb") as file:
            contents.append(FileContent(file, str(tmp_path / name)))
    first, second, third = contents
    kept = first.whole(), second.whole()
    assert first.whole() is kept[0]
    third.whole()
    assert first.whole() is kept[0]
    assert second.whole() is not kept[1]


def test_a_symbol_that_a_file_does_not_export_is_missed_without_its_table() -> None:
    libc = next(Path("/lib").glob("*/libc.so.6"))
    image = ElfImage(str(libc), libc.read_bytes())
    assert image.find_export("__dls3") is None
    assert "symbols" not in vars(image)
    found = image.find_export("dlopen")
    assert found is not None
    assert found == image.exports["dlopen"]


@pytest.mark.parametrize("name", ["libz.so.1", *thorough("libc.so.6", "libstdc++.so.6", "libm.so.6")])
def test_a_symbol_that_is_found_by_its_name_is_the_exported_one(name: str) -> None:
    path = next(Path("/lib").glob(f"*/{name}"))
    exports = ElfImage(str(path), path.read_bytes()).exports
    image = ElfImage(str(path), path.read_bytes())
    for symbol in random.Random(7).sample(sorted(exports), 40):
        assert image.find_export(symbol) == exports[symbol]
    assert image.find_export("no such symbol") is None
    assert "symbols" not in vars(image)  # nothing else was read


def test_a_name_that_occurs_everywhere_is_found_among_all_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    path = next(Path("/lib").glob("*/libz.so.1"))
    monkeypatch.setattr(elfplain, "PLACES_MAX", 0)
    image = ElfImage(str(path), path.read_bytes())
    assert image.find_export("inflate") == image.exports["inflate"]


def test_every_name_that_a_file_defines_may_be_defined() -> None:
    sample = random.Random(11)
    for path in [*_files()[:4], Path(os.__file__).resolve().parents[2] / "bin" / "python3"]:
        image = ElfImage(str(path), path.read_bytes())
        names = {symbol.name for symbol in image.symbols}
        for name in sample.sample(sorted(names), min(40, len(names))):
            assert image.may_define(name), (path, name)
        assert not image.may_define("no_file_has_this_name")
        exported = sorted(image.exports)[:1]
        assert not exported or image.may_name("no_file_has_this_name", *exported)
        assert not image.may_name("no_file_has_this_name", "nor_that_one")


def test_a_version_behind_a_name_in_a_symbol_table_hides_no_definition(tmp_path: Path) -> None:
    source, script, library = tmp_path / "a.c", tmp_path / "a.map", tmp_path / "liba.so"
    source.write_text('__asm__(".symver old_f, f@V1");\n__asm__(".symver new_f, f@@V2");\nint old_f, new_f = 1;\n')
    script.write_text("V1 { };\nV2 { };\n")
    words = ["gcc", "-shared", "-fPIC", f"-Wl,--version-script={script}", str(source), "-o", str(library)]
    subprocess.run(words, check=True)
    image = ElfImage(str(library), library.read_bytes())
    names = {symbol.name for symbol in image.symbols if symbol.source == "symtab"}
    assert "f" in names
    assert image.may_define("f")
