# SPDX-License-Identifier: Apache-2.0
"""`nfprobe functions` and `nfprobe doctor` on real programs, and GOT slots of a real process."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.strategies import GOT_SLOT
from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.probes.analysis import find_slots, plan_functions
from otel_nfprobe.target.target import Target
from tests.support.probed import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

LIBZ = next(Path("/lib").glob("*/libz.so.1"))
PF_KTHREAD = 0x00200000  # include/linux/sched.h
FIELDS = {"module", "offset", "size", "name", "name_source", "strategy", "reason", "arguments", "returns"}
LIBRARY = "int twice(int a) { return 2 * a; }\nint thrice(int a) { return 3 * a; }\n"
PROGRAM = """
#include <unistd.h>
int twice(int), thrice(int);
int (*volatile taken)(int) = thrice;
int main(int count, char **words)
{
	(void)words;
	if (count > 1)
		twice(count); // bound at the first call: not before when the program is linked lazily
	for (;;)
		pause();
}
"""


def _digest(pid: int) -> str:
    """The executable memory of a process."""
    digest = hashlib.sha256()
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            if " r-xp " in line and "/" in line:
                start, end = (int(part, 16) for part in line.split()[0].split("-"))
                memory.seek(start)
                digest.update(memory.read(end - start))
    return digest.hexdigest()


@pytest.fixture
def sleeper(spawn: Callable[..., subprocess.Popen[str]]) -> int:
    process = spawn("sleep", "60")
    # It sleeps when all of its libraries are mapped: before that, more of their code may still come.
    assert wait_until(lambda: "State:\tS" in Path(f"/proc/{process.pid}/status").read_text())
    assert len(Target(process.pid).modules()) >= 3
    return int(process.pid)


def test_json_of_a_file(nfprobe: Any) -> None:
    found = nfprobe.json("functions", LIBZ)
    assert len(found) > 100
    assert all(set(item) >= FIELDS for item in found)
    by_name = {item["name"]: item for item in found}
    assert by_name["inflate"]["strategy"] == "in-stack call"
    assert by_name["gzprintf"] == {
        **by_name["gzprintf"],
        "strategy": "relocated body",
        "reason": "reads stack arguments",
    }
    assert all(item["strategy"] or item["reason"] for item in found)


def test_a_process_shows_all_its_modules_and_is_not_touched(nfprobe: Any, sleeper: int) -> None:
    before = _digest(sleeper)
    found = nfprobe.json("functions", sleeper)
    assert {"sleep", "libc.so.6"} <= {item["module"] for item in found}
    linker = {item["reason"] for item in found if item["module"].startswith("ld-linux")}
    assert linker == {"in the dynamic linker"}
    assert _digest(sleeper) == before


def test_a_table_for_people(nfprobe: Any, sleeper: int) -> None:
    done = nfprobe.run("functions", sleeper, "--functions", "libc:nanosleep", "--functions", "libc:setjmp")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["module", "offset", "size", "strategy", "name", "from", "reason"]
    assert any("in-stack call" in line and "nanosleep" in line for line in lines)
    assert "2 functions, 2 can be probed (100.0 %)" in done.stdout
    assert "returns twice" in done.stdout


def test_excluded_functions_are_left_out(nfprobe: Any) -> None:
    names = {item["name"] for item in nfprobe.json("functions", LIBZ, "--functions", "inflate*", "--exclude", "*Init*")}
    assert "inflate" in names
    assert not any("Init" in name for name in names)


@pytest.mark.parametrize("what", ["/no/such/file", "nothing", "/etc/passwd"])
def test_what_is_neither_process_nor_program(what: str, nfprobe: Any) -> None:
    done = nfprobe.run("functions", what)
    assert done.returncode == 2
    assert what in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("binding", ["lazy", "now"])
def test_slots_of_a_process(binding: str, spawn: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "library.c").write_text(LIBRARY)
    (tmp_path / "program.c").write_text(PROGRAM)
    library, program = tmp_path / "libcalled.so", tmp_path / "program"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, tmp_path / "library.c"], check=True)
    words = ["gcc", "-O1", f"-Wl,-z,{binding}", "-o", program, tmp_path / "program.c", library]
    subprocess.run([*words, f"-Wl,-rpath,{tmp_path}"], check=True)
    process = spawn(program)
    assert wait_until(lambda: "State:\tS" in Path(f"/proc/{process.pid}/status").read_text())
    target = Target(process.pid)
    plans = plan_functions(find_functions(target, ["libcalled:*twice", "libcalled:thrice"]), target, "got")
    assert {plan.strategy for plan in plans} == {GOT_SLOT}
    slots = {plan.name: plan for plan in find_slots(target, plans)}
    assert set(slots) == {"twice"}  # `thrice` is reached through a variable, which is no slot
    plan = slots["twice"]
    value = int.from_bytes(plan.site_bytes, "little")
    assert target.read(plan.site, 8) == plan.site_bytes
    program_module = target.modules()[0]
    assert program_module.low <= plan.site < program_module.high
    assert (value == plan.address) == (binding == "now")


def test_the_machine(nfprobe: Any) -> None:
    found = nfprobe.json("doctor")
    assert found["user"]["user"]["value"] == "uid 0"
    assert found["machine"]["architecture"] == {"value": "x86_64", "advice": ""}
    assert "membarrier sync-core" in found["machine"]


def test_doctor_of_a_process(nfprobe: Any, sleeper: int) -> None:
    target = nfprobe.json("doctor", sleeper, status=2)["target"]  # as attach exits then
    assert target["can_be_probed"] is True
    assert target["blocked_thread"] == sleeper
    assert [thread["tid"] for thread in target["threads"]] == [sleeper]
    assert target["executable"] == os.path.realpath(shutil.which("sleep") or "")
    assert target["adapter"] is None
    attach = nfprobe.run("attach", sleeper)
    assert attach.returncode == target["exit_status"]
    assert target["next_command"] == f"nfprobe attach {sleeper} --adapter FILE.yaml  # or --functions GLOB"
    assert attach.stderr == f"nfprobe: {target['reason']}\nnext: {target['next_command']}\n"
    assert f"  next: {target['next_command']}\n" in nfprobe.run("doctor", sleeper).stdout


def test_doctor_of_a_described_process(nfprobe: Any, sleeper: int, tmp_path: Path) -> None:
    """It reads a description as attach does: one of another program is refused."""
    description = tmp_path / "nf.yaml"
    description.write_text("""
name: nf
recognise: {executable: firewall}
receive: [{function: "libc.so*:read", packet: 1, count: return}]
buffer: {data: 0, length: {offset: 8, bytes: 4}}
""")
    target = nfprobe.json("doctor", sleeper, "--adapter", description, status=2)["target"]
    assert target["reason"] == f"Adapter nf does not know process {sleeper} (sleep)."


def test_doctor_of_a_process_that_cannot_be_probed(nfprobe: Any) -> None:
    kernel_threads = [pid for pid in os.listdir("/proc") if pid.isdigit() and _is_kernel_thread(pid)]
    if not kernel_threads:
        pytest.skip("kernel threads have no number in this PID namespace")
    target = nfprobe.json("doctor", kernel_threads[0], status=3)["target"]
    assert target["can_be_probed"] is False
    assert "kernel thread" in target["reason"]


def _is_kernel_thread(pid: str) -> bool:
    """By its flags: a process that is just ending has no address space, either."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended
        return False
    return bool(int(stat.rpartition(")")[2].split()[6]) & PF_KTHREAD)
