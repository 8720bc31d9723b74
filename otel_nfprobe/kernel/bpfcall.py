# SPDX-License-Identifier: Apache-2.0
"""The system call bpf(2): maps, programs at a kernel function's entry and exit, and their attachment.

Everything created here lives as long as its file descriptor: nothing stays in the kernel after a monitor was killed.
"""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntEnum

SYS_BPF = 321  # on x86-64
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
    result = int(_libc.syscall(ctypes.c_long(SYS_BPF), ctypes.c_int(command), buffer, ctypes.c_uint(ATTRIBUTE_BYTES)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
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
