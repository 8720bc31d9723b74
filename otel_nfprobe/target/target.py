# SPDX-License-Identifier: Apache-2.0
"""A running process, inspected but never changed.

Everything is read from /proc. preflight.py decides whether the process can be probed before anything in it is changed;
only inject.py and patch.py write.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from otel_nfprobe.base.errors import EndedError, NfprobeError, RefusedError, UsageError
from otel_nfprobe.elf.elf import PAGE_BYTES, ElfImage, UnreadableError, read_image
from otel_nfprobe.elf.modules import Module, without_copies
from otel_nfprobe.linux.memory import Memory

COMPARED_BYTES = PAGE_BYTES  # of a file's first page, where device and inode do not identify the mapped file
POLICIES = {0: "other", 1: "fifo", 2: "round robin", 3: "batch", 5: "idle", 6: "deadline"}
MAP_FILES_NEED = "; reading it through the process requires CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE."
SKIPPED_PATHS = ("/memfd:", "/dev/", "/SYSV", "/anon_hugepage", "/[aio]")


class Mapping(NamedTuple):
    """One line of /proc/PID/maps."""

    start: int
    end: int
    permissions: str
    offset: int
    device: str
    inode: int
    path: str

    @property
    def is_executable(self) -> bool:
        """Whether the mapping is executable."""
        return "x" in self.permissions


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread of a target.

    Attributes:
        name: its comm.
        state: letter of /proc/PID/stat: R running, S sleeping, ...
        system_call: number of the one it is blocked in; -1 blocked elsewhere; None running or unknown.
        cpus: its CPU affinity.
        policy: its scheduling policy.
        waits: number of times it has blocked since its start; low for a polling thread.
    """

    tid: int
    name: str
    state: str
    system_call: int | None
    cpus: frozenset[int]
    policy: str
    waits: int


