# SPDX-License-Identifier: Apache-2.0
"""The process in which lief reads ELF files, and C++ names are demangled: a file that makes it crash, hang or obey
takes nothing else with it.

    python -I -S elfworker.py SOCKET SYS-PATH    (elfparser.py starts it, and says there what goes over the socket)

It gives up its rights before it gets a file: another user, no capability, no file but the descriptor that it is sent,
and no system call but those that reading takes. Nothing of this package is imported here.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # -I -S: what the monitor imports from, and nothing that the environment or a folder says
    sys.path[:] = sys.argv[2].split(os.pathsep)

import array
import ctypes
import fcntl
import io
import resource
import select
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

import lief

DONE, NO_ELF, NO_MEMORY, NOT_READ = b"d", b"n", b"m", b"x"
JUMP_SLOT, GLOB_DAT, RELATIVE = 7, 6, 8
SONAME = 14  # DT_SONAME
UNREADABLE_NAME = "?"
REQUEST = struct.Struct("<sQQ")  # what is asked; the most memory (bytes) and processor time (s) that it may take
_TABLES = ("dyn_symbols", "symtab_symbols", "symbol_versions", "relocations", "notes", "overlay")

OWN_USERS = 0x7C000000  # behind those of directories and containers; a user of nobody else could be signalled by him
NOBODY = 65534
CPU_SECONDS_MAX, MEMORY_BYTES_MAX = 3600, 6 << 30  # of its life
IDLE_MS = 10_000
FILES_MAX = 16
F_SETSIG = 10
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_FILTER = 38, 22, 2
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITIES_VERSION = 0x20080522
X86_64, KILL_PROCESS, ERRNO_EPERM, ALLOW = 0xC000003E, 0x80000000, 0x00050001, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF, on 32-bit words
ARCHITECTURE_AT, NUMBER_AT, FIRST_ARGUMENT_AT = 4, 0, 16
PRLIMIT = 302
CALLS = (
    *(0, 1, 3, 7, 8, 17),  # read, write, close, poll, lseek, pread64
    *(9, 10, 11, 12, 25, 28),  # mmap, mprotect, munmap, brk, mremap, madvise
    *(13, 14, 15, 24, 202, 228),  # rt_sigaction, rt_sigprocmask, rt_sigreturn, sched_yield, futex, clock_gettime
    *(44, 45, 47, 60, 231),  # sendto, recvfrom, recvmsg, exit, exit_group
)


# ---- giving up rights ---------------------------------------------------------------------------------------------


def _end_with_the_monitor() -> None:
    """Standard input is a pipe of the monitor's: when that is gone the kernel ends this process, whatever it does.

    PR_SET_PDEATHSIG would do so when the *thread* ends that has started it.
    """
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def give_up_rights() -> None:
    """For good. What a container does not allow is left out: each of the others is enough for most files."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # when memory runs out this process ends, not the monitor
    library = ctypes.CDLL(None)
    library.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if os.geteuid() == 0:
        with suppress(OSError):
            os.setgroups([])
        for user in (OWN_USERS + os.getpid(), NOBODY):
            with suppress(OSError):
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                break
    library.capset(struct.pack("<Ii", CAPABILITIES_VERSION, 0), bytes(24))
    limits = {"CORE": 0, "FSIZE": 0, "NPROC": 0, "MEMLOCK": 0, "NOFILE": FILES_MAX}
    limits |= {"CPU": CPU_SECONDS_MAX, "AS": MEMORY_BYTES_MAX}
    for name, limit in limits.items():
        _limit(getattr(resource, f"RLIMIT_{name}"), limit, for_good=True)
    library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _allow_only(library, CALLS)


def _limit(what: int, wanted: int, for_good: bool = False) -> None:
    hard = resource.getrlimit(what)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(what, (limit, limit if for_good else hard))


