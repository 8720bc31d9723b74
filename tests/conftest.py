# SPDX-License-Identifier: Apache-2.0
"""What all tests share: compiled targets, the nfprobe command, processes that end with their test."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Modules that tests of several folders use.
from otel_nfprobe.base.gc_tuning import keep_what_is_there
from tests.support.firewall import Firewall
from tests.support.metrics_receiver import MetricsReceiver
from tests.support.otlp_receiver import Receiver
from tests.support.testpmd import Testpmd
from tests.support.traffic import make_frames, write_pcap

# No test depends on an absolute time: an example that waited for a processor is no slow one.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ROOT / "tests" / "targets"


# What is cached of files that were analysed goes to a folder of this test run.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="nfprobe-cache-")
# What could not be delivered, too.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="nfprobe-state-")
# argparse looks for files with a translation of each of its texts, each time: a third of the time of a parser.
os.environ["LANGUAGE"] = "C"

# A process of the tests keeps a million objects, to which few tests add: looking through them for garbage as often as
# Python does by itself takes a tenth of the time of the unit tests.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    keep_what_is_there()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # extension modules look at exit for what was not collected


# Started by nohup or in the background of a script, the tests find these ignored, and so would what they start.
for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)


class Nfprobe:
    """The command line, run as a user runs it."""

    command = (sys.executable, "-m", "otel_nfprobe")

    def run(self, *arguments: object, timeout: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
        """Runs to the end and returns output and status."""
        words = [*self.command, *map(str, arguments)]
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **options)

    def json(self, *arguments: object, status: int = 0, timeout: float = 300) -> Any:
        """Runs with --json, checks the status and returns the object on the last line."""
        done = self.run(*arguments, "--json", timeout=timeout)
        assert done.returncode == status, f"{done.args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def start(self, *arguments: object, **options: Any) -> subprocess.Popen[str]:
        """Starts and returns at once."""
        words = [*self.command, *map(str, arguments)]
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen(words, text=True, **options)

    def end(self, monitor: subprocess.Popen[str], status: int = 0) -> dict[str, Any]:
        """Ends a session that was started with --json, as Ctrl-C does. Returns its summary."""
        monitor.send_signal(signal.SIGINT)
        output, errors = monitor.communicate(timeout=120)
        assert monitor.returncode == status, errors
        summary: dict[str, Any] = json.loads(output.splitlines()[-1])
        return summary


@pytest.fixture(scope="session")
def nfprobe() -> Nfprobe:
    return Nfprobe()


@pytest.fixture(scope="session")
def compile_target(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles tests/targets/NAME.c (or .cpp, .S) once: compile_target(name, *flags) -> executable."""
    folder = tmp_path_factory.mktemp("targets")
    made: dict[tuple[str, ...], Path] = {}

    def compile_(name: str, *flags: str) -> Path:
        key = (name, *flags)
        if key not in made:
            source = next(TARGETS.glob(f"{name}.c*"))
            compiler = "g++" if source.suffix == ".cpp" else "gcc"
            output = folder / f"{name}-{len(made)}"
            words = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(output), "-pthread"]
            subprocess.run([*words, *flags], check=True)
            made[key] = output
        return made[key]

    return compile_


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes and kills what is left of them when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object, **options: Any) -> subprocess.Popen[str]:
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("text", True)
        process = subprocess.Popen([str(word) for word in words], **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture
def private_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was ever kept of files that were analysed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver of spans on loopback."""
    server = Receiver()
    yield server
    server.stop()


@pytest.fixture
def metrics_receiver() -> Iterator[MetricsReceiver]:
    """A receiver of metrics on loopback."""
    server = MetricsReceiver()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _integration_needs_root(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("integration") and os.geteuid() != 0:
        pytest.skip("needs root: it attaches to processes")


@pytest.fixture
def testpmd_binary() -> str:
    binary = shutil.which("dpdk-testpmd")
    if binary is None:
        pytest.skip("dpdk-testpmd is not installed: scripts/set-up test")
    return binary


@pytest.fixture(scope="session")
def firewall_binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """examples/firewall, with its names."""
    folder = tmp_path_factory.mktemp("firewall")
    subprocess.run(["make", "-s", "-C", str(ROOT / "examples" / "firewall"), f"BUILD={folder}"], check=True)
    return folder / "firewall"


@pytest.fixture
def start_firewall(firewall_binary: Path) -> Iterator[Callable[..., Firewall]]:
    """Starts firewalls: start_firewall(rate, its other options)."""
    started: list[Firewall] = []

    def start(rate: int = 500_000, *options: str) -> Firewall:
        started.append(Firewall(firewall_binary, rate, *options))
        return started[-1]

    yield start
    for firewall in started:
        firewall.end()


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A seeded capture file of so many packets, made once."""
    folder = tmp_path_factory.mktemp("captures")

    def make(count: int) -> Path:
        path = folder / f"{count}.pcap"
        if not path.exists():
            write_pcap(path, make_frames(count))
        return path

    return make


@pytest.fixture
def start_testpmd(testpmd_binary: str) -> Iterator[Callable[..., Testpmd]]:
    """Starts testpmd: start_testpmd(vdev, mode="macswap", interactive=True, launcher=(), topology="loop")."""
    started: list[Testpmd] = []

    def start(
        vdev: str,
        mode: str = "macswap",
        interactive: bool = True,
        launcher: Sequence[str] = (),
        topology: str = "loop",
    ) -> Testpmd:
        prefix = f"nfp{os.getpid()}x{len(started)}"
        testpmd = Testpmd(testpmd_binary, prefix, vdev, mode, interactive, launcher=launcher, topology=topology)
        started.append(testpmd)
        return testpmd

    yield start
    for testpmd in started:
        testpmd.stop()
