# SPDX-License-Identifier: Apache-2.0
"""Places where a target may live: namespaces, root directories of its own, musl. Each is skipped with a reason
where this machine cannot make it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.probed import Probed, Talker, wait_until

STANDING_AND_NEW = 5  # threads of tests/targets/where.c that call in one round
LINKER = Path("/lib64/ld-linux-x86-64.so.2")
LIBRARIES = Path("/lib/x86_64-linux-gnu")
MUSL_LINKER = Path("/lib/ld-musl-x86_64.so.1")
WHERE = Path(__file__).resolve().parent.parent / "targets" / "where.c"


class Inhabitant:
    """What Talker needs of a process: the program `where` itself, below the commands that made its room."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.stdin: IO[str] | None = process.stdin
        self.stdout: IO[str] | None = process.stdout

    @functools.cached_property
    def pid(self) -> int:
        """Asked for when the program has said that it is ready: then there is nothing left to start."""
        pid = self._process.pid
        while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            pid = int(children[0])
        return pid


class Room:
    """A running `where` target.

    Args:
        spawn: the fixture.
        words: the command; a shell script may make the room and ends with exec.
    """

    def __init__(self, spawn: Callable[..., subprocess.Popen[str]], words: Sequence[object], **options: Any) -> None:
        process = spawn(*words, stdin=subprocess.PIPE, **options)
        inhabitant = Inhabitant(process)
        self.talker: Talker = Talker.__new__(Talker)
        self.talker.process = inhabitant  # type: ignore[assignment]
        self.talker._heard = b""
        assert self.talker.hear() == "ready", f"{words} did not start"
        self.pid = self.talker.pid = inhabitant.pid
        assert wait_until(self.talker.is_listening)

    def call(self, count: int) -> None:
        """Makes STANDING_AND_NEW * count calls."""
        assert self.talker.ask(f"calls {count}") == "right"

    def measure(self, count: int = 700) -> Probed:
        """A whole session, whose counts must be exact; the target works before and after it."""
        self.call(3)
        probed = Probed(self.pid, ["*:step"])
        with probed:
            self.call(count)
        probed.assert_exact()
        assert probed.calls == {"step": STANDING_AND_NEW * count}
        self.call(3)
        return probed

    def maps(self) -> str:
        """What is mapped, as text."""
        return Path(f"/proc/{self.pid}/maps").read_text()


def need_unshare(*words: str) -> list[str]:
    """The words of a command that runs others in namespaces of their own."""
    command = ["unshare", *words]
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed: it is in util-linux")
    done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine cannot make these namespaces: {done.stderr.strip()}")
    return command


def compile_musl(output: Path, *flags: str) -> Path:
    """tests/targets/where.c for musl."""
    if shutil.which("musl-gcc") is None or not MUSL_LINKER.exists():
        pytest.skip("musl-tools is not installed: scripts/set-up test")
    words = ["musl-gcc", "-O2", "-Wall", "-Wextra", "-Werror", str(WHERE), "-o", str(output), "-pthread", *flags]
    subprocess.run(words, check=True)
    return output


def root_of(folder: Path, program: Path) -> Path:
    """A root directory with a glibc program `where` and what it loads: no /proc, no /dev, no /tmp."""
    root = folder / "root"
    (root / "lib64").mkdir(parents=True)
    (root / LIBRARIES.relative_to("/")).mkdir(parents=True)
    shutil.copy(LINKER, root / "lib64")
    for name in ("libc.so.6", "libgcc_s.so.1"):
        shutil.copy(LIBRARIES / name, root / LIBRARIES.relative_to("/"))
    shutil.copy(program, root / "where")
    return root


def musl_root_of(folder: Path, program: Path) -> Path:
    """A root directory laid out as Alpine's."""
    root = folder / "musl-root"
    (root / "lib").mkdir(parents=True)
    (root / "tmp").mkdir()
    shutil.copy(os.path.realpath(MUSL_LINKER), root / "lib" / MUSL_LINKER.name)
    os.symlink(MUSL_LINKER.name, root / "lib" / "libc.musl-x86_64.so.1")
    shutil.copy(program, root / "where")
    return root