def _allow_only(library: ctypes.CDLL, numbers: Iterable[int]) -> None:
    """Every other system call fails with EPERM; of prlimit64 those for this process are made."""
    rows = [(LOAD, 0, 0, ARCHITECTURE_AT), (EQUAL, 1, 0, X86_64), (RETURN, 0, 0, KILL_PROCESS), (LOAD, 0, 0, NUMBER_AT)]
    for number in numbers:
        rows += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    rows += [(EQUAL, 0, 3, PRLIMIT), (LOAD, 0, 0, FIRST_ARGUMENT_AT), (EQUAL, 0, 1, 0), (RETURN, 0, 0, ALLOW)]
    rows += [(RETURN, 0, 0, ERRNO_EPERM)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
    header = ctypes.create_string_buffer(struct.pack("<H6xQ", len(rows), ctypes.addressof(program)))
    library.prctl(PR_SET_SECCOMP, SECCOMP_FILTER, ctypes.c_void_p(ctypes.addressof(header)), 0, 0)


# ---- what is read -------------------------------------------------------------------------------------------------


def _parse(content: bytes, *tables: str) -> Any:
    wanted = lief.ELF.ParserConfig()
    for table in _TABLES:
        setattr(wanted, f"parse_{table}", table in tables)
    return lief.ELF.parse(io.BytesIO(content), wanted)


def _text(item: Any) -> str:
    # lief raises for a name that is not UTF-8.
    try:
        return str(item.name)
    except UnicodeDecodeError:
        return UNREADABLE_NAME


def _joined(names: list[str]) -> bytes:
    if any("\0" in name for name in names):  # it is the separator
        names = [name.partition("\0")[0] for name in names]
    return "\0".join(names).encode("utf-8", "replace")


def _read_head(content: bytes) -> list[bytes] | None:
    """Segments, sections, the names of these, notes, their texts, DT_SONAME."""
    parsed = _parse(content, "notes")
    if parsed is None:
        return None
    segments = b"".join(
        struct.pack(
            "<QQQQQQ",
            int(item.type) & 0xFFFFFFFF,
            int(item.virtual_address),
            int(item.file_offset),
            int(item.physical_size),
            int(item.virtual_size),
            int(item.flags) & 0xFFFFFFFF,
        )
        for item in parsed.segments
    )
    sections = [(_text(item), int(item.virtual_address), int(item.size)) for item in parsed.sections]
    notes = [
        (_text(note).rstrip("\0").encode(), int(note.original_type) & 0xFFFFFFFF, bytes(note.description))
        for note in parsed.notes
    ]
    return [
        segments,
        b"".join(struct.pack("<QQ", address, size) for _, address, size in sections),
        _joined([name for name, _, _ in sections]),
        b"".join(struct.pack("<QQQ", kind, len(name), len(text)) for name, kind, text in notes),
        b"".join(name + text for name, _, text in notes),
        next((_text(entry) for entry in parsed.dynamic_entries if int(entry.tag) == SONAME), "").encode(),
    ]


def _read_symbols(content: bytes) -> list[bytes] | None:
    """Addresses, sizes, kinds, bindings, whether of .dynsym, numbers of versions, names, versions."""
    parsed = _parse(content, "dyn_symbols", "symtab_symbols", "symbol_versions")
    if parsed is None:
        return None
    addresses, sizes, versions = array.array("Q"), array.array("Q"), array.array("I")
    kinds, bindings, dynamic, names = bytearray(), bytearray(), bytearray(), []
    known, texts = _Versions(), {"": 0}
    for is_dynamic, table in ((1, parsed.dynamic_symbols), (0, parsed.symtab_symbols)):
        for symbol in table:
            kind = int(symbol.type) & 0xF
            address = int(symbol.value)
            if kind in (1, 2, 10) and address and int(symbol.shndx) != 0:
                addresses.append(address)
                sizes.append(int(symbol.size))
                kinds.append(kind)
                bindings.append(int(symbol.binding) & 0xF)
                dynamic.append(is_dynamic)
                names.append(_text(symbol))
                version = known.of(symbol) if is_dynamic else ""
                versions.append(texts.setdefault(version, len(texts)))
    columns = [addresses.tobytes(), sizes.tobytes(), bytes(kinds), bytes(bindings), bytes(dynamic), versions.tobytes()]
    return [*columns, _joined(names), _joined(list(texts))]


class _Versions:
    """Versions of symbols as text, by their numbers."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, symbol: Any) -> str:
        if not symbol.has_version:
            return ""
        value = int(symbol.symbol_version.value)
        if value not in self._known:
            version = symbol.symbol_version
            text = _text(version.symbol_version_auxiliary) if version.has_auxiliary_version else ""
            sign = "@" if value & 0x8000 else "@@"
            self._known[value] = f"{sign}{text}" if text else "@" if value & 0x8000 else ""
        return self._known[value]


def _read_relocations(content: bytes) -> list[bytes] | None:
    """Addresses of slots, whether they are lazy, their names, relocated pointers, words relocated where they are."""
    parsed = _parse(content, "dyn_symbols", "relocations")
    if parsed is None:
        return None
    slots, lazy, names = array.array("Q"), bytearray(), []
    pointers, words = array.array("q"), array.array("Q")
    for relocation in parsed.relocations:
        if relocation.is_relatively_encoded:  # DT_RELR: the addend stands in the relocated word
            words.append(int(relocation.address))
            continue
        kind = int(relocation.r_info(lief.ELF.Header.CLASS.ELF64)) & 0xFFFFFFFF
        if kind == RELATIVE:
            pointers.append(int(relocation.addend))
        elif kind in (JUMP_SLOT, GLOB_DAT):
            symbol = relocation.symbol
            slots.append(int(relocation.address))
            lazy.append(kind == JUMP_SLOT)
            names.append(_text(symbol) if symbol else "")
    return [slots.tobytes(), bytes(lazy), _joined(names), pointers.tobytes(), words.tobytes()]


CPP_RUNTIMES = ("libstdc++.so.6", "libc++abi.so.1")
SHOWN_BYTES_MAX = 1 << 16


class _CppNames:
    """C++ names as people write them, by the C++ runtime, which is loaded while that is allowed."""

    def __init__(self) -> None:
        self._demangle: Any = None

    def load(self) -> None:
        """Finds the runtime; without one names stay as they are."""
        for library in CPP_RUNTIMES:
            with suppress(OSError, AttributeError):
                self._demangle = ctypes.CDLL(library)["__cxa_demangle"]  # by attribute the class would mangle it
                break
        else:
            return
        self._demangle.restype = ctypes.c_void_p
        self._demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]

    def read(self, content: bytes) -> list[bytes]:
        """Names with zero bytes between them; an empty one is to stay as it is."""
        names = content.split(b"\0")
        return [b"\0".join(map(self._shown, names) if self._demangle else [b""] * len(names))]

    def _shown(self, name: bytes) -> bytes:
        found = self._demangle(name, None, None, ctypes.byref(ctypes.c_int()))
        if not found:
            return b""
        text = ctypes.string_at(found)
        self._free(found)
        return text if len(text) <= SHOWN_BYTES_MAX else b""


_cpp_names = _CppNames()

READERS: dict[bytes, Callable[[bytes], list[bytes] | None]] = {
    b"h": _read_head,
    b"s": _read_symbols,
    b"r": _read_relocations,
    b"n": _cpp_names.read,
}


# ---- requests -----------------------------------------------------------------------------------------------------


def _answer(connection: socket.socket, own_bytes: int) -> bool:
    """One request; False when there is none any more."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if not poll.poll(IDLE_MS):  # another process is started when it is needed: this one takes 60 MiB
        return False
    request, descriptors, _, _ = socket.recv_fds(connection, REQUEST.size, 1)
    if len(request) != REQUEST.size or not descriptors:
        return False
    question, memory_bytes, cpu_seconds = REQUEST.unpack(request)
    _limit(resource.RLIMIT_CPU, int(time.process_time() + cpu_seconds + 1))
    _limit(resource.RLIMIT_AS, own_bytes + memory_bytes)
    try:
        parts = READERS[question](_whole(descriptors[0]))
        state = DONE if parts is not None else NO_ELF
    except MemoryError:
        parts, state = None, NO_MEMORY
    except Exception:  # whatever lief raises for what it cannot read
        parts, state = None, NOT_READ
    os.close(descriptors[0])
    parts = parts or []
    connection.sendall(state + struct.pack(f"<{len(parts) + 1}Q", len(parts), *map(len, parts)))
    for part in parts:
        connection.sendall(part)
    return True


def _whole(descriptor: int) -> bytes:
    size_bytes = os.lseek(descriptor, 0, os.SEEK_END)
    return os.pread(descriptor, size_bytes, 0)


def main() -> NoReturn:
    """Serves one monitor until that is gone."""
    lief.logging.disable()
    # lief warns of numbers that it has no name for; they are ordinary in files of other compilers.
    warnings.filterwarnings("ignore", ".* is not a valid ", RuntimeWarning)
    connection = socket.socket(fileno=int(sys.argv[1]))
    with open("/proc/self/statm", encoding="ascii") as file:
        own_bytes = int(file.read().split()[0]) * resource.getpagesize()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the monitor, which may need an answer
        signal.signal(number, signal.SIG_IGN)
    _cpp_names.load()
    _end_with_the_monitor()
    give_up_rights()
    connection.sendall(DONE)
    while _answer(connection, own_bytes):
        pass
    os._exit(0)  # lief complains about every object of its that is left at the end


if __name__ == "__main__":
    main()
