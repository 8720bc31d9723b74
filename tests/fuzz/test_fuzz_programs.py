# SPDX-License-Identifier: Apache-2.0
"""Whole random programs compute the same with all their functions probed, by each strategy in turn.

Nobody wrote these programs: random_c.py makes them, and csmith (Debian's package of that name, with
libcsmith-dev) in the longer run: NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_programs.py. A failure
names the seed and the flags.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError
from tests.fuzz.random_c import random_program
from tests.fuzz.seeds import seeds
from tests.support.probed import Probed, Talker

pytestmark = pytest.mark.integration

STRATEGIES = (None, "relocated", "in-stack", "copied", "got", "entry")
TURNS, ROUNDS = 3, len(STRATEGIES)
RING_BYTES = 1 << 22
LONGEST_PLAIN_S = 5
CSMITH = Path("/usr/include/csmith")
MAIN = """
#include <stdio.h>
#include <unistd.h>
int random_main(void);
int main(void)
{
	char line[64];
	puts("ready");
	fflush(stdout);
	while (read(0, line, sizeof line) > 0) {
		random_main();
		fflush(stdout);
	}
	return 0;
}
"""
LEVELS = ("-O0", "-O1", "-O2", "-O2", "-O3", "-Os")
FLAGS = (
    "-fcf-protection", "-fno-omit-frame-pointer", "-fno-plt", "-falign-functions=1", "-fno-jump-tables", "-fno-inline",
    "-fstack-protector-all", "-mno-red-zone", "-fstack-clash-protection", "-fexceptions", "-fno-pie -no-pie",
)  # fmt: skip

Spawn = Callable[..., "subprocess.Popen[str]"]


class Program:
    """A compiled program; as program and library in some cases, so that there are GOT slots."""

    def __init__(self, folder: Path, seed: int, text: str, extra: tuple[str, ...] = (), main: str = "") -> None:
        chance = random.Random(seed)
        # clang removes loops that never end, as csmith may write them: then what happens is up to chance.
        compilers = ("gcc",) if main else ("gcc", "gcc", "clang")
        compiler = chance.choice([name for name in compilers if shutil.which(name)])
        self.flags = [compiler, "-w", chance.choice(LEVELS), *extra]
        for flag in FLAGS:
            if chance.random() < 0.2:
                self.flags += flag.split()
        name = f"random{seed}"
        source, self.path = folder / f"{name}.c", folder / name
        source.write_text(text)
        self.globs = [f"{name}:*"]
        starter = folder / f"{name}main.c"
        if main:
            starter.write_text(main)
        if chance.random() < 0.4:
            library = folder / f"lib{name}.so"
            self.flags = [flag for flag in self.flags if "pie" not in flag]
            rename = [] if main else ["-Dmain=random_main"]
            self._compile(*rename, "-fPIC", "-shared", str(source), "-o", str(library))
            if not main:
                starter.write_text("int random_main(void);\nint main(void)\n{\n\treturn random_main();\n}\n")
            self._compile(str(starter), str(library), "-o", str(self.path))
            self.globs.append(f"lib{name}.so:*")
        else:
            self._compile(*([str(starter)] if main else []), str(source), "-o", str(self.path))

    def _compile(self, *words: str) -> None:
        subprocess.run([*self.flags, *words], check=True)


def _answers(program: Program) -> list[str]:
    """What it says without probes; [] when it takes too long or ends itself."""
    said = f"{TURNS}\n"
    process = subprocess.Popen([program.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin
    assert process.stdout
    answers = []
    try:
        assert process.stdout.readline() == "ready\n"
        for _ in range(ROUNDS):
            process.stdin.write(said)
            process.stdin.flush()
            answers.append(process.stdout.readline().strip())
    except BrokenPipeError:
        return []
    finally:
        process.kill()
        process.communicate()
    return answers if all(answers) else []


def _run_probed(program: Program, talker: Talker, strategy: str | None, expected: str) -> dict[str, int]:
    """One session of a strategy. Returns the calls by function."""
    where = (program.path.name, strategy, program.flags)
    probed = Probed(talker.pid, program.globs, strategy=strategy, ring_bytes=RING_BYTES)
    if not probed.choice.requests():
        assert talker.ask(str(TURNS)) == expected, where
        return {}
    try:
        with probed:
            answer = talker.ask(str(TURNS))
    except NfprobeError as error:
        raise AssertionError(f"{where}: {error.sentence}") from error
    assert answer == expected, where
    if probed.lost != (0, 0, 0):  # the machine is too busy to drain: what is paired proves nothing
        assert probed.not_restored == []
        return {}
    probed.assert_exact()
    return probed.calls


def _check(program: Program, expected: list[str], spawn: Spawn, same_calls: bool) -> int:
    """All strategies in one process, one after the other. Returns the number of counted calls."""
    talker = Talker(spawn(program.path, stdin=subprocess.PIPE, stderr=subprocess.PIPE))
    counted: dict[str | None, dict[str, int]] = {}
    for strategy, answer in zip(STRATEGIES, expected, strict=True):
        counted[strategy] = _run_probed(program, talker, strategy, answer)
    first: dict[str, int] = {}
    for strategy, calls in counted.items():
        if same_calls and strategy != "got":  # only some calls go through slots
            differ = {name: (first[name], calls[name]) for name in first.keys() & calls if first[name] != calls[name]}
            assert not differ, (program.path.name, strategy, program.flags)
            first = {**calls, **first}
    return sum(sum(calls.values()) for calls in counted.values())


def test_programs(tmp_path: Path, spawn: Spawn) -> None:
    """The functions of each strategy are called as often as by the others."""
    counted = 0
    for seed in seeds(2):
        program = Program(tmp_path, seed, random_program(seed))
        expected = _answers(program)
        assert expected
        assert len(set(expected)) == 1  # each turn begins from the same state
        counted += _check(program, expected, spawn, same_calls=True)
    assert counted > 1000


@pytest.mark.long
@pytest.mark.skipif(not CSMITH.exists(), reason="csmith and libcsmith-dev are not installed")
def test_programs_of_csmith(tmp_path: Path, spawn: Spawn) -> None:
    for seed in seeds(1):
        made = ["csmith", "--seed", str(seed), "--no-argc"]
        text = subprocess.run(made, capture_output=True, text=True, check=True, cwd=tmp_path)
        extra = ("-fno-inline", f"-I{CSMITH}")
        program = Program(tmp_path, seed, text.stdout.replace("int main (void)", "int random_main (void)"), extra, MAIN)
        try:
            done = subprocess.run([program.path], input="\n", capture_output=True, text=True, timeout=LONGEST_PLAIN_S)
        except subprocess.TimeoutExpired:
            continue  # some of its programs take for ever
        expected = _answers(program) if done.returncode == 0 else []
        if expected:
            _check(program, expected, spawn, same_calls=False)
