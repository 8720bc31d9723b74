# SPDX-License-Identifier: Apache-2.0
"""The processes in which lief reads ELF files, and C++ names are demangled: a file that crashes, hangs or exploits one
affects nothing else.

    python -I -S elfworker.py SOCKET SYS-PATH    (started by elfparser.py, which describes the protocol)

The first one loads lief and drops its rights before it gets a file: another user, no capabilities, no files but the
descriptors that it receives, and few system calls. It parses no file: for each request it forks a child, which drops
all calls but those that reading needs, has no socket but the one for this answer, and exits. So a child that a file has
taken over sees no other file and answers for no other file. Nothing of this package is imported here.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # -I -S: the monitor's import path only, nothing from the environment or a folder
    sys.path[:] = sys.argv[2].split(os.pathsep)

import array
import ctypes
import fcntl
import gc
import io
import resource
import select
import signal
import socket
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

# lief makes 100,000 objects that stay: to look through them again and again for garbage is a quarter of its loading.
gc.disable()
import lief  # noqa: E402

gc.freeze()  # and this, to the oldest generation without looking
gc.unfreeze()
gc.enable()

DONE, NO_ELF, NO_MEMORY, NOT_READ = b"d", b"n", b"m", b"x"
JUMP_SLOT, GLOB_DAT, RELATIVE = 7, 6, 8
SONAME = 14  # DT_SONAME
UNREADABLE_NAME = "?"
REQUEST = struct.Struct("<sQQ")  # question; limits of memory (bytes) and processor time (s)
STATUS = struct.Struct("<i")  # of the child, as from waitpid
_TABLES = ("dyn_symbols", "symtab_symbols", "symbol_versions", "relocations", "notes", "overlay")

OWN_USERS = 0x7C000000  # above those of directories and containers; processes of a shared user could signal each other
NOBODY = 65534
CPU_SECONDS_MAX, MEMORY_BYTES_MAX = 3600, 6 << 30  # in its lifetime
IDLE_MS = 10_000
FILES_MAX = 16
F_SETSIG = 10
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_FILTER = 1, 38, 22, 2
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAPABILITIES_VERSION = 0x20080522
X86_64, KILL_PROCESS, ERRNO_EPERM, ALLOW = 0xC000003E, 0x80000000, 0x00050001, 0x7FFF0000
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of classic BPF, on 32-bit words
ARCHITECTURE_AT, NUMBER_AT, FIRST_ARGUMENT_AT = 4, 0, 16
PRCTL, PRLIMIT, CLONE = 157, 302, 56
FORK_FLAGS, OTHER_FORK_FLAGS = 0x1200011, 0x11  # SIGCHLD, with and without CLONE_CHILD_SETTID and _CLEARTID
READING_CALLS = (
    *(0, 1, 3, 7, 8, 17),  # read, write, close, poll, lseek, pread64
    *(9, 10, 11, 12, 25, 28),  # mmap, mprotect, munmap, brk, mremap, madvise
    *(13, 14, 15, 24, 202, 228),  # rt_sigaction, rt_sigprocmask, rt_sigreturn, sched_yield, futex, clock_gettime
    *(44, 45, 47, 60, 231),  # sendto, recvfrom, recvmsg, exit, exit_group
)
SERVING_CALLS = (
    *READING_CALLS,
    *(39, 57, 61, 110, 186),  # getpid, fork, wait4, getppid, gettid
    *(273, 334),  # set_robust_list, rseq: of a new process's C library
)
SERVING_CALLS_WITH = {  # by their first arguments; prlimit64 of this process itself
    CLONE: (FORK_FLAGS, OTHER_FORK_FLAGS),
    PRCTL: (PR_SET_SECCOMP, PR_SET_PDEATHSIG),
    PRLIMIT: (0,),
}


# ---- giving up rights ---------------------------------------------------------------------------------------------


def _end_with_the_monitor() -> None:
    """Standard input is a pipe from the monitor: when it closes, the kernel kills this process and its child, whatever
    they do. They are a process group, as elfparser.py starts a session.

    PR_SET_PDEATHSIG would act when the *thread* that started it ends. The signal is sent by the user that requests it
    here: in a container even root may signal only the same user.
    """
    fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpid())
    fcntl.fcntl(0, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def give_up_rights(library: ctypes.CDLL) -> None:
    """Drops rights irrevocably. What a container does not allow is skipped: the other restrictions suffice mostly."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # the OOM killer takes this process, not the monitor
    library.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    limits = {"CORE": 0, "FSIZE": 0, "MEMLOCK": 0, "NOFILE": FILES_MAX}
    limits |= {"CPU": CPU_SECONDS_MAX, "AS": MEMORY_BYTES_MAX}
    if os.geteuid() == 0:
        with suppress(OSError):
            os.setgroups([])
        for user in (OWN_USERS + os.getpid(), NOBODY):
            with suppress(OSError):
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                break
    _end_with_the_monitor()
    if os.geteuid() == OWN_USERS + os.getpid():  # the limit is per user, and other users may have more processes
        limits["NPROC"] = 2
    library.capset(struct.pack("<Ii", CAPABILITIES_VERSION, 0), bytes(24))
    for name, limit in limits.items():
        _limit(getattr(resource, f"RLIMIT_{name}"), limit, limit)
    library.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _allow_only(library, SERVING_CALLS, SERVING_CALLS_WITH)


