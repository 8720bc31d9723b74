# SPDX-License-Identifier: Apache-2.0
"""ELF files are read by a process without rights: what becomes of it is the file's fault, and only that file's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf import elf, elfparser, elfplain
from otel_nfprobe.elf.elf import UnreadableError
from otel_nfprobe.elf.elfparser import HEAD, ElfParser, ParserError
from otel_nfprobe.elf.filecontent import Content
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import find_functions, functions_of
from otel_nfprobe.probes.analysis import plan_functions
from tests.support.accidents import LIBZ, MARK, faulty, have_accident
from tests.support.marks import thorough

QUICK_CPU_SECONDS = 1.0  # a stopped process is waited for three times as long


@pytest.fixture(autouse=True)
def _one_parser(monkeypatch: pytest.MonkeyPatch, faulty_parser: ElfParser) -> Iterator[None]:
    """Another parser for the whole process where the test wants one, for all files; nothing is remembered."""
    monkeypatch.setattr(elfplain, "read_plain", lambda *_: None)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    before = elfparser.parser
    elf._images.clear()
    yield
    if elfparser.parser not in (before, faulty_parser):
        elfparser.parser.end()
    elfparser.parser = before
    elf._images.clear()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return Path(shutil.copy(LIBZ, tmp_path / "libgood.so"))


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "libbad.so"
    path.write_bytes(LIBZ.read_bytes() + MARK.encode())
    return path


def test_the_monitor_does_not_load_lief(good: Path) -> None:
    code = "import sys; from otel_nfprobe.elf.modules import Module; m = Module.from_file(sys.argv[1]); "
    code += "print(len(m.image.symbols), len(m.image.slots), 'lief' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(good)], capture_output=True, text=True, check=True)
    symbols, slots, has_lief = done.stdout.split()
    assert int(symbols) > 50
    assert int(slots) > 5
    assert has_lief == "False"


@pytest.mark.thorough
def test_one_process_reads_all_files(good: Path, bad: Path) -> None:
    elfparser.parser = ElfParser()
    found = []
    for path in (good, bad, Path(sys.executable).resolve()):
        image = Module.from_file(path).image
        found.append((len(image.symbols), len(image.slots), elfparser.parser.pid))
    assert len({pid for _, _, pid in found}) == 1
    assert found[0] == found[1]
    assert all(symbols and slots for symbols, slots, _ in found)


def test_it_has_no_rights(good: Path) -> None:
    Module.from_file(good)
    pid = elfparser.parser.pid
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert (status["NoNewPrivs"], status["Seccomp"], int(status["CapEff"], 16)) == ("1", "2", 0)
    if os.geteuid() == 0:
        assert "0" not in status["Uid"].split() + status["Gid"].split()
        assert not status["Groups"].split()
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        0                    0" in limits
    assert "Max file size             0                    0" in limits
    assert Path(f"/proc/{pid}/environ").read_bytes() == b""


@pytest.mark.thorough
def test_it_can_do_nothing_else(good: Path, bad: Path) -> None:
    parser = ElfParser(faulty("escape"))
    parts = parser.ask(HEAD, Content(bad.read_bytes()))
    assert parts is not None
    assert bytes(parts[2]) == b""
    assert parser.ask(HEAD, Content(good.read_bytes())) is not None
    parser.end()


ACCIDENTS = {
    "die": "ended with status 139",
    "crash": "was killed by SIGSEGV",
    "loop": "takes more than [12] s of processor time|takes longer than",
    "hang": "takes longer than [34] s",
    "eat": "takes more than 25[67] MiB of memory",
    "lie": "inconsistent",
    "too_few": "inconsistent",
    "too_much": "its tables take more than 256 MiB",
    "raises": "its tables cannot be read",
}
ALWAYS = ["die", "lie"]  # one that ends the process and one that does not


@pytest.mark.parametrize("accident", [*ALWAYS, *thorough(*(name for name in ACCIDENTS if name not in ALWAYS))])
def test_a_file_that_it_does_not_survive_is_told_and_not_tried_again(
    good: Path, bad: Path, accident: str, faulty_parser: ElfParser
) -> None:
    is_long = accident in ("loop", "hang")
    elfparser.parser = ElfParser(faulty(accident, "h"), QUICK_CPU_SECONDS) if is_long else faulty_parser
    have_accident(bad, accident, "h")
    with pytest.raises(UnreadableError, match=ACCIDENTS[accident]) as caught:
        Module.from_file(bad)
    assert caught.value.sentence.startswith(f"{bad} cannot be read: ")
    assert caught.value.next_command == f"file {bad}"
    before = elfparser.parser.pid
    assert len(functions_of(Module.from_file(good))) > 50
    after = elfparser.parser.pid
    assert (before == after) == (before is not None)  # only one that takes too long costs the server
    with pytest.raises(UnreadableError, match=ACCIDENTS[accident]):
        Module.from_file(bad)
    assert elfparser.parser.pid == after


@pytest.mark.parametrize("question", ["s", *thorough("r")])
@pytest.mark.parametrize("accident", ["crash", *thorough("lie")])
def test_functions_of_a_file_with_an_unreadable_table_are_refused(
    bad: Path, accident: str, question: str, faulty_parser: ElfParser
) -> None:
    elfparser.parser = faulty_parser
    have_accident(bad, accident, question)
    functions = functions_of(Module.from_file(bad))
    plans = plan_functions(functions)
    assert len(plans) > 50
    assert {plan.strategy for plan in plans} == {None}
    assert all(plan.reason.startswith("libbad.so cannot be read: ") for plan in plans)


def test_a_function_that_is_not_found_for_that_is_told_so(good: Path, bad: Path, faulty_parser: ElfParser) -> None:
    elfparser.parser = faulty_parser
    have_accident(bad, "crash", "s")
    modules = [Module.from_file(path) for path in (good, bad)]
    with pytest.raises(UnreadableError, match=r"libbad.so cannot be read: .* SIGSEGV"):
        find_functions(modules, ["libbad.so:inflate"])
    assert [item.module.name for item in find_functions(modules, ["inflate"])] == ["libgood.so"]


@pytest.mark.thorough
def test_one_that_was_killed_between_two_files_costs_nothing(good: Path, bad: Path) -> None:
    elfparser.parser = ElfParser()
    Module.from_file(good)
    first = elfparser.parser.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{first}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(Module.from_file(bad).image.symbols) > 50
    assert elfparser.parser.pid != first


@pytest.mark.thorough
def test_one_that_is_stopped_while_it_reads_is_given_up(good: Path, bad: Path) -> None:
    elfparser.parser = ElfParser(faulty("loop", "h"), QUICK_CPU_SECONDS)
    Module.from_file(good)
    first = elfparser.parser.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(UnreadableError, match=r"takes longer than [34] s"):
        Module.from_file(bad)
    assert not os.path.exists(f"/proc/{first}")


@pytest.mark.thorough
def test_it_ends_with_its_monitor_even_when_it_hangs(bad: Path) -> None:
    code = "import sys, threading, time\nfrom otel_nfprobe.elf.elfparser import *\n"
    code += "from otel_nfprobe.elf.filecontent import *\n"
    code += "parser = ElfParser(sys.argv[2:])\n"
    code += "threading.Thread(target=parser.ask, args=(HEAD, Content(open(sys.argv[1], 'rb').read()))).start()\n"
    code += "while parser.pid is None: time.sleep(0.01)\n"
    code += "print(parser.pid, flush=True); time.sleep(1000)"
    words = [sys.executable, "-c", code, str(bad), *faulty("loop")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        try:
            pid = int(monitor.stdout.readline())
            children = Path(f"/proc/{pid}/task/{pid}/children")
            _await(lambda: children.read_text() != "")
            child = int(children.read_text())
            _await(lambda: int(Path(f"/proc/{child}/stat").read_text().split()[13]) > 20)  # 0.2 s: it loops
        finally:
            monitor.kill()
    _await(lambda: _is_gone(pid) and _is_gone(child))


@pytest.mark.thorough
def test_a_child_ends_with_its_server(bad: Path) -> None:
    parser = ElfParser(faulty("loop"))
    parser.start()
    server = parser.pid
    assert server is not None
    failures: list[object] = []
    asking = threading.Thread(target=lambda: failures.append(_failure(parser, Content(bad.read_bytes()))))
    asking.start()
    children = Path(f"/proc/{server}/task/{server}/children")
    _await(lambda: children.read_text() != "")
    child = int(children.read_text())
    _await(lambda: int(Path(f"/proc/{child}/stat").read_text().split()[13]) > 20)
    os.kill(server, signal.SIGKILL)
    _await(lambda: _is_gone(child))
    asking.join()
    assert failures == ["the process that reads ELF files stopped responding"]


@pytest.mark.parametrize("accident", [*thorough("stay"), "take_over"])
def test_a_file_that_has_taken_over_its_child_answers_for_no_other(
    good: Path, bad: Path, accident: str, faulty_parser: ElfParser
) -> None:
    expected = elfparser.parser.ask(HEAD, Content(good.read_bytes()))
    parser = faulty_parser
    have_accident(bad, accident)
    with pytest.raises(ParserError) if accident == "take_over" else nullcontext():
        parser.ask(HEAD, Content(bad.read_bytes()))
    server = parser.pid
    assert server is not None
    assert parser.ask(HEAD, Content(good.read_bytes())) == expected
    assert parser.pid == server


@pytest.mark.thorough
def test_several_threads_may_ask(good: Path) -> None:
    parser = ElfParser()
    content = Content(good.read_bytes())
    answers: list[object] = []
    threads = [threading.Thread(target=lambda: answers.append(parser.ask(HEAD, content))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    parser.end()
    assert len(answers) == 8
    assert all(answer == answers[0] for answer in answers)


@pytest.mark.thorough
def test_one_that_cannot_be_started_is_no_fault_of_the_file(good: Path) -> None:
    for command in (["/does/not/exist"], ["/bin/false"]):
        elfparser.parser = ElfParser(command)
        with pytest.raises(NfprobeError, match="The process that reads ELF files cannot be started") as caught:
            Module.from_file(good)
        assert not isinstance(caught.value, UnreadableError)
    elfparser.parser = ElfParser()
    assert Module.from_file(good).image.segments


@pytest.mark.thorough
def test_a_process_that_has_ended_idle_is_replaced(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ElfParser()
    content = Content(good.read_bytes())
    first = parser.ask(HEAD, content)
    ended = parser._process
    assert ended is not None
    ended.wait(60)  # by itself, after some seconds
    assert ended.returncode == 0
    monkeypatch.setattr(ended, "poll", lambda: None)  # it ends when it was just looked at
    assert parser.ask(HEAD, content) == first
    assert parser.pid != ended.pid
    parser.end()


@pytest.mark.thorough
def test_the_error_names_what_happened() -> None:
    parser = ElfParser(faulty("crash"))
    with pytest.raises(ParserError, match="killed by SIGSEGV while reading it"):
        parser.ask(HEAD, Content(MARK.encode()))


def _failure(parser: ElfParser, content: Content) -> str:
    with pytest.raises(ParserError) as caught:
        parser.ask(HEAD, content)
    return str(caught.value)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _await(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