class Target:
    """A process.

    Args:
        pid: in this process's PID namespace.

    Raises:
        UsageError: there is no such process.
    """

    def __init__(self, pid: int) -> None:
        if pid <= 0 or not os.path.isdir(f"/proc/{pid}"):
            raise UsageError(f"No process has pid {pid}.", "pgrep -a NAME")
        status = read_status(pid)
        if int(status.get("Tgid", pid)) != pid:
            raise UsageError(
                f"{pid} is a thread of process {status['Tgid']}, not a process.",
                f"nfprobe attach {status['Tgid']}",
            )
        self.pid = pid
        self.started_ticks = int(read_stat(pid)[19])  # with the pid, identifies a process uniquely
        self._modules: dict[tuple[str, str, int, int], Module] = {}
        self._images: dict[tuple[str, str, int], ElfImage | None] = {}
        self.memory = Memory(pid)  # first: whatever is read later belongs to this program, or cannot be read
        self._had_memory = not self.memory.is_gone  # a kernel thread has none
        self.unreadable: dict[str, str] = {}  # modules whose file cannot be read: a sentence by path
        self.may_sync_cores: bool | None = None  # by its seccomp filters; None: it has none, or they are unknown
        self.counters_forbidden = ""  # why its seccomp filters do not permit COUNTER_CALLS of system_calls.py
        self.may_check_memory = True  # by its seccomp filters: CHECK_CALLS of system_calls.py
        self._seen_maps = ""  # the text in which the modules were found
        self._seen_modules: list[Module] = []
        self.unfit_threads: set[int] = set()  # tids that nothing may be loaded through (preflight.py)

    # ---- memory ------------------------------------------------------------------------------------------

    def read(self, address: int, size: int) -> bytes:
        """Reads `size` bytes at an address of the process.

        Raises:
            EndedError: the program has ended.
            NfprobeError: nothing is mapped there, or this user may not read it.
        """
        return self.memory.read(address, size)

    def read_word(self, address: int) -> int:
        """Reads an unsigned 64-bit integer. Raises as `read`."""
        word: int = struct.unpack("<Q", self.read(address, 8))[0]
        return word

    def maps(self) -> list[Mapping]:
        """Returns the current mappings.

        Raises:
            EndedError: the process has ended.
            NfprobeError: this user has no permission.
        """
        return [_parse_mapping(line) for line in self._read_maps().split("\n") if line]

    def _read_maps(self) -> str:
        try:
            with open(f"/proc/{self.pid}/maps", encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        except OSError as error:
            raise NfprobeError(
                f"The memory map of process {self.pid} cannot be read: {error.strerror}.",
                f"sudo nfprobe doctor {self.pid}",
            ) from error
        if not text and self._had_memory:  # its first thread releases it before the process counts as ended
            raise EndedError.of(self.pid)
        return text

    def check_not_ended(self) -> None:
        """Checks whether the process has ended, as an explanation for missing data.

        Raises:
            EndedError: it has ended.
            NfprobeError: this user no longer has permission.
        """
        self._read_maps()

    # ---- modules -----------------------------------------------------------------------------------------

    def modules(self) -> list[Module]:
        """Returns the ELF files that the process has loaded with executable code, the program itself first.

        Files that are gone or replaced and that this user may not read through the process, and libraries that are not
        readable ELF files, are left out and listed in `unreadable`.

        Raises:
            NfprobeError: the program's own file cannot be read.
        """
        text = self._read_maps()
        if text == self._seen_maps:
            return list(self._seen_modules)
        maps = [_parse_mapping(line) for line in text.split("\n") if line]
        first_pages = {(item.path, item.inode): item for item in reversed(maps) if item.offset == 0}
        found: dict[tuple[str, str, int, int], Module] = {}
        ranges: dict[tuple[str, str, int, int], list[tuple[int, int]]] = {}
        for mapping in maps:
            if not (mapping.is_executable and mapping.path.startswith("/")) or _is_skipped(mapping):
                continue
            image = self._image(mapping, first_pages.get((mapping.path, mapping.inode)))
            base = None if image is None else _base_of(image, mapping)
            if image is None or base is None:
                continue
            key = (mapping.path, mapping.device, mapping.inode, base)
            if key not in found:
                found[key] = self._modules.get(key) or Module(
                    mapping.path, base, image, [], mapping.device, mapping.inode
                )
                found[key].cache.setdefault("root", f"/proc/{self.pid}/root")  # for its debug files
            ranges.setdefault(key, []).append((mapping.start, mapping.end))
        found = without_copies(found, {(item.path, item.start) for item in maps})
        for key, module in found.items():  # forked children share modules: no partial change may be visible
            module.executable_ranges = ranges[key]
        self._modules = found
        executable = self.executable
        self._seen_modules = sorted(found.values(), key=lambda module: (module.path != executable, module.low))
        self._seen_maps = text
        return list(self._seen_modules)

    @cached_property
    def runs_on_musl(self) -> bool:
        """Returns whether its C library is musl."""
        return any(module.is_musl for module in self.modules())

    def take_modules(self, parent: Target) -> None:
        """Takes over the modules of the process that this one was forked from, with all their cached data."""
        self._images.update(parent._images)
        self._modules.update(parent._modules)

    def _image(self, mapping: Mapping, first: Mapping | None) -> ElfImage | None:
        key = (mapping.path, mapping.device, mapping.inode)
        if key not in self._images:
            self._images[key] = self._open_image(mapping, first)
        return self._images[key]

    def _open_image(self, mapping: Mapping, first: Mapping | None) -> ElfImage | None:
        # The first is always the mapped file, but requires CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE. A path may refer to
        # the target's root directory (another mount namespace) or to this process's own (chroot).
        plain = mapping.path.removesuffix(" (deleted)")
        by_name = (f"/proc/{self.pid}/root{plain}", plain)
        paths = [f"/proc/{self.pid}/map_files/{mapping.start:x}-{mapping.end:x}", *by_name]
        is_program = mapping.path == self.executable
        if is_program:
            paths.append(f"/proc/{self.pid}/exe")
        reason = "it is gone"
        for path in paths:
            try:
                with open(path, "rb") as file:
                    if path in by_name and not self._is_mapped_file(file, mapping, first):
                        reason = "the file was replaced"
                        continue
                    file.seek(0)
                    if file.read(4) != b"\x7fELF":
                        return None
                    file.seek(0)
                    return read_image(file, mapping.path)
            except FileNotFoundError:
                continue
            except OSError as error:
                reason = error.strerror or str(error)
            except (UnreadableError, UsageError, RefusedError) as error:
                if is_program:
                    raise
                self.unreadable[mapping.path] = error.sentence
                return None
        if not is_program:
            self.unreadable[mapping.path] = f"its file cannot be read ({reason}){MAP_FILES_NEED}"
            return None
        raise NfprobeError(
            f"{mapping.path}, which process {self.pid} has loaded, cannot be read: {reason}.",
            f"sudo nfprobe doctor {self.pid}",
        )

    def _is_mapped_file(self, file: Any, mapping: Mapping, first: Mapping | None) -> bool:
        status = os.fstat(file.fileno())
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        if (device, status.st_ino) == (mapping.device, mapping.inode):
            return True
        # File systems such as overlayfs report other numbers: compare the first page, which contains the headers.
        if first is None:
            return False
        file.seek(0)
        content = file.read(COMPARED_BYTES)
        return bool(self.read(first.start, len(content)) == content)

    # ---- what it is --------------------------------------------------------------------------------------

    @property
    def executable(self) -> str:
        """Path of the program in the process's mount namespace; "" for a kernel thread."""
        try:
            return os.readlink(f"/proc/{self.pid}/exe")
        except OSError:
            return ""

    @property
    def name(self) -> str:
        """The process's comm."""
        return read_text(f"/proc/{self.pid}/comm").strip()

    @property
    def command_line(self) -> list[str]:
        """Its arguments."""
        return read_text(f"/proc/{self.pid}/cmdline").split("\0")[:-1]

    def is_alive(self) -> bool:
        """Returns whether the process that this object was created for still runs."""
        try:
            fields = read_stat(self.pid)
        except NfprobeError:
            return False
        return int(fields[19]) == self.started_ticks and fields[0] not in ("Z", "X")

    def threads(self) -> list[Thread]:
        """Returns its current threads; empty if it has ended."""
        try:
            tids = sorted(int(name) for name in os.listdir(f"/proc/{self.pid}/task"))
        except OSError:
            return []
        found = []
        for tid in tids:
            thread = self._thread(tid)
            if thread is not None:
                found.append(thread)
        return found

    def _thread(self, tid: int) -> Thread | None:
        folder = f"/proc/{self.pid}/task/{tid}"
        status = read_task_status(self.pid, tid)
        if "State" not in status:
            return None
        call = read_text(f"{folder}/syscall").split()
        number = None if not call or call[0] == "running" else int(call[0])
        try:
            policy = POLICIES.get(os.sched_getscheduler(tid), "unknown")
        except OSError:
            policy = "unknown"
        return Thread(
            tid,
            status.get("Name", ""),
            status["State"][:1],
            number,
            parse_cpu_list(status.get("Cpus_allowed_list", "")),
            policy,
            int(status.get("voluntary_ctxt_switches", "0")),
        )

    def describe(self) -> dict[str, Any]:
        """Returns facts about the process for resource attributes: path, name, build ID, pid, comm, start time."""
        modules = self.modules()
        executable = self.executable
        build_id = next((module.build_id for module in modules if module.path == executable), "")
        return {
            "pid": self.pid,
            "executable_path": executable,
            "executable_name": os.path.basename(executable.removesuffix(" (deleted)")),
            "build_id": build_id,
            "comm": self.name,
            "command_line": self.command_line,
            "started_unix_ns": self.started_unix_ns(),
        }

    def started_unix_ns(self) -> int:
        """Returns the start time of the process in Unix ns, to the kernel's tick (10 ms)."""
        for line in read_text("/proc/stat").splitlines():
            if line.startswith("btime "):
                ticks_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
                return int(line.split()[1]) * 1_000_000_000 + self.started_ticks * ticks_ns
        return 0


def read_status(pid: int) -> dict[str, str]:
    """Returns /proc/PID/status as names and values; empty if the process has ended."""
    return _parse_status(read_text(f"/proc/{pid}/status"))


def has_ended(pid: int) -> bool:
    """Returns whether the process no longer runs; it may still be a zombie."""
    return read_status(pid).get("State", "Z")[:1] in "ZX"


def read_task_status(pid: int, tid: int) -> dict[str, str]:
    """Returns /proc/PID/task/TID/status as names and values; empty if the thread has ended."""
    return _parse_status(read_text(f"/proc/{pid}/task/{tid}/status"))


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parses the CPU numbers of a list such as "0-3,8"."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _parse_status(text: str) -> dict[str, str]:
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon}


def _parse_mapping(line: str) -> Mapping:
    fields = line.rstrip("\n").split(None, 5)
    start, _, end = fields[0].partition("-")
    path = fields[5].replace("\\012", "\n") if len(fields) > 5 else ""
    return Mapping(int(start, 16), int(end, 16), fields[1], int(fields[2], 16), fields[3], int(fields[4]), path)


def _is_skipped(mapping: Mapping) -> bool:
    return mapping.path.startswith(SKIPPED_PATHS) and not mapping.path.startswith("/memfd:libnfprobe")


def _base_of(image: ElfImage, mapping: Mapping) -> int | None:
    segment = image.code_at_offset(mapping.offset)
    if segment is None:
        return None
    return mapping.start - mapping.offset + (segment.offset & -PAGE_BYTES) - (segment.address & -PAGE_BYTES)


def read_text(path: str) -> str:
    """Returns the text of a file in /proc; "" if it is gone or may not be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def read_stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on. Raises UsageError if there is no such process."""
    # The name in parentheses may contain anything: the fields follow its last parenthesis.
    fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 20:
        raise UsageError(f"No process has pid {pid}.", "pgrep -a NAME")
    return fields
