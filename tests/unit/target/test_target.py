# SPDX-License-Identifier: Apache-2.0
"""A process as /proc shows it: modules, memory, threads, and files that are gone or elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.elf.symbols import exported_address, functions_of
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.target.target import Target, parse_cpu_list

SLEEP = shutil.which("sleep") or "/bin/sleep"
Spawn = Callable[..., "subprocess.Popen[str]"]


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _sleeping(process: subprocess.Popen[str], path: str) -> Target:
    """The process once it runs `path` and sleeps in it."""
    _wait_for(lambda: os.path.exists(f"/proc/{process.pid}/exe") and path in os.readlink(f"/proc/{process.pid}/exe"))
    target = Target(process.pid)
    _wait_for(lambda: [thread.system_call for thread in target.threads()] == [230])  # clock_nanosleep
    return target


def test_memory_at_a_modules_addresses_is_what_its_file_says(spawn: Spawn) -> None:
    target = _sleeping(spawn(SLEEP, "60"), "sleep")
    modules = target.modules()
    assert modules[0].path == target.executable
    assert {"libc", "sleep"} <= {name for module in modules for name in module.names}
    for module in modules:
        for function in functions_of(module)[::50]:
            size = min(function.size, 64)
            assert target.read(function.address, size) == module.image.read(function.offset, size)
        assert all(module.low <= start < end <= module.high + 4096 for start, end in module.executable_ranges)


def test_segments_that_share_a_page_of_the_file(spawn: Spawn, tmp_path: Path) -> None:
    """As LLVM's linker lays files out, that of Rust programs."""
    script = subprocess.run(["ld", "-pie", "--verbose"], capture_output=True, text=True, check=True).stdout
    script = script.split("=" * 50)[1]
    aligned = ". = ALIGN(CONSTANT (MAXPAGESIZE));"
    close = ". = ALIGN(CONSTANT (MAXPAGESIZE)) + (. & (CONSTANT (MAXPAGESIZE) - 1));"
    assert script.count(aligned) == 2  # before the code and behind it
    (tmp_path / "script").write_text(script.replace(aligned, close))
    (tmp_path / "close.c").write_text("#include <unistd.h>\nint main(void) { return sleep(60) != 0; }\n")
    words = [
        "gcc",
        "-pie",
        "-fPIE",
        "-Wl,-T," + str(tmp_path / "script"),
        tmp_path / "close.c",
        "-o",
        tmp_path / "close",
    ]
    subprocess.run(words, check=True)
    target = _sleeping(spawn(tmp_path / "close"), "close")
    program = target.modules()[0]
    offsets = [segment.offset for segment in program.image.segments]
    assert offsets[1] % 4096
    assert offsets[1] - offsets[0] < 4096
    assert program.name == "close"
    for function in functions_of(program):
        size = min(function.size, 64)
        assert target.read(function.address, size) == program.image.read(function.offset, size)


def test_an_exported_function_is_where_the_process_has_it(spawn: Spawn) -> None:
    code = (
        "import ctypes, time\n"
        "print(ctypes.cast(ctypes.CDLL(None).pthread_create, ctypes.c_void_p).value, flush=True)\n"
        "time.sleep(60)"
    )
    process = spawn(sys.executable, "-c", code)
    assert process.stdout is not None
    expected = int(process.stdout.readline())
    assert exported_address(Target(process.pid), "pthread_create") == expected
    assert exported_address(Target(process.pid), "no_such_function") is None


def test_threads(spawn: Spawn) -> None:
    code = (
        "import os, threading, time\nos.sched_setaffinity(0, {0})\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nprint('ready', flush=True)\n"
        "while True: pass"
    )
    process = spawn(sys.executable, "-c", code)
    assert process.stdout is not None
    process.stdout.readline()
    target = Target(process.pid)
    _wait_for(lambda: sorted(thread.state for thread in target.threads()) == ["R", "S"])
    threads = {thread.state: thread for thread in target.threads()}
    assert threads["R"].tid == process.pid
    assert threads["R"].system_call is None
    assert threads["S"].system_call is not None
    assert threads["S"].cpus == frozenset({0})
    assert threads["S"].policy == "other"


