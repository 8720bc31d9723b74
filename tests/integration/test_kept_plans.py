# SPDX-License-Identifier: Apache-2.0
"""Plans that an earlier attach made, in a process where jumps through GOT slots lead somewhere else.

One program, one library `outer` whose functions end in a jump to `inner`, which is another library in each process:
harmless, or one that reads a stack argument, which an in-stack call would move away from it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.strategies import IN_STACK_CALL
from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.probes import analysis
from otel_nfprobe.probes.analysis import FunctionPlan, plan_functions
from otel_nfprobe.target.target import Target

pytestmark = [pytest.mark.integration, pytest.mark.shared]

BEGIN = '__asm__(".text\\n.globl {0}\\n.type {0},@function\\n{0}:\\n.cfi_startproc\\n'
END = '\\n.cfi_endproc\\n.size {0},.-{0}\\n");\n'
INNER = {
    "harmless": "lea 7(%rdi),%rax\\nret",
    "reads its stack": "mov 8(%rsp),%rax\\nadd %rdi,%rax\\nret",
    "ends in another jump": "mov $3,%edi\\njmp innermost@PLT",
}
INNERMOST = "mov 8(%rsp),%rax\\nadd %rdi,%rax\\nret"
PROGRAM = (
    '#include <stdio.h>\nlong outer(long);\nint main(void) { puts("ready"); fflush(stdout); getchar(); return outer; }'
)


def assembly(name: str, body: str) -> str:
    return BEGIN.format(name) + body + END.format(name)


def build(folder: Path, name: str, source: str, *options: str) -> Path:
    path = folder / f"{name}.c"
    path.write_text(source)
    subprocess.run(["gcc", "-w", "-O1", "-o", folder / name, path, *options], check=True)
    return folder / name


@pytest.fixture(params=["-Wl,-z,lazy", "-Wl,-z,now"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Target]]:
    """Starts the program with one of the inner libraries."""
    folders = {}
    for number, (what, body) in enumerate(INNER.items()):
        folder = folders[what] = tmp_path / str(number)
        folder.mkdir()
        source = assembly("inner", body) + assembly("innermost", INNERMOST)
        build(folder, "libinner.so", source, "-shared", "-fPIC", "-nostdlib")
    inner = ["-L", str(folders["harmless"]), "-linner"]
    source = assembly("outer", "mov $5,%edi\\njmp inner@PLT") + assembly(
        "alone", "mov $5,%edi\\nlea 1(%rdi),%rax\\nret"
    )
    build(tmp_path, "libouter.so", source, "-shared", "-fPIC", "-nostdlib", request.param, *inner)
    rest = ["-L", str(tmp_path), "-louter", f"-Wl,-rpath,{tmp_path}", "-Wl,--allow-shlib-undefined"]
    program = build(tmp_path, "program", PROGRAM, *rest)
    processes = []

    def start(what: str) -> Target:
        process = subprocess.Popen(
            [program], env={"LD_LIBRARY_PATH": str(folders[what])}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return Target(process.pid)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_slots_are_judged_again(run: Callable[[str], Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(analysis, "FUNCTIONS_MIN", 1)
    monkeypatch.setattr(analysis, "FRESH_MIN", 1)
    judged: list[str] = []
    plan = analysis._Ladder.plan

    def record(ladder: Any, strategy: str | None) -> FunctionPlan:
        judged.append(ladder.function.name)
        return plan(ladder, strategy)

    monkeypatch.setattr(analysis._Ladder, "plan", record)
    targets = {what: run(what) for what in INNER}

    def judge(what: str) -> tuple[FunctionPlan, bool]:
        """The plan of `outer` in a process, and whether it was made anew."""
        judged.clear()
        functions = find_functions(targets[what], ["libouter.so:*"])
        plans = {plan.name: plan for plan in plan_functions(functions, targets[what])}
        assert plans["alone"].strategy == IN_STACK_CALL
        return plans["outer"], "outer" in judged

    fresh = {}
    for what in INNER:
        with monkeypatch.context() as context:
            context.setattr(analysis, "FUNCTIONS_MIN", 1 << 30)
            fresh[what], _ = judge(what)
    assert fresh["harmless"].strategy == IN_STACK_CALL
    assert IN_STACK_CALL not in (fresh["reads its stack"].strategy, fresh["ends in another jump"].strategy)
    # Each after each other: the plan is that of an analysis that knows nothing, and what is the same is taken over.
    before = ""
    for what in ("harmless", "harmless", "reads its stack", "reads its stack", "harmless", "ends in another jump",
                 "reads its stack", "harmless", "harmless"):  # fmt: skip
        found, is_new = judge(what)
        assert (found.strategy, found.reason) == (fresh[what].strategy, fresh[what].reason)
        assert found.displaced == fresh[what].displaced
        if what == before:
            assert not is_new
        before = what
