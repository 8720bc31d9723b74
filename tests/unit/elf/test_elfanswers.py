# SPDX-License-Identifier: Apache-2.0
"""What lief read of a file is kept by its content: for that content only, and only where it made sense."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf import cache, elf, elfanswers, elfparser, elfplain
from otel_nfprobe.elf.elf import UnreadableError
from otel_nfprobe.elf.elfparser import SYMBOLS, ElfParser, Parts
from otel_nfprobe.elf.elftables import Symbol, read_symbols
from otel_nfprobe.elf.filecontent import Content, FileContent, forget_contents
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names import demangle as demangling
from otel_nfprobe.elf.names.demangle import demangle
from tests.support.accidents import LIBZ, have_accident
from tests.support.marks import thorough

PREPARE = "import sys; from otel_nfprobe.elf import elfparser, elfplain; from otel_nfprobe.cli.main import main"
NO_READER = "elfparser.parser = elfparser.ElfParser(['/bin/false'])"  # the process that reads files does not start
ALL_ODD = "elfplain.read_plain = lambda *_: None"  # all files are left to lief


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty folder of what is kept; nothing is in memory."""
    monkeypatch.setattr(elfplain, "read_plain", lambda *_: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(elfparser, "parser", elfparser.parser)  # as it is afterwards
    forget()
    yield tmp_path / "cache" / "nfprobe"
    forget()


def forget() -> None:
    elf._images.clear()
    forget_contents()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return Path(shutil.copy(LIBZ, tmp_path / "libgood.so"))


def found(path: Path) -> tuple[object, ...]:
    forget()
    image = Module.from_file(path).image
    return image.segments, image.sections, image.build_id, image.soname, image.symbols, image.slots, image.failure


def forbid_reading() -> None:
    elfparser.parser = ElfParser(["/bin/false"])


def test_a_file_that_was_seen_needs_no_process(library: Path, folder: Path) -> None:
    first = found(library)
    assert sorted(path.name.split("-", 1)[1] for path in folder.iterdir()) == [
        "elf-head",
        "elf-relocations",
        "elf-symbols",
    ]
    forbid_reading()
    assert found(library) == first
    assert found(Path(shutil.copy(library, library.with_name("other.so")))) == first
    library.write_bytes(library.read_bytes() + b"x")
    with pytest.raises(NfprobeError, match="cannot be started"):
        found(library)


@pytest.mark.parametrize("damage", [*thorough(b"", b"nfprobe"), None])
def test_a_damaged_entry_is_none(
    library: Path, folder: Path, damage: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = found(library)
    for path in folder.iterdir():
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content if damage is None else damage)
    asked: list[bytes] = []
    ask = ElfParser.ask

    def count(parser: ElfParser, question: bytes, content: Content) -> Parts:
        asked.append(question)
        return ask(parser, question, content)

    monkeypatch.setattr(ElfParser, "ask", count)
    assert found(library) == first
    assert asked
    forbid_reading()
    assert found(library) == first


CUT_OFF_NOTE = struct.pack("<6Q", 0, 0, 0, 24, 0, 0) + b"\xff" * 24


@pytest.mark.parametrize("value", [*thorough(b"", bytes(47)), b"\xff" * 48, *thorough(CUT_OFF_NOTE)])
def test_an_entry_that_makes_no_sense_is_none(library: Path, value: bytes) -> None:
    first = found(library)
    with library.open("rb") as file:
        digest = FileContent(file, str(library)).digest
    for kind in elfanswers.KINDS.values():
        cache.store(digest, kind, value, elfanswers._reader_version())
    assert found(library) == first


def names_of(content: FileContent) -> set[str]:
    symbols: list[Symbol] | None = elfanswers.ask(SYMBOLS, content, read_symbols)
    assert symbols is not None
    return {symbol.name for symbol in symbols}


def opened(path: Path) -> FileContent:
    with path.open("rb") as file:
        return FileContent(file, str(path))


def test_a_file_that_changes_after_its_digest_leaves_nothing_for_the_content_that_it_had(library: Path) -> None:
    good = library.read_bytes()
    assert good.count(b"\0inflateEnd\0") == 1
    status = library.stat()
    content = opened(library)
    assert content.digest == opened(library).digest
    with library.open("r+b") as file:  # the same file, size and time
        file.write(good.replace(b"\0inflateEnd\0", b"\0inflateBad\0"))
    os.utime(library, ns=(status.st_atime_ns, status.st_mtime_ns))
    forget_contents()
    assert "inflateBad" in names_of(content)
    library.write_bytes(good)
    forget_contents()
    names = names_of(opened(library))
    assert "inflateEnd" in names
    assert "inflateBad" not in names


@pytest.mark.parametrize("accident", ["crash", *thorough("lie", "raises", "eat", "take_over")])
def test_what_failed_is_not_kept(library: Path, folder: Path, faulty_parser: ElfParser, accident: str) -> None:
    have_accident(library, accident, "h")
    sound, elfparser.parser = elfparser.parser, faulty_parser
    with pytest.raises(UnreadableError):
        found(library)
    assert not folder.exists() or not list(folder.iterdir())
    elfparser.parser = sound
    assert len(found(library)) == 7


def test_a_file_of_another_reader_is_read_again(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found(library)
    forbid_reading()
    monkeypatch.setattr(elfanswers, "_reader_version", lambda: "another one")
    with pytest.raises(NfprobeError, match="cannot be started"):
        found(library)


def test_a_large_file_is_not_copied(library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elfanswers, "KEPT_FILE_BYTES_MAX", library.stat().st_size - 1)
    monkeypatch.setattr(FileContent, "copy", lambda _: pytest.fail("it was copied"))
    assert len(found(library)) == 7
    assert not folder.exists()


def test_names_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demangling, "_cpp_names", demangling._CppNames())
    assert demangle("_Z4kepti") == "kept(int)"
    monkeypatch.setattr(demangling, "_cpp_names", demangling._CppNames())
    forbid_reading()
    assert demangle("_Z4kepti") == "kept(int)"
    assert demangle("_Z5freshi") == "_Z5freshi"


def attach(target: int, *before: str) -> subprocess.CompletedProcess[str]:
    """By a monitor that does something before."""
    words = ["attach", str(target), "--adapter", "none", "--functions", "libc.so*:malloc", "--for", "0.1s"]
    code = "; ".join([PREPARE, *before, "sys.exit(main(sys.argv[1:]))"])
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)


