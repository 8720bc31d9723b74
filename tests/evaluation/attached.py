# SPDX-License-Identifier: Apache-2.0
"""Peers that probe a running process: perf's events of uprobes, Frida, gdb's breakpoints.

Each is a context in which functions of a running program are probed, entry and exit or entry alone. Nothing of them is
left when it ends: no event in tracefs, no process, no breakpoint. BPF programs: tests/benchmarks/uprobe_peer.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.evaluation.peers import TRACEFS

PATIENCE_S = 60
CountKept = Callable[[], int]
# Two records of 16 bytes in memory of its own, as the hand-written floor has: undrained.
FRIDA_CALLBACKS = r"""
#include <gum/guminterceptor.h>
typedef struct { guint64 tsc; guint64 word; } Record;
extern Record ring[];
extern guint64 position;
static void put(guint64 word)
{
	guint low, high;
	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	Record *record = &ring[position++ & 16383];
	record->tsc = ((guint64)high << 32) | low;
	record->word = word;
}
void onEnter(GumInvocationContext *context) { put(1); }
void onLeave(GumInvocationContext *context) { put(2); }
"""
FRIDA_SCRIPT = """
const ring = Memory.alloc(16384 * 16), position = Memory.alloc(8);
const native = new CModule(%(callbacks)r, {ring, position});
let calls = 0;
const counting = {onEnter() { calls += 1; }, onLeave() {}};
const base = Process.getModuleByName(%(module)r).base;
for (const offset of %(offsets)r) Interceptor.attach(base.add(offset), %(chosen)s);
Interceptor.flush();
rpc.exports = {count: () => calls + position.readU64().toNumber() / 2};
"""
GDB_SCRIPT = """set pagination off
set confirm off
set $calls = 0
%(breakpoints)secho armed\\n
continue
printf "calls %%d\\n", $calls
detach
quit
"""
GDB_BREAKPOINT = "break *%s\ncommands\nsilent\nset $calls = $calls + 1\ncontinue\nend\n"


@contextmanager
def perf_uprobes(pid: int, binary: Path, offsets: Sequence[int], folder: Path) -> Iterator[CountKept]:
    """Events of uprobes at entries and exits that `perf record` keeps, as `perf probe` makes them."""
    group, data = f"nfpevaluation{os.getpid()}", folder / "perf.data"
    events = TRACEFS / "uprobe_events"
    try:
        for offset in offsets:
            for kind, name in (("p", "entry"), ("r", "exit")):
                _append(events, f"{kind}:{group}/{name}_{offset:x} {binary}:{offset:#x}\n")
        words = ["perf", "record", "-q", "-c", "1", "-m", "16M", "-e", f"{group}:*", "-p", str(pid), "-o", str(data)]
        recorder = subprocess.Popen([*words, "--control", f"fifo:{_make_fifo(folder)}"], stderr=subprocess.DEVNULL)
        _wait_for_ack(folder)
        try:
            yield lambda: _end_perf(recorder, data) // 2
        finally:
            _interrupt(recorder)
    finally:
        for line in events.read_text().splitlines():
            if f":{group}/" in line:
                _append(events, f"-:{line.split()[0].partition(':')[2]}\n")


def _append(events: Path, line: str) -> None:
    """A file of tracefs has no end to seek, as Python does."""
    file = os.open(events, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def _make_fifo(folder: Path) -> str:
    """Control and acknowledgement of perf record."""
    for name in ("control", "ack"):
        if not (folder / name).exists():
            os.mkfifo(folder / name)
    return f"{folder / 'control'},{folder / 'ack'}"


def _wait_for_ack(folder: Path) -> None:
    """Asks perf whether it records; returns when it answers."""
    control, ack = (os.open(folder / name, os.O_RDWR) for name in ("control", "ack"))
    try:
        os.write(control, b"ping\n")
        assert os.read(ack, 16).startswith(b"ack")
    finally:
        os.close(control)
        os.close(ack)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


def _end_perf(recorder: subprocess.Popen[bytes], data: Path) -> int:
    _interrupt(recorder)
    words = ["perf", "report", "-i", str(data), "--stats"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = re.search(r"SAMPLE events:\s+(\d+)", done.stdout)
    return int(found[1]) if found else 0


@contextmanager
def frida_interceptor(pid: int, binary: Path, addresses: Sequence[int], is_native: bool) -> Iterator[CountKept]:
    """Interceptor.attach at each, with callbacks in C that write two records, or with those of JavaScript that most
    scripts have.
    """
    import frida  # a peer: not there where the evaluation is not set up

    session = frida.attach(pid)
    try:
        source = FRIDA_SCRIPT % {
            "callbacks": FRIDA_CALLBACKS,
            "module": binary.name,
            "offsets": list(addresses),
            "chosen": "native" if is_native else "counting",
        }
        script = session.create_script(source)
        script.load()
        yield lambda: int(script.exports_sync.count())
        script.unload()
    finally:
        session.detach()


@contextmanager
def gdb_breakpoints(pid: int, symbols: Sequence[str], folder: Path) -> Iterator[CountKept]:
    """Breakpoints at entries whose commands count and go on."""
    script, output = folder / "commands.gdb", folder / "gdb.out"
    breakpoints = "".join(GDB_BREAKPOINT % symbol for symbol in symbols)
    script.write_text(GDB_SCRIPT % {"breakpoints": breakpoints})
    words = ["gdb", "-nx", "-q", "-batch", "-p", str(pid), "-x", str(script)]
    with open(output, "w") as file:
        debugger = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    def count_kept() -> int:
        _interrupt(debugger)
        found = re.search(r"^calls (\d+)$", output.read_text(errors="replace"), re.MULTILINE)
        assert found is not None, output.read_text(errors="replace")
        return int(found[1])

    try:
        deadline = time.monotonic() + PATIENCE_S
        while "armed" not in output.read_text(errors="replace"):
            assert time.monotonic() < deadline, output.read_text(errors="replace")
            time.sleep(0.02)
        yield count_kept
    finally:
        _interrupt(debugger)
