# SPDX-License-Identifier: Apache-2.0
"""Inject: loads the probe library and its helper thread into a running target.

One thread of the target, blocked in a harmless system call or else stopped at the entry of its next one,
makes the helper thread; it is stopped once, for a millisecond. The helper thread then loads the library
from a memory file that the monitor fills. native/abi/boot.h has the conversation between the two.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.errors import EndedError, NfprobeError
from otel_nfprobe.elf.symbols import exported_address
from otel_nfprobe.linux.descriptors import fill_library
from otel_nfprobe.linux.mappedfile import MappedFile
from otel_nfprobe.shm.session import RING_BYTES_MAX, RING_BYTES_MIN, Session
from otel_nfprobe.target.leftover import find_monitor, refuse_second
from otel_nfprobe.target.library_file import LibraryFile, write_library
from otel_nfprobe.target.liveness import replaced
from otel_nfprobe.target.loadedlibrary import (
    ENTRY_SYMBOL,
    beside_core,
    check_loaded,
    find_library,
    library_name,
    library_offset,
    library_path,
)
from otel_nfprobe.target.musl import ThreadWords
from otel_nfprobe.target.target import Target, Thread, read_status
from otel_nfprobe.target.turns import take_turn

ROUND_PATIENCE_NS = 1_000_000_000  # for one of the threads to reach a safe place; then all are listed again
STAGE_PATIENCE_S = 30.0
FIRST_THREAD_PATIENCE_S = 1.0
ALL_THREADS_PATIENCE_S = 10.0
HELPER_PATIENCE_S = 20.0
STOPPED_PATIENCE_S = 2.0  # for a process stopped by a signal
STOPPED_LOOK_S = 0.01
PREPARED_RINGS_MAX = 3
LIBC_FUNCTIONS = (
    "pthread_create",
    "pthread_attr_init",
    "pthread_attr_setdetachstate",
    "pthread_attr_setstacksize",
    "dlopen",
    "dlsym",
    "dlerror",
)
# System calls in which a blocked thread holds no lock of libc, best first
# (native/core/inject.c checks again when the thread has stopped).
SAFE_SYSTEM_CALLS = (
    "epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6", "nanosleep",
    "clock_nanosleep", "restart_syscall", "pause", "rt_sigsuspend", "rt_sigtimedwait", "accept", "accept4",
    "recvfrom", "recvmsg", "read", "readv", "wait4", "waitid",
)  # fmt: skip
FIRST_WORD_SYMBOL = "nfp_null_thread"
SYSCALL_FUNCTION_BYTES = 128  # of the C library's function `syscall`: 43 in glibc, 134 in musl


@dataclass(frozen=True, slots=True)
class Injected:
    """A session served by a helper thread in the target.

    Attributes:
        session: mapped and locked.
        stopped_ns: how long the chosen thread was stopped.
        thread: its ID.
        fresh: the library was loaded now, not by an earlier attach.
    """

    session: Session
    stopped_ns: int
    thread: int
    fresh: bool


def inject(target: Target, ring_bytes: int, refuse: Callable[[], None] | None = None) -> Injected:
    """Loads the library if necessary, starts the helper thread and opens the session.

    Args:
        target: a checked target.
        ring_bytes: a power of two.
        refuse: called last before anything is changed; raises to stop here.

    Raises:
        NfprobeError: no safe place was found, or the target did not respond. The target continues unharmed.
    """
    if ring_bytes & (ring_bytes - 1) or not RING_BYTES_MIN <= ring_bytes <= RING_BYTES_MAX:
        raise NfprobeError("The ring size must be a power of two from 64 KiB to 256 MiB.")
    with take_turn(target):
        if session_is_served(target):
            refuse_second(target)
            raise NfprobeError(f"Another nfprobe is attached to process {target.pid}.", f"nfprobe status {target.pid}")
        library = find_library(target)
        boot = _boot_values(target, ring_bytes, library)
        request = _request(target)
        words = _look_at_words(target, bool(library))
        _await_running(target)
        if refuse is not None:
            refuse()
        ignored_trap = ignores_trap(target.pid)
        thread = _run(target, request, boot)
        try:
            session = _converse(target, request, library)
            _prepare(target, session, ignored_trap, words)
        except FileNotFoundError as error:
            raise EndedError.of(target.pid) from error
    return Injected(session, int(request.stopped_ns), thread, not library)


def _await_running(target: Target) -> None:
    """Waits until a process is not stopped by a signal: it would not run a helper thread.

    Raises:
        NfprobeError: it does not continue.
    """
    deadline = time.monotonic() + STOPPED_PATIENCE_S
    while read_status(target.pid).get("State", "").startswith("T"):
        if time.monotonic() > deadline:
            raise NfprobeError(
                f"Process {target.pid} is stopped (by SIGSTOP, or by a terminal): nothing was changed in it.",
                f"kill -CONT {target.pid}",
            )
        time.sleep(STOPPED_LOOK_S)


def may_sync_cores(target: Target) -> bool:
    """Returns whether no seccomp filter keeps the helper thread from membarrier and from setting the SIGTRAP action."""
    if target.may_sync_cores is None:
        return read_status(target.pid).get("Seccomp", "0") == "0"
    return target.may_sync_cores


def ignores_trap(pid: int) -> bool:
    """Returns whether a process ignores SIGTRAP: the kernel resets that when one of its threads is single-stepped."""
    return bool(int(read_status(pid).get("SigIgn", "0"), 16) >> (signal.SIGTRAP - 1) & 1)


def session_is_served(target: Target) -> bool:
    """Returns whether one of our helper threads runs in the target: a monitor is attached, or was until a moment
    ago.
    """
    deadline = time.monotonic() + HELPER_PATIENCE_S
    while any(thread.name == "nfprobe" for thread in target.threads()):
        if find_monitor(target) is not None or time.monotonic() > deadline:
            return True
        time.sleep(0.02)  # a helper notices within 0.1 s that its monitor is gone, within 9 s that none attached
    return False


@lru_cache(maxsize=1)
def _bootstrap() -> bytes:
    return beside_core("bootstrap.bin").read_bytes()


def _boot_values(target: Target, ring_bytes: int, library: int) -> Any:
    boot = ffi.new("struct nfp_boot *")
    for name in LIBC_FUNCTIONS:
        address = exported_address(target, name)
        if address is None:
            raise NfprobeError(
                f"Process {target.pid} has no function {name}: its C library is too old to load a library into it.",
                f"nfprobe doctor {target.pid}",
            )
        setattr(boot, name, address)
    if library:
        boot.entry = library + library_offset(target.runs_on_musl, ENTRY_SYMBOL)
    boot.ring_bytes = ring_bytes
    threads = target.threads()
    boot.prepared_rings = min(len(threads), PREPARED_RINGS_MAX)
    for word, bits in enumerate(_helper_cpus(threads)):
        boot.cpus[word] = bits
    memory_file = library_name(target.runs_on_musl).encode()
    ffi.memmove(boot.library_name, memory_file, len(memory_file))
    return boot


def _helper_cpus(threads: Sequence[Thread]) -> list[int]:
    """Returns CPU mask words for the helper thread: CPUs where no thread of the target is pinned alone, if possible."""
    everywhere: set[int] = set(range(os.cpu_count() or 1))
    pinned = {next(iter(thread.cpus)) for thread in threads if len(thread.cpus) == 1}
    allowed: Iterable[int] = everywhere - pinned or everywhere
    mask = sum(1 << cpu for cpu in allowed)
    return [mask >> (64 * word) & 0xFFFFFFFFFFFFFFFF for word in range(16)]


def _request(target: Target) -> Any:
    place = {"pid": target.pid, "memory_fd": target.memory.descriptor}
    request = ffi.new("struct nfp_inject *", {**place, "patience_ns": ROUND_PATIENCE_NS})
    bootstrap = ffi.from_buffer(_bootstrap())
    _KEPT[request] = bootstrap
    request.bootstrap = ffi.cast("uint8_t *", bootstrap)
    request.bootstrap_bytes = len(_bootstrap())
    request.syscall_address = syscall_address(target)
    return request


_KEPT: dict[Any, Any] = {}  # buffers referenced by a C structure


def syscall_address(target: Target) -> int:
    """Returns the address of a system call's instruction in the target's C library.

    Raises:
        NfprobeError: there is none.
    """
    function = exported_address(target, "syscall")
    code = target.read(function, SYSCALL_FUNCTION_BYTES) if function is not None else b""
    found = code.find(of_host().system_call_code)
    if function is None or found < 0:
        raise NfprobeError(f"Process {target.pid} has no usable C library.", f"nfprobe doctor {target.pid}")
    return function + found


def safe_calls() -> dict[int, int]:
    """Returns the rank of each of SAFE_SYSTEM_CALLS by its number."""
    numbers = of_host().system_calls
    return {numbers[name]: position for position, name in enumerate(SAFE_SYSTEM_CALLS)}


def candidates(target: Target) -> list[Thread]:
    """Returns threads to inject through, the best first: blocked in a harmless call, then those that have blocked
    often.
    """
    rank = safe_calls()
    threads = [thread for thread in target.threads() if thread.tid not in target.unfit_threads]
    blocked = [thread for thread in threads if thread.system_call in rank]
    blocked.sort(key=lambda thread: rank[int(thread.system_call or 0)])
    running = [thread for thread in threads if thread.system_call is None]
    running.sort(key=lambda thread: thread.waits, reverse=True)
    return blocked + running


def waiting(target: Target) -> list[Thread]:
    """Returns threads that wait for other threads, those first that have blocked often: not where they wait, but soon
    after it, one may make a harmless call.
    """
    number = of_host().system_calls["futex"]
    threads = [thread for thread in target.threads() if thread.tid not in target.unfit_threads]
    return sorted((t for t in threads if t.system_call == number), key=lambda thread: thread.waits, reverse=True)


def _run(target: Target, request: Any, boot: Any) -> int:
    """Tries the threads until one is suitable; a program that has just started may have none yet."""
    reason = ""
    turns: Counter[int] = Counter()
    given_up: set[int] = set()
    start = time.monotonic()
    while time.monotonic() - start < (ALL_THREADS_PATIENCE_S if turns else FIRST_THREAD_PATIENCE_S):
        # Listed again each time: a thread that sleeps between its turns on a busy CPU is only blocked now and then.
        listed = candidates(target) + (waiting(target) if turns else [])
        fit = [thread.tid for thread in listed if thread.tid not in given_up]
        if not fit:
            if turns:
                break
            time.sleep(0.01)
            continue
        fit.sort(key=lambda tid: turns[tid])
        tids = ffi.new("int32_t[]", fit)
        request.tids, request.tid_count = tids, len(fit)
        error = lib.nfp_inject(request, boot)
        if error == 0:
            return int(request.tid)
        turns.update(fit[: request.tried])
        reason = reason or ffi.string(request.message).decode(errors="replace")
        if request.tid:
            given_up.add(int(request.tid))
        elif error not in (-errno.EAGAIN, -errno.ESRCH):
            given_up.update(fit)
        if not os.path.exists(f"/proc/{target.pid}"):
            raise EndedError.of(target.pid)
        if error == -errno.ESTALE:
            raise NfprobeError(replaced(target.pid), f"nfprobe attach {target.pid}")
    raise NfprobeError(
        f"No thread of process {target.pid} reached a place where the probe library can be loaded "
        f"({reason or 'all are blocked where they may hold a lock'}).",
        f"nfprobe doctor {target.pid}",
    )


def _look_at_words(target: Target, is_loaded: bool) -> ThreadWords | None:
    """Checks the threads of a musl target before the library is loaded."""
    if not target.runs_on_musl:
        return None
    words = ThreadWords(target)
    if not is_loaded:
        words.look()
    return words


def _prepare(target: Target, session: Session, ignored_trap: bool, words: ThreadWords | None) -> None:
    """Completes the setup that the library does not do itself. Closes the session on failure."""
    try:
        if ignored_trap and may_sync_cores(target):
            session.ask(lib.NFP_COMMAND_SYNC_CORE, lib.NFP_SYNC_IGNORE_TRAP)
        if words is not None:
            first_word = session.library + library_offset(target.runs_on_musl, FIRST_WORD_SYMBOL)
            words.fill(session.tls_offset, first_word)
    except BaseException:
        session.leave()
        session.close()
        raise


def _converse(target: Target, request: Any, library: int) -> Session:
    """Runs _answer, and removes what it leaves behind."""
    files: list[LibraryFile] = []
    try:
        return _answer(target, request, library, files)
    finally:
        for file in files:
            file.remove()


def _answer(target: Target, request: Any, library: int, files: list[LibraryFile]) -> Session:
    """Provides the helper with the library as requested unless it is loaded, opens the session, and starts it."""
    boot_address = int(request.data_address)
    content = library_path(target.runs_on_musl).read_bytes()
    deadline = time.monotonic() + STAGE_PATIENCE_S
    stages: set[int] = set()
    given: list[MappedFile] = []
    while time.monotonic() < deadline:
        stage = _read_int(target, boot_address, "stage")
        if stage in (lib.NFP_BOOT_WANTS_LIBRARY, lib.NFP_BOOT_WANTS_FILE):
            if stage in stages:  # each costs memory on this machine
                raise NfprobeError(
                    f"Process {target.pid} asks for the probe library more than once.", f"nfprobe doctor {target.pid}"
                )
            stages.add(stage)
            if stage == lib.NFP_BOOT_WANTS_LIBRARY:
                descriptor = _read_int(target, boot_address, "library_fd")
                given.append(fill_library(target.pid, descriptor, library_name(target.runs_on_musl), content))
            else:
                _send_file(target, boot_address, content, files)
                given += [file.mapped for file in files]
            _write_stage(target, boot_address, lib.NFP_BOOT_LIBRARY_FILLED)
        elif stage == lib.NFP_BOOT_SESSION_READY:
            return _open_session(target, boot_address, library, given)
        elif stage == lib.NFP_BOOT_FAILED:
            raise NfprobeError(_failure(target, boot_address), f"nfprobe doctor {target.pid}")
        time.sleep(0.0005)
    raise NfprobeError(
        f"The helper thread in process {target.pid} did not start in time.", f"nfprobe doctor {target.pid}"
    )


def _open_session(target: Target, boot_address: int, library: int, given: Sequence[MappedFile]) -> Session:
    session = Session(target.pid, _read_int(target, boot_address, "session_fd"))
    try:
        session.library = library or check_loaded(target, given, int(session.header.helper_address))
        _write_stage(target, boot_address, lib.NFP_BOOT_GO)
    except BaseException:
        session.close()
        raise
    return session


def _failure(target: Target, boot_address: int) -> str:
    message = target.read(boot_address + ffi.offsetof("struct nfp_boot", "message"), 512)
    text = message.split(b"\0")[0].decode(errors="replace")
    return f"The probe library was not loaded into process {target.pid}: {text}."


def _read_int(target: Target, boot_address: int, field: str) -> int:
    offset = ffi.offsetof("struct nfp_boot", field)
    return int.from_bytes(target.read(boot_address + offset, 4), "little", signed=True)


def _write_stage(target: Target, boot_address: int, stage: int) -> None:
    _write(target, boot_address, "stage", stage.to_bytes(4, "little"))


def _write(target: Target, boot_address: int, field: str, content: bytes) -> None:
    target.memory.write(boot_address + ffi.offsetof("struct nfp_boot", field), content)


def _send_file(target: Target, boot_address: int, content: bytes, files: list[LibraryFile]) -> None:
    """Writes the library where a target without /proc can open it. An empty path means that there is no such place."""
    try:
        files.append(write_library(target, content, library_name(target.runs_on_musl)))
    except NfprobeError:
        _write(target, boot_address, "library_path", b"\0")
        return
    _write(target, boot_address, "library_path", files[-1].path.encode() + b"\0")