@pytest.fixture
def sleeping() -> Iterator[int]:
    """A process to attach to."""
    if os.geteuid() != 0:
        pytest.skip("only root may attach to any process")
    with subprocess.Popen(["sleep", "1000"]) as target:
        try:
            yield target.pid
        finally:
            target.kill()


def check(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    assert "1 functions probed" in done.stdout + done.stderr


@pytest.mark.thorough
def test_a_second_attach_starts_no_process_that_reads_files(sleeping: int, folder: Path) -> None:
    refused = attach(sleeping, NO_READER, ALL_ODD)
    assert "The process that reads ELF files cannot be started" in refused.stderr
    assert refused.returncode != 0
    check(attach(sleeping, ALL_ODD))
    check(attach(sleeping, NO_READER, ALL_ODD))
    assert list(folder.iterdir())


@pytest.mark.thorough
def test_ordinary_files_take_no_process_that_reads_them(sleeping: int) -> None:
    check(attach(sleeping, NO_READER))


@pytest.mark.thorough
def test_a_file_is_digested_once(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digested: list[int] = []
    blake2b = hashlib.blake2b

    def count(data: bytes, **arguments: int) -> object:
        digested.append(len(data))
        return blake2b(data, **arguments)

    monkeypatch.setattr(hashlib, "blake2b", count)
    found(library)
    assert digested == [library.stat().st_size]
