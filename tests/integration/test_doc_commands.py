# SPDX-License-Identifier: Apache-2.0
"""Command lines of the documents are run as they stand there, against a firewall or the page's own program.

Sessions are shortened, spans are printed instead of sent, and an NF that nfprobe would know is described. What names a
program that is not here is only parsed (tests/unit/project/test_docs.py).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_commands import FENCE, ROOT, lines_to_type
from tests.support.firewall import DESCRIPTION, Firewall
from tests.support.probed import wait_until
from tests.support.simulated_chain import Nf, arrive, run, write

pytestmark = [pytest.mark.integration, pytest.mark.shared]

# Programs, captures and sessions that are not here.
FOREIGN = ("redis-server", "deflate", "tcache_get", "sent.pcap", "nfprobe counters", "nfprobe export --endpoint")
RECORDINGS = ("session.nfp", "slow.nfprobe", "slow.nfp", "firewall.nfprobe", "build/demo/firewall.nfprobe")
STATUS = {"nfprobe doctor $PID": 2, "nfprobe attach 999999": 2, "nfprobe attach $PID --adapter wrong.yaml --for 1s": 1}
DESCRIBED = ROOT / "docs" / "describe-your-nf.md"


def lines_by_page() -> dict[Path, list[str]]:
    found: dict[Path, list[str]] = {}
    for page, line in lines_to_type():
        if not any(word in line for word in FOREIGN):
            found.setdefault(page, []).append(line)
    return found


LINES = lines_by_page()


@pytest.fixture(scope="module")
def firewall(firewall_binary: Path) -> Iterator[Firewall]:
    running = Firewall(firewall_binary, 20_000)
    yield running
    running.end()


@pytest.fixture(scope="module")
def recording(firewall: Firewall, nfprobe: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What lines read that have no attach before them."""
    path = tmp_path_factory.mktemp("recording") / "session.nfp"
    options = ["--adapter", DESCRIPTION, "--for", "0.5s", "--profile", "997", "--counters", "page-faults"]
    done = nfprobe.run("attach", firewall.pid, *options, "--record", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def folder(recording: Path, tmp_path: Path) -> Path:
    """A tree like that in which the documents are read, with recordings of the names that they use."""
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "firewall.yaml").symlink_to(DESCRIPTION)
    (tmp_path / "build" / "demo").mkdir(parents=True)
    for name in RECORDINGS:
        shutil.copy(recording, tmp_path / name)
    packets = arrive(1000, 1000)
    for nf in (Nf("fw"), Nf("ovs", 600)):
        packets = run(nf, packets)
        write(nf, tmp_path / f"{nf.name}.nfp")
    return tmp_path


@pytest.fixture
def router(folder: Path) -> Iterator[int]:
    """The program of docs/describe-your-nf.md, started by its lines, and its descriptions."""
    text = DESCRIBED.read_text()
    blocks = [block for _, block in FENCE.findall(text)]
    (folder / "router.yaml").write_text(next(block for block in blocks if block.startswith("name: router")))
    (folder / "wrong.yaml").write_text((folder / "router.yaml").read_text().replace("data: 0", "data: 8"))
    compile_, start, _ = blocks[0].splitlines()
    subprocess.run(["bash", "-c", compile_], cwd=folder, check=True)
    shell = subprocess.Popen(["bash", "-c", f"{start} wait"], cwd=folder, start_new_session=True)

    def pids() -> list[int]:
        program = str(folder / "router")
        return [int(pid) for pid in filter(str.isdigit, os.listdir("/proc")) if _runs(pid, program)]

    assert wait_until(lambda: bool(pids()))
    yield pids()[0]
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()


def _runs(pid: str, program: str) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/exe") == program
    except OSError:
        return False


def shortened(line: str) -> str:
    """The line for a session of a moment, without a receiver, on an NF that needs a description."""
    line = re.sub(r"--endpoint \S+", "--exporter console --max-traces-per-second 5", line)
    if line.startswith("nfprobe attach") and "999999" not in line:
        line = re.sub(r" --for \S+", "", line) + " --for 0.3s"
        if not re.search("--adapter|--functions", line):
            line += " --adapter firewall.yaml"
    return line


@pytest.mark.parametrize("page", LINES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_run(page: Path, request: pytest.FixtureRequest, folder: Path, firewall: Firewall) -> None:
    pid = request.getfixturevalue("router") if page == DESCRIBED else firewall.pid
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for line in LINES[page]:
        typed = re.sub(r"\$\(pid[^)]*\)|\$PID|\$!|\bPID\b", str(pid), shortened(line))
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert done.returncode == STATUS.get(line, 0), f"{page.name}: {typed}\n{done.stdout[-2000:]}\n{done.stderr}"


def test_most_lines_are_run() -> None:
    run = sum(map(len, LINES.values()))
    assert run >= 35
    assert run >= 0.7 * sum(1 for _ in lines_to_type())


def test_a_wrong_line_is_seen(nfprobe: Any, firewall: Firewall) -> None:
    """What the lines are judged by: the program's own exit status."""
    assert nfprobe.run("attach", firewall.pid, "--no-such-option").returncode == 2
