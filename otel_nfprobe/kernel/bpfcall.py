# SPDX-License-Identifier: Apache-2.0
"""The system call bpf(2): maps, programs at a kernel function's entry and exit, their attachment; rings and types.

Everything created here lives as long as its file descriptor: nothing stays in the kernel after a monitor was killed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

import numpy as np

from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError

MAP_CREATE, MAP_LOOKUP, PROGRAM_LOAD, OBJECT_INFO, ATTACH = 0, 1, 5, 15, 17
HASH, ARRAY, RING = 1, 2, 27  # types of maps
RAW_TRACEPOINT, TRACING = 17, 26  # types of programs
LICENSE = b"Apache-2.0"
ATTRIBUTE_BYTES = 120
INFO_BYTES = 232
LOG_BYTES = 1 << 16
_MISSES_AT = 208  # recursion_misses in struct bpf_prog_info
_libc = ctypes.CDLL(None, use_errno=True)


class When(IntEnum):
    """The attach point of a program: enum bpf_attach_type."""

    TRACEPOINT = 0
    ENTRY = 24
    EXIT = 25


def call_bpf(command: int, attribute: bytes) -> int:
    """Makes the system call, with a union bpf_attr. Returns a descriptor or 0. Raises OSError."""
    buffer = ctypes.create_string_buffer(attribute, ATTRIBUTE_BYTES)
    number = ctypes.c_long(of_host().system_calls["bpf"])
    result = int(_libc.syscall(number, ctypes.c_int(command), buffer, ctypes.c_uint(ATTRIBUTE_BYTES)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def make_map(kind: int, key_bytes: int, value_bytes: int, entries: int) -> int:
    """Creates a map; for a RING `entries` is its size in bytes. Returns its descriptor. Raises OSError."""
    return call_bpf(MAP_CREATE, struct.pack("<IIII", kind, key_bytes, value_bytes, entries))


def read_value(map_descriptor: int, value_bytes: int) -> bytes:
    """Returns the value of a one-element ARRAY. Raises OSError."""
    key = ctypes.create_string_buffer(4)
    value = ctypes.create_string_buffer(value_bytes)
    call_bpf(MAP_LOOKUP, struct.pack("<IxxxxQQ", map_descriptor, ctypes.addressof(key), ctypes.addressof(value)))
    return value.raw


def load_program(code: bytes, when: When, function: int) -> int:
    """Loads a program for one kernel function, or a tracepoint.

    Args:
        code: its instructions.
        function: BTF type ID of the kernel function; 0 for a tracepoint.

    Returns:
        its descriptor.

    Raises:
        OSError: its `filename` is the last message of the kernel's verifier, if there is any.
    """
    try:
        return _load(code, when, function, None)
    except OSError as error:
        log = ctypes.create_string_buffer(LOG_BYTES)
        try:
            return _load(code, when, function, log)
        except OSError:
            said = [line for line in log.value.decode("utf-8", "replace").splitlines() if line]
            said = [line for line in said if not line.startswith(("processed ", "max_states"))]
            raise OSError(error.errno, error.strerror, said[-1] if said else "") from None


def _load(code: bytes, when: When, function: int, log: ctypes.Array[ctypes.c_char] | None) -> int:
    instructions, license_ = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(LICENSE)
    attribute = bytearray(ATTRIBUTE_BYTES)
    kind = RAW_TRACEPOINT if when == When.TRACEPOINT else TRACING
    places = ctypes.addressof(instructions), ctypes.addressof(license_)
    struct.pack_into("<IIQQ", attribute, 0, kind, len(code) // 8, *places)
    if log is not None:
        struct.pack_into("<IIQ", attribute, 24, 1, LOG_BYTES, ctypes.addressof(log))
    struct.pack_into("<16s", attribute, 48, b"nfprobe")
    struct.pack_into("<I", attribute, 68, when)
    struct.pack_into("<I", attribute, 108, function)
    return call_bpf(PROGRAM_LOAD, bytes(attribute))


def attach(program: int, tracepoint: bytes = b"") -> int:
    """Attaches a program at its function or at a tracepoint; closing the result detaches it. Raises OSError."""
    name = ctypes.create_string_buffer(tracepoint)
    return call_bpf(ATTACH, struct.pack("<QI", ctypes.addressof(name) if tracepoint else 0, program))


def read_misses(program: int) -> int:
    """Returns how often a program was skipped because it was already running on that CPU; 0 if the kernel does not
    report it.
    """
    information = ctypes.create_string_buffer(INFO_BYTES)
    try:
        call_bpf(OBJECT_INFO, struct.pack("<IIQ", program, INFO_BYTES, ctypes.addressof(information)))
    except OSError:
        return 0
    misses: int = struct.unpack_from("<Q", information.raw, _MISSES_AT)[0]
    return misses


# ---- its ring -------------------------------------------------------------------------------------------------------
# The ring that BPF programs write into (BPF_MAP_TYPE_RINGBUF), read through its pages.
#
#     one page: consumer position | one page: producer position | the records, mapped twice in a row
#
# Each record is a length with two flag bits, a word, and the payload. All of ours have the same length.


BUSY = 1 << 31  # reserved, not yet committed
CALL = np.dtype([("length", "<u4"), ("page", "<u4"), ("duration_ns", "<u8"), ("thread", "<u8")])


class BpfRing:
    """One ring of records of dtype CALL.

    Args:
        descriptor: of the map.
        ring_bytes: a power of two, at least a page.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, descriptor: int, ring_bytes: int) -> None:
        page = mmap.PAGESIZE
        self._mask = ring_bytes - 1
        self._reader = mmap.mmap(descriptor, page)
        self._writer = mmap.mmap(descriptor, page + 2 * ring_bytes, prot=mmap.PROT_READ, offset=page)
        self._read_to = np.frombuffer(self._reader, "<u8", 1)  # stored as one word
        self._written_to = np.frombuffer(self._writer, "<u8", 1)

    def take(self) -> Rows:
        """Returns a copy of the records since the last call, in the order of their reservation."""
        first, last = int(self._read_to[0]), int(self._written_to[0])
        count = (last - first) // CALL.itemsize
        rows: Rows = np.frombuffer(self._writer, CALL, count, mmap.PAGESIZE + (first & self._mask)).copy()
        busy = np.flatnonzero(rows["length"] & BUSY)
        if len(busy):
            rows = rows[: busy[0]]
        self._read_to[0] = first + len(rows) * CALL.itemsize
        return rows

    def close(self) -> None:
        """Unmaps it."""
        del self._read_to, self._written_to
        for pages in (self._reader, self._writer):
            with suppress(BufferError):
                pages.close()


# ---- type information -----------------------------------------------------------------------------------------------
# The kernel's own type information (BTF): which functions it has, and the number that a program is attached by.
#
#     header | types: name, kind and count, size or type, then kind-specific data | strings
#
# Reads one file. The layout is that of the kernel's Documentation/bpf/btf.rst.


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
