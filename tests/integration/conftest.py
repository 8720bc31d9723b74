# SPDX-License-Identifier: Apache-2.0
"""Hostile targets, the double of VPP, and the target of the tests that read counters (others have their own)."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.linux.perfring import event_attributes, open_event
from tests.support.hostile import INCLUDES, Bait
from tests.support.other_user import NOBODY
from tests.support.probed import Talker
from tests.support.vpp_double import RELEASES, build_double

if TYPE_CHECKING:
    from tests.support.vpp_ways import Meter

# They say what was wrong, as in a test.
pytest.register_assert_rewrite("tests.support.counted", "tests.support.changing", "tests.support.vpp_ways")


@pytest.fixture(scope="session", autouse=True)
def tracefs() -> None:
    """Mounted, as on machines with systemd."""
    if not Path("/sys/kernel/tracing/events").is_dir():
        # Another process of the tests may do it at the same moment: then this one fails.
        subprocess.run(["mount", "-t", "tracefs", "tracefs", "/sys/kernel/tracing"], check=False)
        assert Path("/sys/kernel/tracing/events").is_dir()


# Those that sessions open (causes/absence_watch.py, causes/cpu_watch.py), where the kernel has them.
TRACEPOINTS = (
    "irq_vectors/*",
    "irq/irq_handler_*",
    "irq/softirq_e*",
    "nmi/nmi_handler",
    "sched/sched_switch",
    "sched/sched_stat_runtime",
    "sched/sched_waking",
)


@pytest.fixture(scope="session", autouse=True)
def used_tracepoints(tracefs: None) -> Iterator[None]:
    """Tracepoints of sessions, in use by a disabled event each.

    The last user of a tracepoint waits for the kernel: 25 to 50 ms for each of them, a second at the end of a session.
    """
    held = []
    for pattern in TRACEPOINTS:
        for path in Path("/sys/kernel/tracing/events").glob(f"{pattern}/id"):
            attributes = event_attributes(lib.PERF_TYPE_TRACEPOINT, int(path.read_text()), lib.NFP_EVENT_DISABLED)
            with suppress(OSError):  # nothing is measured by it
                held.append(open_event(attributes, os.getpid()))
    yield
    for descriptor in held:
        os.close(descriptor)


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    """Where the target writes what it counted itself (counted.read_truth)."""
    return tmp_path / "truth"


@pytest.fixture
def talker(
    request: pytest.FixtureRequest,
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    truth: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Talker:
    """The target that the file names, with flags of the compiler: pytest.mark.target(NAME, FLAG...).

    Without that mark it is tests/targets/counted.c, a processor made of a signal handler.
    """
    mark = request.node.get_closest_marker("target")
    monkeypatch.setenv("TRUTH", str(truth))
    return Talker(spawn(compile_target(*(mark.args if mark else ("counted",))), stdin=subprocess.PIPE))


@pytest.fixture
def bait() -> Iterator[Bait]:
    folder = Path(tempfile.mkdtemp(prefix="nfprobe-bait-"))
    folder.chmod(0o755)
    yield Bait(folder)
    shutil.rmtree(folder)


@pytest.fixture
def start_hostile(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], bait: Bait
) -> Callable[..., Talker]:
    """Starts a target that is hostile in a mode: start(mode, path=, turned=, name=, as_nobody=).

    As nobody it is never root's under its name, and is hostile before its first instruction of main().
    """
    compiled = compile_target("hostile", *INCLUDES)

    def start_(
        mode: str, path: Path = bait.file, turned: bool = True, name: str = compiled.name, as_nobody: bool = False
    ) -> Talker:
        program, environment, words = compiled.with_name(name), dict(os.environ), []
        if as_nobody:
            program = bait.folder / name
            environment |= {"HOSTILE_MODE": mode, "HOSTILE_PATH": str(path)}
            words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        if not program.exists():
            shutil.copy(compiled, program)
        talker = Talker(spawn(*words, program, mode, path, stdin=subprocess.PIPE, env=environment))
        assert not turned or as_nobody or talker.ask("turn") == "right"
        return talker

    return start_


@pytest.fixture(scope="session")
def vpp_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double of VPP, in its newest layout."""
    return build_double(tmp_path_factory.mktemp("vpp"), RELEASES[-1])


@pytest.fixture(scope="session")
def doubles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The double of VPP in each layout, by release."""
    return {release: build_double(tmp_path_factory.mktemp("vpp"), release) for release in RELEASES}


@pytest.fixture
def meter(vpp_program: Path, spawn: Callable[..., subprocess.Popen[str]], nfprobe: Any, tmp_path: Path) -> Meter:
    from tests.support.vpp_ways import Meter  # with its assertions rewritten, and those of the tests that it imports

    return Meter(lambda: spawn(vpp_program, stdin=subprocess.PIPE), nfprobe, tmp_path)