def _limit(what: int, wanted: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    wanted, most = (limit if hard == resource.RLIM_INFINITY else min(limit, hard) for limit in (wanted, most))
    resource.setrlimit(what, (wanted, most))


def _allow_only(library: ctypes.CDLL, numbers: Iterable[int], numbers_with: Mapping[int, Sequence[int]]) -> None:
    """Makes every other system call fail with EPERM.

    Args:
        library: the C library.
        numbers: of allowed calls.
        numbers_with: further allowed calls: values of the first arguments, without their high halves.
    """
    rows = [(LOAD, 0, 0, ARCHITECTURE_AT), (EQUAL, 1, 0, X86_64), (RETURN, 0, 0, KILL_PROCESS), (LOAD, 0, 0, NUMBER_AT)]
    for number in numbers:
        rows += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    for number, arguments in numbers_with.items():
        rows += [(EQUAL, 0, 2 * len(arguments) + 2, number), (LOAD, 0, 0, FIRST_ARGUMENT_AT)]
        for argument in arguments:
            rows += [(EQUAL, 0, 1, argument), (RETURN, 0, 0, ALLOW)]
        rows += [(RETURN, 0, 0, ERRNO_EPERM)]
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
    """Returns addresses, sizes, kinds, bindings, whether of .dynsym, version indices, names, versions."""
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
    """Version names of symbols, by index."""

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
    """Returns slot addresses, whether they are lazy, their names, relocated pointers, words relocated in place."""
    parsed = _parse(content, "dyn_symbols", "relocations")
    if parsed is None:
        return None
    slots, lazy, names = array.array("Q"), bytearray(), []
    pointers, words = array.array("q"), array.array("Q")
    for relocation in parsed.relocations:
        if relocation.is_relatively_encoded:  # DT_RELR: the addend is in the relocated word
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
    """Demangles C++ names with the C++ runtime, loaded while that is still allowed."""

    def __init__(self) -> None:
        self._demangle: Any = None

    def load(self) -> None:
        """Loads the runtime; without one, names stay mangled."""
        for library in CPP_RUNTIMES:
            with suppress(OSError, AttributeError):
                self._demangle = ctypes.CDLL(library)["__cxa_demangle"]  # as an attribute, the class would mangle it
                break
        else:
            return
        self._demangle.restype = ctypes.c_void_p
        self._demangle.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
        self._free = ctypes.CDLL(None).free
        self._free.argtypes = [ctypes.c_void_p]

    def read(self, content: bytes) -> list[bytes] | None:
        """Demangles names separated by zero bytes; an empty result means unchanged. None without a runtime."""
        return [b"\0".join(map(self._shown, content.split(b"\0")))] if self._demangle else None

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


def _serve(connection: socket.socket, library: ctypes.CDLL, own_bytes: int) -> bool:
    """Serves one request; returns False when there are none left. Sends the child's exit status last: only it knows."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if not poll.poll(IDLE_MS):  # another process is started when needed: this one takes 60 MiB
        return False
    request, descriptors, _, _ = socket.recv_fds(connection, REQUEST.size, 2)
    if len(request) != REQUEST.size or len(descriptors) != 2:
        return False
    question, memory_bytes, cpu_seconds = REQUEST.unpack(request)
    own = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            connection.close()
            _narrow(library, own, own_bytes + memory_bytes, cpu_seconds)
            _answer(question, *descriptors)
            os._exit(0)  # at a normal exit lief complains about every leaked object
        finally:
            os._exit(1)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.sendall(STATUS.pack(os.waitpid(child, 0)[1]))
    return True


def _narrow(library: ctypes.CDLL, parent: int, memory_bytes: int, cpu_seconds: int) -> None:
    """Restricts a child to reading."""
    library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it had exited before
        os._exit(1)
    _limit(resource.RLIMIT_NPROC, 0, 0)
    _limit(resource.RLIMIT_CPU, cpu_seconds + 1, cpu_seconds + 2)  # SIGXCPU, which tells the reason; then SIGKILL
    _limit(resource.RLIMIT_AS, memory_bytes, memory_bytes)
    _allow_only(library, READING_CALLS, {})


def _answer(question: bytes, file: int, answer: int) -> None:
    try:
        parts = READERS[question](_whole(file))
        state = DONE if parts is not None else NO_ELF
    except MemoryError:
        parts, state = None, NO_MEMORY
    except Exception:  # lief may raise anything
        parts, state = None, NOT_READ
    parts = parts or []
    for content in (state + struct.pack(f"<{len(parts) + 1}Q", len(parts), *map(len, parts)), *parts):
        left = memoryview(content)
        while left:  # do not wait after the last byte: the monitor may have closed its end
            left = left[os.write(answer, left) :]


def _whole(descriptor: int) -> bytes:
    size_bytes = os.lseek(descriptor, 0, os.SEEK_END)
    return os.pread(descriptor, size_bytes, 0)


def main() -> NoReturn:
    """Serves one monitor until it exits."""
    lief.logging.disable()
    # lief warns of numbers that it does not know; other compilers' files often have such.
    warnings.filterwarnings("ignore", ".* is not a valid ", RuntimeWarning)
    connection = socket.socket(fileno=int(sys.argv[1]))
    with open("/proc/self/statm", encoding="ascii") as file:
        own_bytes = int(file.read().split()[0]) * resource.getpagesize()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the monitor, which may need an answer
        signal.signal(number, signal.SIG_IGN)
    _cpp_names.load()
    library = ctypes.CDLL(None)
    give_up_rights(library)
    connection.sendall(DONE)
    while _serve(connection, library, own_bytes):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
