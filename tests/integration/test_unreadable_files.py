# SPDX-License-Identifier: Apache-2.0
"""A library that what reads ELF files does not survive: the rest of its process is probed, the library is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.target.target import Target

pytestmark = [pytest.mark.integration, pytest.mark.shared]

FAULTY = Path(__file__).with_name("faulty_nfprobe.py")
MARK = "this file is not to be read"
LIBRARY = "int twice(int a) { return 2 * a; }\n"
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
int twice(int);
__attribute__((noinline)) int work(int a) { return twice(a) + 1; }
int main(void)
{
	setvbuf(stdout, 0, _IONBF, 0);
	for (int number = 0;; number++) {
		if (work(number) != 2 * number + 1)
			return 1;
		if (number == 0)
			puts("ready");
		usleep(1000);
	}
}
"""


@pytest.fixture
def worker(tmp_path: Path, spawn: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """A program that calls a function of its own, which calls one of the library."""
    library, program = tmp_path / "libbad.so", tmp_path / "worker"
    gcc = ["gcc", "-O1", "-x", "c", "-", "-o"]
    subprocess.run([*gcc, str(library), "-shared", "-fPIC"], input=LIBRARY, text=True, check=True)
    with library.open("ab") as file:
        file.write(MARK.encode())
    words = ["-x", "none", str(library), f"-Wl,-rpath,{tmp_path}"]
    subprocess.run([*gcc, str(program), *words], input=PROGRAM, text=True, check=True)
    process = spawn(str(program), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _run(accident: str, questions: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FAULTY), accident, MARK, questions, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def _attach(accident: str, questions: str, pid: int, *globs: str) -> subprocess.CompletedProcess[str]:
    chosen = [word for glob in globs for word in ("--functions", glob)]
    return _run(accident, questions, "attach", pid, "--adapter", "none", *chosen, "--for", "0.3s", "--json")


def _records(done: subprocess.CompletedProcess[str]) -> int:
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return int(summary["records"]["read"])


def test_the_rest_of_a_process_is_probed_when_a_library_cannot_be_read(worker: subprocess.Popen[str]) -> None:
    done = _attach("crash", "h", worker.pid, "worker:work")
    assert _records(done) > 0
    assert "libbad.so are not probed: " in done.stderr
    assert "killed by SIGSEGV while reading it." in done.stderr
    assert worker.poll() is None


@pytest.mark.parametrize("questions", ["s", "r"])
def test_the_rest_is_probed_when_one_table_of_a_library_cannot_be_read(
    worker: subprocess.Popen[str], questions: str
) -> None:
    done = _attach("crash", questions, worker.pid, "worker:work")
    assert _records(done) > 0
    assert worker.poll() is None


@pytest.mark.parametrize("questions", ["h", "s", "r"])
def test_an_attach_to_functions_of_that_library_ends_with_a_sentence(
    worker: subprocess.Popen[str], questions: str
) -> None:
    before = Target(worker.pid).maps()
    done = _attach("crash", questions, worker.pid, "libbad.so:twice")
    assert done.returncode == 1, done.stderr
    assert "libbad.so" in done.stderr
    assert "killed by SIGSEGV while reading it" in done.stderr
    assert "next: " in done.stderr
    assert "Traceback" not in done.stderr
    assert worker.poll() is None
    assert Target(worker.pid).maps() == before


def test_functions_of_that_library_are_listed_with_the_reason(worker: subprocess.Popen[str]) -> None:
    done = _run("crash", "s", "functions", worker.pid, "--functions", "libbad.so:*", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert rows
    assert {row["strategy"] for row in rows} == {None}
    assert all("killed by SIGSEGV while reading it" in row["reason"] for row in rows if row["name_source"] == "offset")


def test_a_file_on_disk_that_cannot_be_read_is_told_in_one_sentence(worker: subprocess.Popen[str]) -> None:
    library = next(item.path for item in Target(worker.pid).maps() if item.path.endswith("/libbad.so"))
    done = _run("crash", "h", "functions", library)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"nfprobe: {library} cannot be read: the process that reads ELF files was killed by SIGSEGV while reading it.",
        f"next: file {library}",
    ]
