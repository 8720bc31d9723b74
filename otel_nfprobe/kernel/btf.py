# SPDX-License-Identifier: Apache-2.0
"""The kernel's own type information (BTF): its functions, and the type IDs by which programs are attached.

    header | types: name, kind and count, size or type, then kind-specific data | strings

Reads one file. The layout is that of the kernel's Documentation/bpf/btf.rst.
"""

from __future__ import annotations

import struct
from pathlib import Path

from otel_nfprobe.base.errors import NfprobeError

VMLINUX = Path("/sys/kernel/btf/vmlinux")
MAGIC = 0xEB9F
FUNCTION = 12  # BTF_KIND_FUNC
_HEADER = struct.Struct("<HBBIIIII")  # magic, version, flags, header bytes, types: offset, bytes; strings: the same
_TYPE = struct.Struct("<III")
# Bytes after a type: (fixed, per member), by kind; other kinds have none.
_BEHIND = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0), 15: (0, 12)}
_BEHIND |= {17: (4, 0), 19: (0, 12)}


def read_functions(path: Path = VMLINUX) -> dict[str, int]:
    """Returns the type ID of each function of the kernel image, by name.

    Raises:
        NfprobeError: the kernel was built without this information, or it is malformed.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NfprobeError(
            f"Functions of the kernel cannot be found: its type information ({path}) cannot be read"
            f" ({error.strerror}); the kernel must be built with CONFIG_DEBUG_INFO_BTF.",
            "nfprobe doctor",
        ) from error
    try:
        return parse_functions(content)
    except (struct.error, IndexError, ValueError) as error:
        raise NfprobeError(f"The kernel's type information ({path}) is malformed.", "nfprobe doctor") from error


def parse_functions(content: bytes) -> dict[str, int]:
    """Parses the bytes of such a file.

    Raises:
        ValueError, struct.error: malformed.
    """
    magic, _, _, header_bytes, types_at, types_bytes, strings_at, strings_bytes = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise ValueError("not BTF")
    at = header_bytes + types_at
    end = at + types_bytes
    strings = content[header_bytes + strings_at :][:strings_bytes]
    found: dict[str, int] = {}
    number = 0
    while at < end:
        number += 1
        name, information, _ = _TYPE.unpack_from(content, at)
        kind = information >> 24 & 0x1F
        if kind == FUNCTION:
            found[strings[name : strings.index(0, name)].decode("utf-8", "replace")] = number
        fixed, each = _BEHIND.get(kind, (0, 0))
        at += _TYPE.size + fixed + each * (information & 0xFFFF)
    return found
