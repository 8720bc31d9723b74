# SPDX-License-Identifier: Apache-2.0
"""VPP's version: what the program says, else what its library is called; never what looks like none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_nfprobe.adapters.vpp import VERSION_SYMBOL, read_version
from otel_nfprobe.base.errors import NfprobeError

VARIABLE, TEXT = 0x5000, 0x7000


class Memory:
    """A target with one variable, and a library."""

    def __init__(self, text: bytes | None, soname: str, pointer: int = TEXT) -> None:
        self._pages = {TEXT: (text or b"").ljust(4096, b"\0")}
        self._pointer = pointer
        symbols = {VERSION_SYMBOL: SimpleNamespace(address=VARIABLE)} if text is not None else {}
        program = SimpleNamespace(name="vpp", base=0, image=SimpleNamespace(find_export=symbols.get, soname=""))
        image = SimpleNamespace(find_export=lambda name: None, soname=soname)
        self._modules = [program, SimpleNamespace(name=soname or "libvlib.so", base=0, image=image)]

    def modules(self) -> list[Any]:
        return self._modules

    def read_word(self, address: int) -> int:
        assert address == VARIABLE
        return self._pointer

    def read(self, address: int, size: int) -> bytes:
        if address not in self._pages:
            raise NfprobeError("Nothing is mapped there.")
        return self._pages[address][:size]


@pytest.mark.parametrize(
    ("text", "soname", "version"),
    [
        (b"26.06-release\0", "libvlib.so.26.06", "26.06-release"),
        (b"24.10-rc0~12-g1a2b3c4d5\0", "libvlib.so.24.10", "24.10-rc0~12-g1a2b3c4d5"),
        (None, "libvlib.so.19.08.1", "19.08.1"),
        (b"\x01\x02\0", "libvlib.so.26.06", "26.06"),
        (b"a name\0", "libvlib.so", ""),
        (b"1." + b"9" * 300, "", ""),
    ],
)
def test_version(text: bytes | None, soname: str, version: str) -> None:
    assert read_version(cast(Any, Memory(text, soname))) == version


def test_a_pointer_to_nowhere() -> None:
    assert read_version(cast(Any, Memory(b"26.06\0", "libvlib.so.26.06", pointer=0x123456))) == "26.06"
