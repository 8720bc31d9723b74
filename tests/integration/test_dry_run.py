# SPDX-License-Identifier: Apache-2.0
"""`nfprobe attach PID --dry-run`: it says what an attach then does, and touches nothing."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.other_user import NOBODY
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.integration, pytest.mark.shared]


def state_of(pid: int) -> tuple[list[str], bytes, int]:
    """What an attach would change: mappings, code of the first file, descriptors."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    start, end = next((int(word, 16) for word in line.split()[0].split("-")) for line in maps if " r-xp " in line)
    with open(f"/proc/{pid}/mem", "rb") as memory:
        memory.seek(start)
        return maps, memory.read(end - start), len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_what_it_says_is_done_then(
    nfprobe: Any, start_testpmd: Callable[..., Testpmd], capture: Callable[[int], Path]
) -> None:
    testpmd = start_testpmd(pcap_device(capture(64)), mode="csum")
    before = state_of(testpmd.pid)
    said = nfprobe.json("attach", testpmd.pid, "--dry-run")
    assert state_of(testpmd.pid) == before
    assert (said["pid"], said["adapter"], said["cost_unknown"]) == (testpmd.pid, "dpdk", None)
    assert said["trial_s"] == 1.0
    assert {one["role"].split()[1].rstrip(",") for one in said["functions"] if one["role"]} >= {"receive", "transmit"}
    assert all(0 < one["call_ns"] < 10_000 for one in said["functions"])
    assert said["batch_ns"] >= 2 * min(one["call_ns"] for one in said["functions"])
    attached = nfprobe.json("attach", testpmd.pid, "--trial", "0s", "--for", "0.2s")
    assert attached["functions"]["probed"] == len(said["functions"])
    assert attached["functions"]["refused"] == said["refused"]

    text = nfprobe.run("attach", testpmd.pid, "--dry-run", "--trial", "0s").stdout
    assert f"{len(said['functions'])} functions of process {testpmd.pid} (dpdk-testpmd) would be probed" in text
    assert "a trial" not in text
    assert text.splitlines()[-1] == f"Nothing was changed. Next: nfprobe attach {testpmd.pid}"


def test_what_cannot_be_probed_is_refused_as_an_attach_is(nfprobe: Any, spawn: Callable[..., Any]) -> None:
    pid = spawn("sleep", "1000").pid
    done = [nfprobe.run("attach", pid, *options) for options in ((), ("--dry-run",))]
    assert done[0].returncode == done[1].returncode == 2
    assert done[0].stderr == done[1].stderr


def test_hints_for_a_user_without_rights_work(nfprobe: Any) -> None:
    """The command that doctor prints gives that user what was missing."""
    plain = [
        "setpriv",
        f"--reuid={NOBODY}",
        f"--regid={NOBODY}",
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=+all",
    ]
    words = [*nfprobe.command, "doctor", "--fix-hints", "--json"]

    def ask(command: list[str]) -> dict[str, Any]:
        import json

        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        if "Permission denied" in done.stderr:
            pytest.skip("another user may not read this Python")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    found = ask(plain)
    assert found["user"]["other users' processes"]["value"].startswith("no")
    (hint,) = [hint["do"] for hint in found["fix_hints"] if hint["do"].startswith("sudo setpriv ")]
    given = (
        hint.replace("$(id -u)", str(NOBODY))
        .replace("$(id -g)", str(NOBODY))
        .replace("--init-groups", "--clear-groups")
    )
    command = shlex.split(given)
    again = ask(command[1 : command.index("nfprobe")])
    assert all(again["user"][deed]["value"] == "yes" for deed in ("other users' processes", "seccomp filters"))
    assert not [hint for hint in again["fix_hints"] if "setpriv" in hint["do"]]
