# SPDX-License-Identifier: Apache-2.0
"""Table 6: how many functions of twenty stripped programs of Debian each tool probes, and whether they work on.

Each program does a small job whose output is known from a run without any tool. Each tool is asked for all functions of
the program itself, as its user would ask, and says how many it probes; then the output and the exit status have to be
what they were. How many functions there are is what .eh_frame says; some of its entries are parts of functions, or
stubs. The programs are copies: uprobes are of a file, and would be in all processes that run it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from otel_nfprobe.elf.symbols import functions_of, modules_of
from tests.evaluation import peers
from tests.evaluation.extent import Extent
from tests.evaluation.samples import Sample, missing

FUNCTIONS, OUTCOME = "functions probed", "works as before"
EVERY, OURS, UFTRACE, BPFTRACE, FRIDA = "by .eh_frame", "nfprobe", "uftrace", "bpftrace", "Frida"
PATIENCE_S = 120
LINES = 400
BPF_PROBES_MAX = 100_000
SCRIPT = "for i in 1 2 3; do f() { echo $((i * $1)); }; f 7; done; x=abc; echo ${x/b/d}"
JOBS: dict[str, Sequence[str]] = {  # by program; IN is a file of text
    "bash": ("-c", SCRIPT),
    "perl": ("-ne", "$n += length; END { print $n }", "IN"),
    "python3.11": ("-S", "-c", "print(sorted(str(i * 7919 % 1000) for i in range(300))[:9])"),
    "openssl": ("dgst", "-sha256", "IN"),
    "make": ("-n", "-f", "MAKEFILE"),
    "readelf": ("-h", "/bin/true"),
    "objdump": ("-f", "/bin/true"),
    "sort": ("IN",),
    "sed": ("s/1/one/g", "IN"),
    "grep": ("-c", "9", "IN"),
    "mawk": ("{ s += $1 } END { print s }", "IN"),
    "gzip": ("-nc", "IN"),
    "xz": ("-c", "IN"),
    "tar": ("--mtime=@0", "--owner=0", "--group=0", "-cf", "-", "IN"),
    "find": ("IN", "-name", "*"),
    "diff": ("--brief", "IN", "/bin/true"),
    "od": ("-c", "IN"),
    "sha256sum": ("IN",),
    "wc": ("IN",),
    "base64": ("IN",),
}
SHORT = ("sort", "make")
FRIDA_SCRIPT = """
const main = Process.mainModule, callbacks = {onEnter() {}, onLeave() {}};
let probed = 0;
const named = [...main.enumerateExports(), ...main.enumerateSymbols()];
const addresses = new Set(named.filter(one => one.type === 'function').map(one => one.address.toString()));
for (const address of addresses) {
    try { Interceptor.attach(ptr(address), callbacks); probed += 1; } catch (error) {}
}
Interceptor.flush();
rpc.exports = {probed: () => probed};
"""


@dataclass(frozen=True)
class Did:
    """What a program did.

    Attributes:
        status: its exit status; below 0: the signal that ended it; None: it is not known.
        probed: how many functions the tool says it has probed.
        failure: why the tool could not do it.
    """

    output: bytes
    status: int | None
    probed: int = 0
    failure: str = ""


def find_outcome(before: Did, after: Did) -> str:
    """Nothing: it worked as before."""
    if after.failure:
        return after.failure
    if after.status is not None and after.status < 0:
        return f"killed by signal {-after.status}"
    if after.status is not None and after.status != before.status:
        return f"exit status {after.status} instead of {before.status}"
    return "" if after.output == before.output else "other output"


def run_program(words: Sequence[str], folder: Path) -> tuple[subprocess.CompletedProcess[bytes], str]:
    """Runs a command. Returns what it did, and what it said on standard error."""
    done = subprocess.run(
        words, capture_output=True, stdin=subprocess.DEVNULL, cwd=folder, check=False, timeout=PATIENCE_S
    )
    return done, done.stderr.decode(errors="replace")


def run_alone(words: Sequence[str], folder: Path) -> Did:
    done, _ = run_program(words, folder)
    return Did(done.stdout, done.returncode)


def run_nfprobe(words: Sequence[str], folder: Path) -> Did:
    command = [sys.executable, "-m", "otel_nfprobe", "run", "--adapter", "none", "--packets", "none"]
    done, said = run_program([*command, "--functions", f"{Path(words[0]).name}:*", *words], folder)
    found = re.search(r": ([\d,]+) functions probed", said)
    if found is None:
        return Did(b"", None, failure=said.strip().splitlines()[-1] if said.strip() else "it said nothing")
    return Did(done.stdout, done.returncode, int(found[1].replace(",", "")))


def run_uftrace(words: Sequence[str], folder: Path) -> Did:
    command = ["uftrace", "record", "-v", "-P", ".", "--no-libcall", "--force", "-d", str(folder / "uftrace")]
    done, said = run_program([*command, *words], folder)
    found = re.findall(r"dynamic:\s+patched:\s+(\d+)", said)
    ended = re.search(r"child terminated by signal: (\d+)", said)
    status = -int(ended[1]) if ended else done.returncode
    return Did(done.stdout, status, sum(map(int, found)))


def run_bpftrace(words: Sequence[str], folder: Path) -> Did:
    """Its output is apart from that of the program, which writes into a file."""
    output, program = folder / "output", folder / "program.sh"
    quoted = " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)
    program.write_text(f"#!/bin/sh\nexec {quoted} >{output} 2>/dev/null </dev/null\n")
    program.chmod(0o700)
    output.write_bytes(b"")
    script = f"uprobe:{words[0]}:* {{ @calls = count(); }}"
    allowed = f"BPFTRACE_MAX_PROBES={BPF_PROBES_MAX}"
    done, said = run_program(["env", allowed, "bpftrace", "-e", script, "-c", f"/bin/sh {program}"], folder)
    found = re.search(r"Attaching (\d+) probe", done.stdout.decode(errors="replace") + said)
    if found is None:
        errors = [line for line in said.splitlines() if "RLIMIT_MEMLOCK" not in line]  # a limit that it then keeps to
        return Did(b"", None, failure=errors[-1].removeprefix("ERROR: ") if errors else "it said nothing")
    return Did(output.read_bytes(), None, int(found[1]))


def run_frida(words: Sequence[str], folder: Path) -> Did:
    """Spawned by Frida, whose callbacks do nothing; exports and symbols are what it finds."""
    import frida  # a peer: not there where the evaluation is not set up

    device, chunks, ended = frida.get_local_device(), [], threading.Event()
    device.on("output", lambda pid, fd, data: chunks.append(data) if fd == 1 else None)
    pid = device.spawn(list(words), stdio="pipe", cwd=str(folder))
    session, crash = device.attach(pid), []

    def on_detached(reason: str, crashed: object) -> None:
        crash.append(crashed)
        ended.set()

    session.on("detached", on_detached)
    script = session.create_script(FRIDA_SCRIPT)
    script.load()
    probed = int(script.exports_sync.probed())
    device.resume(pid)
    if not ended.wait(PATIENCE_S):
        device.kill(pid)
        return Did(b"", None, probed, "it does not end")
    failure = "it crashed" if crash[0] else ""
    return Did(b"".join(chunks), None, probed, failure)


TOOLS: dict[str, tuple[peers.Peer | None, Callable[[Sequence[str], Path], Did]]] = {
    OURS: (None, run_nfprobe),
    UFTRACE: (peers.UFTRACE, run_uftrace),
    BPFTRACE: (peers.BPFTRACE, run_bpftrace),
    FRIDA: (peers.FRIDA, run_frida),
}


def make_words(name: str, path: Path, folder: Path) -> list[str]:
    """The command of a program's job, its files made."""
    text, makefile = folder / "text", folder / "makefile"
    text.write_text("".join(f"{number * 7919 % 10007} {number}\n" for number in range(LINES)))
    os.utime(text, (0, 0))
    makefile.write_text("all: a b\na:\n\techo a\nb: a\n\techo b\n")
    places = {"IN": text.name, "MAKEFILE": makefile.name}
    return [str(path), *(places.get(word, word) for word in JOBS[name])]


