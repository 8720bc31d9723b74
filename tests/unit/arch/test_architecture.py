# SPDX-License-Identifier: Apache-2.0
"""What processors provide, and what is said of those that do not."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from otel_nfprobe.arch.aarch64.architecture import ARCHITECTURE as AARCH64
from otel_nfprobe.arch.architecture import Architecture, of_host, of_image, of_machine
from otel_nfprobe.arch.x86_64.architecture import ARCHITECTURE as X86_64
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.base.processors import SUPPORTED
from otel_nfprobe.cli.main import main
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.probes import preflight
from otel_nfprobe.target.target import Target

MEMBERS = sorted(name for name in vars(Architecture) if not name.startswith("_"))
ARM64 = r"^arm64 is not supported yet: nfprobe works on x86-64 only\.$"


def test_x86_64_has_every_member() -> None:
    assert of_machine("x86_64") is of_host() is X86_64
    assert [name for name in MEMBERS if getattr(X86_64, name, None) is None] == []
    assert X86_64.processor in SUPPORTED


def test_a_file_says_whose_code_it_has() -> None:
    assert of_image(ElfImage("python", Path(sys.executable).resolve().read_bytes())) is X86_64


@pytest.mark.parametrize("name", MEMBERS)
def test_arm64_says_that_it_is_not_supported_yet(name: str) -> None:
    assert of_machine("aarch64") is AARCH64
    with pytest.raises(RefusedError, match=ARM64):
        getattr(AARCH64, name)


def test_no_other_machine_is_known() -> None:
    with pytest.raises(RefusedError, match=r"This machine is sparc64; nfprobe works on x86-64 only\."):
        of_machine("sparc64")


@pytest.mark.parametrize(("machine", "sentence"), [("aarch64", ARM64), ("i686", "This machine is i686")])
def test_a_process_is_refused_on_them(machine: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    with pytest.raises(RefusedError, match=sentence):
        preflight.check_target(Target(1))


def arm_program(path: Path) -> Path:
    """An ELF header of arm64, and nothing else."""
    header = struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, 0, 64, 0, 0, 64, 56, 0, 64, 0, 0)
    path.write_bytes(b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + header)
    path.chmod(0o755)
    return path


def test_a_program_of_arm64_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = arm_program(tmp_path / "nf")
    assert main(["functions", str(program)]) == RefusedError.exit_status
    said = capsys.readouterr()
    assert not said.out
    assert said.err.splitlines()[0].endswith("nf is for another processor (ELF machine 183), not for x86-64.")


def test_a_process_of_arm64_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it runs under an emulator of the kernel's, and /proc/PID/exe is its file."""
    program, read = arm_program(tmp_path / "nf"), preflight.read_image
    monkeypatch.setattr(preflight, "read_image", lambda _, path: read(program.open("rb"), path))
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with pytest.raises(RefusedError, match=r"is for another processor \(ELF machine 183\), not for x86-64\."):
                preflight.check_target(Target(process.pid))
        finally:
            process.kill()
