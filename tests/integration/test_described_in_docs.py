# SPDX-License-Identifier: Apache-2.0
"""docs/describe-your-nf.md leads where it says: its description, on its program, gives packets."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.probed import Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "describe-your-nf.md").read_text()
BATCH = 20


@pytest.fixture
def router(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> Talker:
    program = tmp_path / "router"
    shutil.copy(compile_target("late"), program)
    return Talker(spawn(program, stdin=subprocess.PIPE))


def test_from_unknown_to_packets(nfprobe: Any, router: Talker, tmp_path: Path) -> None:
    description = tmp_path / "router.yaml"
    description.write_text(re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0])
    assert nfprobe.run("doctor", router.pid).returncode == 2
    target = nfprobe.json("doctor", router.pid, "--adapter", description)["target"]
    for note in target["notes"][1:3]:
        assert f"  note: {note}\n" in PAGE
    recording = tmp_path / "slow.nfprobe"
    words = ["--adapter", description, "--packets", "all", "--record", recording, "--json"]
    monitor = nfprobe.start("attach", router.pid, *words)
    assert wait_until(lambda: nfprobe.run("status", router.pid).returncode == 0 or monitor.poll() is not None)
    router.ask("slow 200")
    nfprobe.run("detach", router.pid)
    monitor.communicate()
    report = nfprobe.json("report", recording)
    assert report["packets"]["received"] == report["packets"]["transmitted"] == 200 * BATCH
    assert report["packets"]["slowest"][0]["cause"]["function"] in ("late_transmit", None)
    assert report["packets"]["slowest"][0]["length"] == 74


def test_wrong_description(nfprobe: Any, router: Talker, tmp_path: Path) -> None:
    description = tmp_path / "wrong.yaml"
    text = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    description.write_text(text.replace("data: 0", "data: 8"))
    monitor = nfprobe.start("attach", router.pid, "--adapter", description)
    assert wait_until(lambda: nfprobe.run("status", router.pid).returncode == 0 or monitor.poll() is not None)
    router.ask("slow 10")
    nfprobe.run("detach", router.pid)
    assert (
        "(router receive) is switched off, its description is wrong: what would be a packet, at"
        in (monitor.communicate()[1])
    )
    assert monitor.returncode == 1
