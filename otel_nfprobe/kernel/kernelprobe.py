# SPDX-License-Identifier: Apache-2.0
"""One function of the kernel, its calls timed by BPF programs at its entry (fentry) and its exit (fexit).

The kernel itself changes its code, at the space reserved for tracing in each function; nothing in a process is touched.
When the monitor dies, the kernel removes the programs. A kernel in lockdown runs no programs at functions: there,
system calls are timed from the tracepoint sys_enter to sys_exit.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.elf.pattern import near_names
from otel_nfprobe.kernel import bpfcall
from otel_nfprobe.kernel.bpfcall import BpfRing, When, read_functions
from otel_nfprobe.kernel.programs import COUNT_BYTES, CROWDED, ENTERED, LEFT, LOST, Maps, Whose, write_entry, write_exit
from otel_nfprobe.linux.kallsyms import KernelSymbol, read_symbols
from otel_nfprobe.target.target import read_status

_PREFIXES = ("__do_sys_", "__se_sys_", "ksys_", "sys_")


def find_number(function: str) -> int | None:
    """Returns the number of the system call that a kernel function, such as sys_write or __do_sys_write, implements;
    None: none.
    """
    host = of_host()
    for prefix in (host.system_call_prefix, *_PREFIXES):
        if function.startswith(prefix):
            return host.system_calls.get(function.removeprefix(prefix))
    return None


# ---- probes ---------------------------------------------------------------------------------------------------------


FENTRY, TRACEPOINTS = "fentry", "tracepoints"
OPEN_MAX = 16384  # concurrent calls
LOCKDOWN = Path("/sys/kernel/security/lockdown")
_NOT_TRACED = (errno.EBUSY, errno.ENODEV, 524)  # 524: ENOTSUPP, which the kernel also returns


def find_whose(pid: int) -> Whose:
    """Returns the process as identified by BPF programs.

    Raises:
        NfprobeError: it has ended.
    """
    try:
        namespace = os.stat(f"/proc/{pid}/ns/pid")
        own = int(read_status(pid)["NSpid"].split()[-1])
    except (OSError, KeyError) as error:
        raise NfprobeError(f"Process {pid} has ended, or this user may not inspect it.", "pgrep -a NAME") from error
    device = os.major(namespace.st_dev) << 20 | os.minor(namespace.st_dev)
    return Whose(own, device, namespace.st_ino)


class KernelProbe:
    """The calls of one kernel function.

    Args:
        name: of the function.
        whose: calling process; None: all.
        ring_bytes: of the ring, a power of two.
        by_tracepoints: times a system call by tracepoints instead of its function.

    Attributes:
        strategy: FENTRY or TRACEPOINTS.
        refusal: why it is not FENTRY, or "".

    Raises:
        UsageError: the kernel has no such function.
        RefusedError: the function cannot be measured.
        NfprobeError: this user or kernel does not permit it.
    """

    def __init__(self, name: str, whose: Whose | None, ring_bytes: int, by_tracepoints: bool = False) -> None:
        self.refusal = ""
        self._descriptors: list[int] = []
        self._programs: list[int] = []
        number = find_number(name)
        if not by_tracepoints:
            try:
                self._attach_to_function(name, whose, ring_bytes)
                return
            except NfprobeError as error:
                if number is None:
                    raise
                self.refusal = error.sentence
        self.strategy = TRACEPOINTS
        try:
            maps = self._make_maps(ring_bytes)
            code = write_exit(maps, whose, number), write_entry(maps, whose, number)
            self._programs = [self._keep(bpfcall.load_program(part, When.TRACEPOINT, 0)) for part in code]
            names = b"sys_exit", b"sys_enter"
            pairs = zip(self._programs, names, strict=True)
            self._links = [self._keep(bpfcall.attach(program, at)) for program, at in pairs]
        except OSError as error:
            self.close()
            _refuse(name, error)

    def _attach_to_function(self, name: str, whose: Whose | None, ring_bytes: int) -> None:
        self.strategy = FENTRY
        function = _find_type(name)
        try:
            maps = self._make_maps(ring_bytes)
            # The exit first: an exit without an entry is ignored, but an entry without an exit looks like an open call.
            for code, when in ((write_exit(maps, whose), When.EXIT), (write_entry(maps, whose), When.ENTRY)):
                self._programs.append(self._keep(bpfcall.load_program(code, when, function)))
            self._links = [self._keep(bpfcall.attach(program)) for program in self._programs]
        except OSError as error:
            self.close()
            _refuse(name, error)

    def _make_maps(self, ring_bytes: int) -> Maps:
        starts = self._keep(bpfcall.make_map(bpfcall.HASH, 8, 8, OPEN_MAX))
        self._counts = self._keep(bpfcall.make_map(bpfcall.ARRAY, 4, COUNT_BYTES, 1))
        ring = self._keep(bpfcall.make_map(bpfcall.RING, 0, 0, ring_bytes))
        self._ring = BpfRing(ring, ring_bytes)
        return Maps(starts, self._counts, ring)

    def _keep(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def take(self) -> Rows:
        """Returns the calls that ended since the last call, rows of dtype bpfring.CALL."""
        return self._ring.take()

    def counts(self) -> dict[str, int]:
        """Returns calls entered, returned, and of those lost to a full ring; and not measured: too many concurrent
        calls, or a program was interrupted by the function that it measures.
        """
        content = bpfcall.read_value(self._counts, COUNT_BYTES)
        entered, left, lost, crowded = (
            struct.unpack_from("<Q", content, at)[0] for at in (ENTERED, LEFT, LOST, CROWDED)
        )
        missed = max(bpfcall.read_misses(program) for program in self._programs)
        return {"entered": entered, "left": left, "lost": lost, "missed": crowded + missed}

    def detach(self) -> None:
        """Detaches the programs; their records can still be read."""
        for link in reversed(self._links):
            os.close(link)
            self._descriptors.remove(link)
        self._links = []

    def close(self) -> None:
        """Releases everything."""
        for descriptor in reversed(self._descriptors):
            with suppress(OSError):
                os.close(descriptor)
        self._descriptors, self._programs = [], []
        if hasattr(self, "_ring"):
            self._ring.close()


def _find_type(name: str) -> int:
    """Returns the BTF type ID of a function, or of an alias with the same code (as for system calls)."""
    if name.startswith("sys_"):
        name = of_host().system_call_prefix + name.removeprefix("sys_")
    functions = read_functions()
    if name in functions:
        return functions[name]
    symbols = list(read_symbols())
    places = {symbol.address for symbol in symbols if symbol.name == name and symbol.address}
    for symbol in symbols:
        if symbol.address in places and symbol.name in functions:
            return functions[symbol.name]
    raise _explain_unknown(name, list(functions), symbols)


def _explain_unknown(name: str, functions: list[str], symbols: list[KernelSymbol]) -> NfprobeError:
    for symbol in symbols:
        if symbol.name != name and not symbol.name.startswith(f"{name}."):
            continue
        if symbol.module:
            reason = f"it belongs to the kernel module {symbol.module}, and only functions of the kernel image can be"
        elif symbol.name != name:
            reason = f"the compiler has transformed it into {symbol.name}"
        else:
            reason = "the kernel has no type information for it (it is assembly, or its copies differ)"
        return RefusedError(f"The kernel function {name} cannot be measured: {reason}.", "nfprobe doctor")
    near = near_names(name, [function for function in functions if function[:3] == name[:3]])
    hint = f"; similar names: {', '.join(near)}" if near else " (or all its calls are inlined)"
    again = f"nfprobe stats PID kernel:{near[0]}" if near else "nfprobe stats --help"
    return UsageError(f"The kernel has no function {name}{hint}.", again)


def _refuse(name: str, error: OSError) -> NoReturn:
    if error.errno == errno.ENOSYS:
        raise NfprobeError("This kernel, or a seccomp filter around nfprobe, has no bpf().", "nfprobe doctor") from None
    if error.errno in (errno.EPERM, errno.EACCES) and not error.filename:
        again = "nfprobe stats PID kernel:sys_read" if os.geteuid() == 0 else f"sudo nfprobe stats PID kernel:{name}"
        raise NfprobeError(f"Kernel functions cannot be measured: {_why_forbidden()}.", again)
    said = f": {error.filename}" if error.filename else f" ({error.strerror or error.errno})"
    reason = "the kernel does not permit tracing it" if error.errno in _NOT_TRACED else "the kernel refuses"
    raise RefusedError(f"The kernel function {name} cannot be measured, {reason}{said}.", "nfprobe doctor") from None


def _why_forbidden() -> str:
    with suppress(OSError):
        if "[none]" not in (mode := LOCKDOWN.read_text(encoding="ascii")):
            return f"the kernel is in lockdown ({mode.strip()})"
    if os.geteuid() == 0:
        return "the kernel forbids it even to root, as in lockdown"
    return "it requires root, or CAP_BPF and CAP_PERFMON"


# ---- what they cost -------------------------------------------------------------------------------------------------
# What the two programs of a measured kernel function cost, measured on nfprobe's own process.
#
# Its system call getppid does almost nothing, in a function of its own.


FUNCTION = "sys_getppid"
CALLS = 5000
ROUNDS = 7
RING_BYTES = 1 << 20  # holds a whole round


class KernelCost(NamedTuple):
    """Cost of one measured call, in ns: between the two clock readings, and in total."""

    inside_ns: float
    whole_ns: float


def measure_cost(strategy: str) -> KernelCost | None:
    """Returns the cost of a strategy (kernelprobe.py), measured in some 50 ms; None if it cannot be measured.

    The body of getppid counts as cost: it takes a few ns and cannot be separated.
    """
    bare_ns = min(_call_ns() for _ in range(ROUNDS))
    try:
        probe = KernelProbe(FUNCTION, find_whose(os.getpid()), RING_BYTES, strategy == TRACEPOINTS)
    except NfprobeError:
        return None
    try:
        probed_ns, inside_ns = float("inf"), float("inf")
        for _ in range(ROUNDS):
            probed_ns = min(probed_ns, _call_ns())
            calls = probe.take()
            if len(calls):
                inside_ns = min(inside_ns, float(np.median(calls["duration_ns"])))
    finally:
        probe.close()
    if inside_ns == float("inf"):
        return None
    return KernelCost(inside_ns, max(inside_ns, probed_ns - bare_ns))


def _call_ns() -> float:
    """Returns the CPU time of one call, including the loop."""
    call = os.getppid
    start = time.thread_time_ns()
    for _ in repeat(None, CALLS):
        call()
    return (time.thread_time_ns() - start) / CALLS
