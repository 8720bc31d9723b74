# SPDX-License-Identifier: Apache-2.0
"""Names, globs, and files that are not what they should be."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import build_id_of, exported_offset, find_functions, function_at, functions_of

LIBZ = next(Path("/lib").glob("*/libz.so.1"))
SOURCE = """
int visible(int a) { return a * 3 + 1; }
int visible_alias(int a) __attribute__((alias("visible")));
static __attribute__((noinline)) int hidden(int a) { return a + visible(a); }
int caller(int a) { return hidden(a) + 1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    (folder / "names.c").write_text(SOURCE)
    output = folder / "libnames.so.2.1"
    words = [
        "gcc",
        "-O1",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libnames.so.2",
        "-o",
        str(output),
        str(folder / "names.c"),
    ]
    subprocess.run(words, check=True)
    return output


def _names(path: Path, *globs: str, exclude: tuple[str, ...] = ()) -> set[str]:
    return {function.name for function in find_functions(path, globs, exclude)}


def test_names_come_from_both_symbol_tables(library: Path) -> None:
    sources = {function.name: function.name_source for function in functions_of(Module.from_file(library))}
    assert sources["visible"] == "dynsym"
    assert sources["hidden"] == "symtab"


def test_a_stripped_library_keeps_its_ranges(library: Path, tmp_path: Path) -> None:
    stripped = tmp_path / library.name
    subprocess.run(["strip", "--strip-all", "-o", str(stripped), str(library)], check=True)
    before = {(function.offset, function.size): function for function in functions_of(Module.from_file(library))}
    after = {(function.offset, function.size): function for function in functions_of(Module.from_file(stripped))}
    assert before.keys() == after.keys()
    hidden = next(span for span, function in before.items() if function.name == "hidden")
    assert after[hidden].name == f"{hidden[0]:#x}"
    assert after[hidden].name_source == "offset"


@pytest.mark.parametrize("module", ["libnames.so.2.1", "libnames.so.2", "libnames.so", "libnames", "*", "libn*"])
def test_modules_go_by_their_name_with_and_without_version(module: str, library: Path) -> None:
    assert _names(library, f"{module}:caller") == {"caller"}


def test_globs(library: Path) -> None:
    assert _names(library, "visib*") == {"visible"}
    assert _names(library, "visible_alias") == {"visible"}
    assert _names(library, "libnames:*") >= {"visible", "hidden", "caller"}
    assert _names(library, "*", exclude=("libnames:hid*",)) == _names(library, "*") - {"hidden"}
    offset = next(function.offset for function in functions_of(Module.from_file(library)) if function.name == "hidden")
    assert _names(library, f"libnames:{offset:#x}") == {"hidden"}


@pytest.mark.parametrize(
    ("glob", "says"),
    [
        ("visibel", "visible"),
        ("libname:caller", "libnames"),
        ("libnames:0x1", "No function starts"),
        ("other:*", "No module matches"),
        ("", "is not a function"),
        ("libnames:", "is not a function"),
    ],
)
def test_a_glob_without_match_names_what_is_near(glob: str, says: str, library: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        find_functions(library, [glob])


def test_a_file_without_frames_and_symbols_says_so(tmp_path: Path) -> None:
    """As the programs of Free Pascal."""
    (tmp_path / "bare.s").write_text(".text\n.globl start\nstart: ret\n")
    words = [
        "gcc",
        "-nostdlib",
        "-Wl,-e,start",
        "-Wl,--build-id=none",
        "-s",
        tmp_path / "bare.s",
        "-o",
        tmp_path / "bare",
    ]
    subprocess.run(words, check=True)
    with pytest.raises(UsageError, match=r"No functions are found in bare: they have neither \.eh_frame"):
        find_functions(tmp_path / "bare", ["*"])


def test_an_offset_inside_a_function_says_which(library: Path) -> None:
    function = next(item for item in functions_of(Module.from_file(library)) if item.name == "caller")
    with pytest.raises(UsageError, match=r"inside libnames\.so\.2\.1:caller"):
        find_functions(library, [f"libnames:{function.offset + 1:#x}"])


def test_function_at(library: Path) -> None:
    module = Module.from_file(library)
    function = next(item for item in functions_of(module) if item.name == "caller")
    assert function_at(module, function.offset + function.size - 1) is function
    assert function_at(module, 0) is None


def test_symbols_of_libz_are_those_of_readelf() -> None:
    words = ["readelf", "--wide", "--dyn-syms", str(LIBZ)]
    text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    fields = [line.split() for line in text.splitlines() if " FUNC " in line and " UND " not in line]
    expected = {(int(item[1], 16), item[7].split("@")[0]) for item in fields if item[3] == "FUNC"}
    found = {
        (function.offset, alias) for function in functions_of(Module.from_file(LIBZ)) for alias in function.aliases
    }
    assert expected <= found
    assert len(expected) > 50


def test_build_id_and_exports() -> None:
    text = subprocess.run(["readelf", "-n", str(LIBZ)], capture_output=True, text=True, check=True).stdout
    match = re.search(r"Build ID: (\w+)", text)
    assert match is not None
    assert build_id_of(LIBZ) == match[1]
    assert exported_offset(LIBZ, "inflate") == next(
        function.offset for function in functions_of(Module.from_file(LIBZ)) if function.name == "inflate"
    )
    assert exported_offset(LIBZ, "no_such_function") is None


def test_a_file_without_section_headers(library: Path, tmp_path: Path) -> None:
    bare = tmp_path / "libbare.so"
    content = bytearray(library.read_bytes())
    content[40:48] = bytes(8)  # e_shoff
    content[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    bare.write_bytes(content)
    assert "visible" in {function.name for function in functions_of(Module.from_file(bare))}


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", b"\x7fELF", b"\x7fELF" + bytes(200)])
def test_what_is_no_elf_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(NfprobeError) as refusal:
        find_functions(path, ["*"])
    assert str(path) in refusal.value.sentence


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        find_functions(tmp_path / "absent", ["*"])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.* is not a valid :RuntimeWarning")
@pytest.mark.parametrize("seed", range(6))
def test_damaged_files_raise_errors_with_a_reason(seed: int, library: Path, tmp_path: Path) -> None:
    from otel_nfprobe.probes.analysis import plan_functions

    content = library.read_bytes()
    random_ = random.Random(seed)
    for number in range(25):
        damaged = bytearray(content)
        for _ in range(random_.randrange(1, 20)):
            place = random_.randrange(0x400) if random_.random() < 0.5 else random_.randrange(len(damaged))
            damaged[place] = random_.randrange(256)
        if random_.random() < 0.3:
            del damaged[random_.randrange(len(damaged)) :]
        path = tmp_path / f"damaged{number}"
        path.write_bytes(damaged)
        with contextlib.suppress(NfprobeError):
            plan_functions(find_functions(path, ["*"]))


def test_the_image_of_a_replaced_file_is_read_again(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    shutil.copy(LIBZ, path)
    assert exported_offset(path, "inflate") is not None
    path.unlink()
    shutil.copy(library, path)
    assert exported_offset(path, "inflate") is None
    assert exported_offset(path, "visible") is not None
