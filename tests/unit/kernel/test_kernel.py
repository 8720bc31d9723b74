# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel: type information made by hand, instructions by the kernel's documentation, refusals."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.kernel import kernelprobe
from otel_nfprobe.kernel.bpfcall import parse_functions, read_functions
from otel_nfprobe.kernel.kernelprobe import find_number
from otel_nfprobe.kernel.programs import JUMP_EQUAL, MAP, MAP_VALUE, Assembler, Maps, Whose, write_entry, write_exit
from otel_nfprobe.linux import kallsyms


def make_btf() -> bytes:
    strings = b"\0int\0pair\0first\0second\0"
    names = {name: strings.index(name + b"\0") for name in (b"int", b"pair", b"first", b"second")}

    def kind(name: int, number: int, members: int, size: int) -> bytes:
        return struct.pack("<III", name, number << 24 | members, size)

    types = kind(names[b"int"], 1, 0, 4) + struct.pack("<I", 32)
    types += kind(names[b"pair"], 4, 2, 8) + struct.pack("<6I", 0, 1, 0, 0, 1, 32)  # struct of two ints
    types += kind(0, 13, 1, 1) + struct.pack("<II", 0, 1)  # prototype with one argument
    types += kind(names[b"first"], 12, 0, 3)  # the fourth type
    types += kind(0, 3, 0, 0) + struct.pack("<III", 1, 1, 8)  # array
    types += kind(names[b"second"], 12, 1, 3)  # linkage is kept where members are counted
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + types + strings


def test_functions_have_the_number_of_their_type() -> None:
    # A function's linkage stands in its member count and is followed by nothing: the sixth type.
    assert parse_functions(make_btf()) == {"first": 4, "second": 6}


@pytest.mark.parametrize("content", [b"", b"\x9f\xeb", make_btf()[:40], b"\0" * 64])
def test_damaged_type_information(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "vmlinux"
    path.write_bytes(content)
    with pytest.raises(NfprobeError, match="malformed"):
        read_functions(path)
    with pytest.raises(NfprobeError, match="CONFIG_DEBUG_INFO_BTF"):
        read_functions(tmp_path / "none")


def test_instructions_are_those_of_the_documentation() -> None:
    code = Assembler()
    code.copy(6, 1)
    code.wide(1, 5, MAP)
    code.wide(2, 0x1_FFFF_FFFE)
    code.jump("end", JUMP_EQUAL, 0, -1)
    code.count(7, 16)
    code.label("end")
    code.leave()
    words = [
        "bf 16 0000 00000000",  # r6 = r1
        "18 11 0000 05000000",
        "00 00 0000 00000000",
        "18 02 0000 feffffff",
        "00 00 0000 01000000",
        "15 00 0400 ffffffff",  # over the next four
        f"18 {MAP_VALUE}1 0000 07000000",
        "00 00 0000 00000000",
        "b7 02 0000 01000000",
        "db 21 1000 00000000",  # lock *(r1 + 16) += r2
        "b7 00 0000 00000000",
        "95 00 0000 00000000",
    ]
    assert code.assemble() == bytes.fromhex("".join(words))


@pytest.mark.parametrize("whose", [None, Whose(5, 4, 0xF0000000)])
@pytest.mark.parametrize("number", [None, 110])
def test_programs_leave_by_their_last_instruction(whose: Whose | None, number: int | None) -> None:
    for write in (write_entry, write_exit):
        code = write(Maps(3, 4, 5), whose, number)
        assert len(code) % 8 == 0
        assert len(code) < 8 * 64
        assert code[-8] == 0x95


def test_system_calls_have_their_numbers() -> None:
    known = {"sys_read": 0, "__x64_sys_getppid": 110, "__do_sys_getppid": 110, "sys_statx": 332, "sys_pidfd_open": 434}
    assert {name: find_number(name) for name in known} == known
    assert [find_number(name) for name in ("vfs_write", "sys_", "sys_nothing", "sys_-")] == [None] * 4


def test_refusals_are_sentences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(number: int, said: str = "") -> NfprobeError:
        with pytest.raises(NfprobeError) as refused:
            kernelprobe._refuse("f", OSError(number, "words", said))
        assert refused.value.next_command
        return refused.value

    lockdown = tmp_path / "lockdown"
    monkeypatch.setattr(kernelprobe, "LOCKDOWN", lockdown)
    assert "has no bpf()" in refuse(errno.ENOSYS).sentence
    assert "it requires root" in refuse(errno.EPERM).sentence or "even to root" in refuse(errno.EPERM).sentence
    lockdown.write_text("none [integrity] confidentiality\n")
    assert "in lockdown" in refuse(errno.EPERM).sentence
    assert isinstance(refuse(errno.EINVAL, "migrate_disable is not traceable"), RefusedError)
    assert "not traceable" in refuse(errno.EINVAL, "migrate_disable is not traceable").sentence
    assert "does not permit tracing it" in refuse(errno.EBUSY).sentence


def test_what_the_kernel_does_not_have(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    symbols = tmp_path / "kallsyms"
    lines = ["ff01 t cut.constprop.0", "ff02 T one", "ff02 T other", "ff03 t far\t[loop]", "ff04 t assembly", "x"]
    symbols.write_text("\n".join(lines))
    monkeypatch.setattr(kallsyms, "KALLSYMS", symbols)
    monkeypatch.setattr(kernelprobe, "read_functions", lambda: {"other": 9, "vfs_write": 1})
    assert kernelprobe._find_type("one") == 9  # the same code
    for name, why in (("cut", "cut.constprop.0"), ("far", "module loop"), ("assembly", "no type information")):
        with pytest.raises(RefusedError, match=why):
            kernelprobe._find_type(name)
    with pytest.raises(UsageError, match="similar names: vfs_write"):
        kernelprobe._find_type("vfs_wirte")
