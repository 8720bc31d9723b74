# SPDX-License-Identifier: Apache-2.0
"""Peers that a program is started with: uftrace, LTTng-UST, XRay, wrappers that are preloaded.

Each is a way to start a target (words before its command, environment) and, once that has ended, the number of calls
that the tool kept: the oracle for what it lost. What they start ends with them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

PATIENCE_S = 30
SESSIOND = Path("/var/run/lttng/client-lttng-sessiond")
SUBBUFFER_BYTES, SUBBUFFERS = 4 << 20, 16
UFTRACE_BUFFER = "16m"


@dataclass(frozen=True)
class Launch:
    """How a target is started so that a tool sees it.

    Attributes:
        count_kept: entries of functions that the tool has, once the target has ended; None: it keeps them in memory
            until that is full and then writes over the oldest.
    """

    launcher: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    count_kept: Callable[[], int] | None = None


Start = Callable[[Path], AbstractContextManager[Launch]]  # with a folder for what is recorded


def launch_uftrace(*options: str) -> Start:
    """`uftrace record` with these options; its writer threads run on the CPUs of whoever starts it."""

    @contextmanager
    def launch(folder: Path) -> Iterator[Launch]:
        data = folder / "uftrace"
        words = ["uftrace", "record", "--no-pager", "--buffer", UFTRACE_BUFFER, *options, "-d", str(data)]
        yield Launch(words, count_kept=lambda: count_uftrace(data))

    return launch


def count_uftrace(data: Path) -> int:
    """Calls of leaf functions and of those in a library."""
    words = ["uftrace", "report", "--no-pager", "-d", str(data), "-f", "call"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return sum(int(calls) for calls in re.findall(r"^\s*(\d+)\s+(?:leaf|slot)\d+$", done.stdout, re.MULTILINE))


@contextmanager
def session_daemon() -> Iterator[None]:
    """LTTng's, unless it runs already."""
    if SESSIOND.exists() and subprocess.run(["lttng", "list"], capture_output=True, check=False).returncode == 0:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        pid_file = Path(folder, "pid")
        words = ["lttng-sessiond", "--daemonize", "--no-kernel", "--pidfile", str(pid_file)]
        subprocess.run(words, check=True, capture_output=True)
        pid = int(pid_file.read_text())
        try:
            yield
        finally:
            os.kill(pid, signal.SIGTERM)
            _wait_for_end(pid)


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.02)


def launch_lttng(*contexts: str) -> Start:
    """The functions' entries and exits as events of -finstrument-functions, with these contexts."""

    @contextmanager
    def launch(folder: Path) -> Iterator[Launch]:
        name, channel, trace = f"nfpevaluation{os.getpid()}", "calls", folder / "lttng"

        def lttng(*words: str) -> None:
            subprocess.run(["lttng", *words], check=True, capture_output=True)

        with session_daemon():
            lttng("create", name, "--output", str(trace))
            try:
                sizes = ("--subbuf-size", str(SUBBUFFER_BYTES), "--num-subbuf", str(SUBBUFFERS))
                lttng("enable-channel", "--userspace", "--session", name, *sizes, channel)
                which = ("--userspace", "--session", name, "--channel", channel)
                lttng("enable-event", *which, "lttng_ust_cyg_profile_fast:*")
                for context in contexts:
                    lttng("add-context", *which, "--type", context)
                lttng("start", name)
                yield Launch(
                    environment={"LD_PRELOAD": "liblttng-ust-cyg-profile-fast.so"},
                    count_kept=lambda: _count_lttng(name, trace),
                )
            finally:
                lttng("destroy", name)

    return launch


def _count_lttng(name: str, trace: Path) -> int:
    subprocess.run(["lttng", "stop", name], check=True, capture_output=True)
    words = ["babeltrace2", str(trace), "--component=sink.utils.counter", "--params=step=+0"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = re.findall(r"(\d+) Event messages", done.stdout)
    assert found, done.stdout
    return int(found[-1]) // 2


def launch_xray(mode: str) -> Start:
    """LLVM's own handlers: `xray-fdr` keeps the newest records in memory, `xray-basic` writes all to a file."""

    @contextmanager
    def launch(folder: Path) -> Iterator[Launch]:
        options = f"patch_premain=true xray_mode={mode} verbosity=0 xray_logfile_base={folder}/xray."
        all_calls = "func_duration_threshold_us=0"
        names = ("XRAY_FDR_OPTIONS", "XRAY_BASIC_OPTIONS")
        yield Launch(environment={"XRAY_OPTIONS": options, **dict.fromkeys(names, all_calls)})

    return launch


def launch_preloaded(library: Path) -> Start:
    @contextmanager
    def launch(folder: Path) -> Iterator[Launch]:
        yield Launch(environment={"LD_PRELOAD": str(library)})

    return launch
