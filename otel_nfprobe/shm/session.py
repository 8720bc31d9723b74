# SPDX-License-Identifier: Apache-2.0
"""The monitor's view of the memory that it shares with a target (native/abi/session.h).

Maps the session's memory file, holds the lock that shows the target that a monitor is attached, sends commands to the
helper thread and drains the rings. Trusts nothing that it reads: a target that scribbles over this memory can lose
records, but never crash the monitor. Whatever determines where the monitor itself reads or writes is read once, when
the session is opened, and kept by the monitor.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import THREAD
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.descriptors import open_session_file
from otel_nfprobe.shm.patchtable import PatchTable
from otel_nfprobe.shm.rings import Rings, Swept
from otel_nfprobe.shm.stamps import StampBounds
from otel_nfprobe.shm.threadids import ThreadIds
from otel_nfprobe.shm.threadtable import ThreadTable

FIXED_BYTES = lib.NFP_ARENA_OFFSET  # header and tables
THREAD_TABLE_OFFSET = lib.NFP_THREAD_TABLE_OFFSET
THREAD_COUNT = lib.NFP_THREAD_COUNT
PROBE_TABLE_OFFSET = lib.NFP_PROBE_TABLE_OFFSET
PROBE_COUNT = lib.NFP_PROBE_COUNT
PROGRAM_OFFSET = lib.NFP_PROGRAM_OFFSET
PROGRAM_COUNT = lib.NFP_PROGRAM_COUNT
NODE_PROGRAM = lib.NFP_NODE_PROGRAM
ARENA_OFFSET = lib.NFP_ARENA_OFFSET
ARENA_BYTES = lib.NFP_ARENA_BYTES
RING_OFFSET = lib.NFP_RING_OFFSET
RING_BYTES_MIN = lib.NFP_RING_BYTES_MIN
RING_BYTES_MAX = lib.NFP_RING_BYTES_MAX
MAGIC = lib.NFP_SESSION_MAGIC
VERSION = lib.NFP_SESSION_VERSION

GATE_OUTER = lib.NFP_GATE_OUTER
GATE_INNER = lib.NFP_GATE_INNER
GATE_AUTO = lib.NFP_GATE_AUTO
GATE_PACKETS = lib.NFP_GATE_PACKETS
GATE_LATE = lib.NFP_GATE_LATE

LATE_NEVER = lib.NFP_LATE_NEVER
SAMPLE_ALL = lib.NFP_SAMPLE_ALL

TRIAL = "trial"  # purpose of a session that only selects functions worth a probe
LOST_CLASSES = ("call", "packet", "poll")  # by NFP_LOST_CALL and the others

FLOCK = struct.Struct("hh4xqqi4x")  # struct flock of x86-64 and aarch64 Linux

COMMAND_PATIENCE_NS = 15_000_000_000
ERRNO_MAX = 4095


class Session:
    """One target's session memory, mapped and locked.

    Args:
        pid: the target's process ID in the monitor's PID namespace.
        descriptor: number of the session's memory file among the target's file descriptors.

    Attributes:
        ring_bytes: of each ring, from the size of the memory file, which is sealed.
        tls_offset: signed offset of the target's thread word from the thread base.
        threads: the thread table.
        kept_address: of a word in the target that a forked child does not have.

    Raises:
        NfprobeError: the memory is not a session of this version, or another monitor holds it.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._fd = open_session_file(pid, descriptor)
        try:
            self.ring_bytes = self._find_ring_bytes()
            self._fixed = mmap.mmap(self._fd, FIXED_BYTES)
            self._fixed_buffer = ffi.from_buffer(self._fixed, require_writable=True)
            self.header = ffi.cast("struct nfp_session_header *", self._fixed_buffer)
            self._check()
            self._lock()
        except BaseException as error:
            os.close(self._fd)
            if isinstance(error, OSError):
                raise NfprobeError(
                    f"The session of process {pid} cannot be mapped: {error.strerror}.", f"nfprobe doctor {pid}"
                ) from error
            raise
        self.patches = PatchTable(self._fixed_buffer + PROBE_TABLE_OFFSET, PROBE_COUNT, self._probe_count)
        self._table = ffi.cast("struct nfp_thread_shared *", self._fixed_buffer + THREAD_TABLE_OFFSET)
        self._rings: Rings | None = None
        self._stamps = StampBounds()
        rows = np.frombuffer(self._fixed, THREAD, THREAD_COUNT, THREAD_TABLE_OFFSET)
        self.threads = ThreadTable(rows, ThreadIds(pid), self.header)
        self.inode = os.fstat(self._fd).st_ino  # of the memory file: identifies the session on this machine
        self.torn = 0  # slots reserved but never written
        self.library = 0  # base address of the probe library in the target, if it was looked up
        self.memory_fd = -1  # of the target's memory, if known: avoids waiting for an answer when its program is gone

    def _find_ring_bytes(self) -> int:
        ring_bytes, rest = divmod(os.fstat(self._fd).st_size - RING_OFFSET, THREAD_COUNT)
        if rest or not RING_BYTES_MIN <= ring_bytes <= RING_BYTES_MAX or ring_bytes & (ring_bytes - 1):
            raise self._of_another_version()
        return ring_bytes

    def _check(self) -> None:
        header = self.header
        sound = (
            header.magic == MAGIC
            and header.version == VERSION
            and header.total_bytes == RING_OFFSET + THREAD_COUNT * self.ring_bytes
            and header.ring_bytes == header.ring_stride == self.ring_bytes
        )
        if not sound:
            raise self._of_another_version()
        self._probe_count = min(int(header.probes), PROBE_COUNT)
        self.tls_offset = int(ffi.cast("int32_t", header.tls_offset))
        self.kept_address = int(header.kept_address)

    def _of_another_version(self) -> NfprobeError:
        return NfprobeError(
            f"The session of process {self.pid} is from another version of nfprobe.", f"nfprobe doctor {self.pid}"
        )

    def _lock(self) -> None:
        request = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, request)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise NfprobeError(
                f"Another nfprobe is attached to process {self.pid}.", f"nfprobe status {self.pid}"
            ) from error

    @property
    def descriptor(self) -> int:
        """Returns the monitor's own file descriptor of the session's memory."""
        return self._fd

    # ---- commands to the helper thread -------------------------------------------------------------------

    def ask(self, command: int, *arguments: int) -> int:
        """Sends a command to the helper thread and returns its result (0, or a negative errno).

        Raises:
            NfprobeError: the helper thread does not respond, or sends an invalid answer.
        """
        result = ffi.new("int32_t *")
        words = ffi.new("uint64_t[4]", list(arguments) + [0] * (4 - len(arguments)))
        if lib.nfp_mailbox_ask(self.header, command, words, COMMAND_PATIENCE_NS, self.memory_fd, result) != 0:
            raise NfprobeError(
                f"The helper thread in process {self.pid} does not respond.", f"nfprobe detach {self.pid}"
            )
        if result[0] < -ERRNO_MAX:
            raise NfprobeError(
                f"The helper thread in process {self.pid} sent an invalid answer.", f"nfprobe detach {self.pid}"
            )
        return int(result[0])

    def write_message(self, text: str) -> None:
        """Stores a text for the next command."""
        ffi.memmove(self.header.message, text.encode()[:511] + b"\0", min(len(text.encode()), 511) + 1)

    def open_gates(self, gates: int) -> None:
        """Enables recording by the probes with the given gate bits.

        Raises:
            NfprobeError: the target has no memory for the probes' packet state.
        """
        if self.ask(lib.NFP_COMMAND_OPEN, gates) != 0:
            raise NfprobeError(
                f"Process {self.pid} has no memory for the packet state of its probes.", f"nfprobe doctor {self.pid}"
            )

    def leave_out_polls(self, counts: Sequence[int]) -> None:
        """Excludes the counts of empty polls, for threads that get their counters after this.

        Args:
            counts: what each counter counts in the probe of a poll that returns nothing.
        """
        for place in range(len(self.header.counted_polls)):
            self.header.counted_polls[place] = counts[place] if place < len(counts) else 0

    def end_turns(self) -> None:
        """Lets every thread finish recording the packets it is working on, and nothing after that."""
        self.ask(lib.NFP_COMMAND_END_TURNS)

    def close_gates(self) -> None:
        """Disables recording by all probes."""
        self.ask(lib.NFP_COMMAND_CLOSE)

    @property
    def helper_tid(self) -> int:
        """Thread ID of the helper thread in the monitor's PID namespace; 0: the target's claim is not one of its
        threads.
        """
        inner = np.array([int(self.header.helper_tid)], np.uint32)
        tid = int(self.threads.ids.outer(inner)[0])
        return tid if self.holds_thread(tid) else 0

    @property
    def helper_is_there(self) -> bool:
        """Returns whether the target's helper thread serves this session."""
        return int(self.header.state) in (lib.NFP_STATE_READY, lib.NFP_STATE_ARMED)

    def leave(self, patience_s: float = 10.0) -> bool:
        """Disables recording and ends the helper thread. Returns whether it is gone."""
        lib.nfp_mailbox_send(self.header, lib.NFP_COMMAND_LEAVE)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if int(self.header.state) == lib.NFP_STATE_SILENT:
                return True
            time.sleep(0.001)
        return False

    # ---- tables ------------------------------------------------------------------------------------------

    def program(self, index: int) -> Any:
        """Returns the capture program at `index`, writable (struct nfp_program)."""
        if not 0 <= index < PROGRAM_COUNT:
            raise IndexError(index)
        return ffi.cast("struct nfp_program *", self._fixed_buffer + PROGRAM_OFFSET) + index

    def probe(self, index: int) -> Any:
        """Returns the monitor's own probe table entry at `index`, writable (struct nfp_probe); `patches` publishes
        it.
        """
        return self.patches.entry(index)

    @property
    def probe_count(self) -> int:
        """Number of probe table entries ever used."""
        return self._probe_count

    @probe_count.setter
    def probe_count(self, count: int) -> None:
        self._probe_count = self.header.probes = count

    def map_arena(self, offset: int, size_bytes: int) -> mmap.mmap:
        """Maps a part of the trampoline region for writing. Only the monitor has such a mapping.

        Raises:
            NfprobeError: mapping failed.
        """
        try:
            if offset < ARENA_OFFSET or offset + size_bytes > ARENA_OFFSET + ARENA_BYTES:
                raise ValueError("they are outside the trampoline region")
            return mmap.mmap(self._fd, size_bytes, offset=offset)
        except (OSError, ValueError, OverflowError) as error:
            raise NfprobeError(
                f"The trampolines of process {self.pid} cannot be mapped: {error}.", f"nfprobe doctor {self.pid}"
            ) from error

    # ---- rings -------------------------------------------------------------------------------------------

    def thread_indexes(self) -> range:
        """Returns the indexes of thread table entries ever used."""
        return range(self.threads.used)

    def holds_thread(self, tid: int) -> bool:
        """Returns whether the target has this thread at this moment; to be called after opening something for it."""
        return self.threads.ids.holds(tid)

    def choose_packets(self, late_ticks: int, sample: int, index: int | None = None) -> None:
        """Sets which packets are to be identified (struct nfp_capture_policy).

        Args:
            late_ticks: age threshold; LATE_NEVER: none.
            sample: batches sampled, of SAMPLE_ALL.
            index: of the thread; None: all, including those that start later.
        """
        policies = [self.header.late] if index is None else []
        policies += [self._table[i].late for i in (self.thread_indexes() if index is None else [index])]
        for policy in policies:
            policy.late_ticks, policy.sample = late_ticks, sample

    def used_entries(self) -> int:
        """Number of thread table entries in use, according to the target."""
        free = bytes(ffi.buffer(self.header.free_threads))
        return THREAD_COUNT - int.from_bytes(free, "little").bit_count()

    def unregistered(self) -> tuple[int, int, int]:
        """Returns the records lost by threads without a ring, by loss class."""
        lost = self.header.unregistered
        return int(lost[0]), int(lost[1]), int(lost[2])

    def _map_rings(self) -> Rings:
        if self._rings is None:
            self._rings = Rings(self._fd, RING_OFFSET, THREAD_COUNT, self.ring_bytes, self._table, self._stamps)
        return self._rings

    def drain(self) -> Iterator[Swept]:
        """Drains the rings.

        Each ring is read at least up to its contents at the start of the round, which matching packets across threads
        relies on, and at most once around, so that a fast thread does not starve the others.
        """
        rings = self._map_rings()
        yield from rings.sweep(self.threads.used)
        self.torn = rings.torn

    def take_last(self, indexes: Sequence[int]) -> Iterator[Swept]:
        """Drains the rings of threads that are gone, each at most once around."""
        rings = self._map_rings()
        yield from rings.take_last(indexes)
        self.torn = rings.torn

    def free_threads(self, indexes: Sequence[int]) -> None:
        """Releases the table entries of ended threads for new threads. Their rings must be drained."""
        lib.nfp_threads_free(self.header, self._table, ffi.new("uint32_t[]", indexes), len(indexes))

    def close(self) -> None:
        """Releases the lock: the target's helper thread then disables recording. The rings are unmapped, the tables
        stay.

        Otherwise a monitor of one process after another would keep gigabytes until Python collects its garbage.
        """
        # Mappings keep the open file alive, and the lock with it: release it explicitly.
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
        os.close(self._fd)
        if self._rings is not None:
            self._rings.close()
            self._rings = None