def test_code_that_is_mapped_once_more_is_no_module(spawn: Spawn) -> None:
    """V8 maps its builtins again, near the code that it generates."""
    library = next(Path("/lib").glob("*/libz.so.1")).resolve()
    program = f"""
import ctypes, mmap, zlib
ctypes.CDLL({str(library)!r})
line = next(line for line in open("/proc/self/maps") if {library.name!r} in line and "r-xp" in line)
addresses, _, offset = line.split()[:3]
low, high = (int(address, 16) for address in addresses.split("-"))
with open({str(library)!r}, "rb") as file:
    rights = mmap.PROT_READ | mmap.PROT_EXEC
    again = mmap.mmap(file.fileno(), high - low, mmap.MAP_PRIVATE, rights, offset=int(offset, 16))
print(low, flush=True)
input()
"""
    process = spawn(sys.executable, "-c", program, stdin=subprocess.PIPE)
    assert process.stdout is not None
    low = int(process.stdout.readline())
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    assert sum(library.name in line and "r-xp" in line for line in maps) == 2
    (module,) = [module for module in Target(process.pid).modules() if module.name == library.name]
    assert [start for start, _ in module.executable_ranges] == [low]


def test_a_deleted_file_is_still_read(spawn: Spawn, tmp_path: Path) -> None:
    program = tmp_path / "sleeper"
    shutil.copy(SLEEP, program)
    target = _sleeping(spawn(program, "60"), str(program))
    program.unlink()
    shutil.copy("/bin/true", program)  # another file of the same name
    module = target.modules()[0]
    assert module.name == "sleeper"
    function = functions_of(module)[5]
    assert target.read(function.address, 8) == module.image.read(function.offset, 8)


@pytest.mark.integration
def test_a_file_of_another_mount_namespace(spawn: Spawn) -> None:
    script = f"mount -t tmpfs none /mnt && cp {SLEEP} /mnt/inside && exec /mnt/inside 60"
    target = _sleeping(spawn("unshare", "--mount", "sh", "-c", script), "/mnt/inside")
    assert not os.path.exists("/mnt/inside")
    module = target.modules()[0]
    assert module.path == "/mnt/inside"
    assert len(functions_of(module)) > 20


def test_a_replaced_program_is_read_without_map_files(
    spawn: Spawn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sleeper"
    shutil.copy(SLEEP, program)
    target = _sleeping(spawn(program, "60"), str(program))
    real_open = open

    def without_map_files(path: object, *arguments: object, **options: object) -> object:
        if "map_files" in str(path):
            raise PermissionError(1, "Operation not permitted")
        return real_open(path, *arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", without_map_files)
    build_id = Target(target.pid).modules()[0].build_id
    program.unlink()
    shutil.copy("/bin/true", program)
    module = Target(target.pid).modules()[0]
    assert (module.name, module.build_id) == ("sleeper", build_id)


def test_describe(spawn: Spawn) -> None:
    before_ns = time.time_ns()
    target = _sleeping(spawn(SLEEP, "61"), "sleep")
    facts = target.describe()
    assert facts["executable_path"] == os.path.realpath(SLEEP)
    assert facts["command_line"] == [SLEEP, "61"]
    assert facts["build_id"] == target.modules()[0].build_id != ""
    # The kernel's boot time is rounded to a second.
    assert abs(facts["started_unix_ns"] - before_ns) < 2_000_000_000


def test_an_ended_process(spawn: Spawn) -> None:
    process = spawn(SLEEP, "60")
    target = _sleeping(process, "sleep")
    assert target.is_alive()
    process.kill()
    _wait_for(lambda: not target.is_alive())
    process.wait()
    assert target.threads() == []
    with pytest.raises(UsageError, match="No process has pid"):
        check_target(target)


def test_memory_that_is_not_there(spawn: Spawn) -> None:
    target = _sleeping(spawn(SLEEP, "60"), "sleep")
    for address in (0, 1 << 46, 1 << 70, -1):
        with pytest.raises(NfprobeError, match="Memory of process"):
            target.read(address, 8)


@pytest.mark.parametrize("pid", [0, -1, 1 << 22])
def test_no_such_process(pid: int) -> None:
    with pytest.raises(UsageError, match=f"No process has pid {pid}"):
        Target(pid)


def test_a_thread_is_no_process() -> None:
    import threading

    ready, go = threading.Event(), threading.Event()
    tids: list[int] = []

    def body() -> None:
        tids.append(threading.get_native_id())
        ready.set()
        go.wait()

    thread = threading.Thread(target=body)
    thread.start()
    ready.wait()
    try:
        with pytest.raises(UsageError, match=f"thread of process {os.getpid()}"):
            Target(tids[0])
    finally:
        go.set()
        thread.join()


def test_cpu_lists() -> None:
    assert parse_cpu_list("0-2,5\n") == {0, 1, 2, 5}
    assert parse_cpu_list("") == frozenset()