def count_functions(path: Path) -> int:
    modules, _ = modules_of(path)
    return sum(len(functions_of(module)) for module in modules)


def run(extent: Extent) -> list[Sample]:
    samples = []
    for name in SHORT if extent.is_short else JOBS:
        found = shutil.which(name, path="/usr/bin:/bin")
        if found is None:
            samples.append(missing(name, EVERY, FUNCTIONS, "it is not installed"))
            continue
        path = Path(shutil.copy(os.path.realpath(found), extent.folder / name))
        words = make_words(name, path, extent.folder)
        before = run_alone(words, extent.folder)
        samples.append(Sample(name, EVERY, FUNCTIONS, 0, count_functions(path)))
        for tool, (peer, run_with) in TOOLS.items():
            if reason := peer.find_missing() if peer else "":
                samples.append(missing(name, tool, FUNCTIONS, reason))
                continue
            try:
                after = run_with(words, extent.folder)
            except subprocess.TimeoutExpired:
                after = Did(b"", None, failure=f"not done in {PATIENCE_S} s")
            outcome = find_outcome(before, after)
            samples.append(Sample(name, tool, FUNCTIONS, 0, after.probed))
            samples.append(Sample(name, tool, OUTCOME, 0, float(not outcome), outcome))
            print(f"  {name}: {tool}: {after.probed} functions; {outcome or 'works as before'}", flush=True)
    return samples
