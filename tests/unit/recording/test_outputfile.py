# SPDX-License-Identifier: Apache-2.0
"""What nfprobe writes goes nowhere that another user has chosen, and is nobody else's to read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.cli.main import main
from otel_nfprobe.recording.outputfile import open_output
from otel_nfprobe.recording.recordingfile import RecordingFile

EVE = 12345
CONTENT = "must stay\n"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")
RECORDINGS = Path(__file__).parent / "recordings"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory as /tmp is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_text(CONTENT)
    return file


def write(path: Path | str) -> None:
    with open(open_output(str(path)), "w") as file:
        file.write("written")


def link(path: Path, target: Path, user: int) -> Path:
    path.symlink_to(target)
    os.chown(path, user, user, follow_symlinks=False)
    return path


def write_recording(path: Path) -> None:
    RecordingFile(str(path), b"start").close()


def write_report(path: Path) -> None:
    recording = next(RECORDINGS.glob("*.nfp"))
    assert main(["report", str(recording), "-o", str(path)]) == 0


@ROOT_ONLY
@pytest.mark.parametrize("writer", [write_recording, write])
def test_a_link_that_somebody_else_has_made_is_refused(
    writer: Callable[[Path], None], shared: Path, precious: Path
) -> None:
    for path in (link(shared / "a", precious, EVE), link(shared / "b", precious, os.geteuid())):
        with pytest.raises((OSError, UsageError), match="symbolic link that another user may have made"):
            writer(path)
    inner = link(shared / "folder", precious.parent, EVE)
    with pytest.raises((OSError, UsageError), match="symbolic link that another user may have made"):
        writer(inner / "precious")
    assert precious.read_text() == CONTENT


@ROOT_ONLY
def test_a_file_that_somebody_else_has_made_is_refused(shared: Path, precious: Path) -> None:
    (shared / "a").write_text(CONTENT)
    os.chown(shared / "a", EVE, EVE)
    with pytest.raises(UsageError, match="belongs to another user"):
        write_recording(shared / "a")
    os.link(precious, shared / "b")
    with pytest.raises(UsageError, match="another name"):
        write_recording(shared / "b")
    os.mkfifo(shared / "c")
    os.chown(shared / "c", EVE, EVE)
    with pytest.raises(UsageError, match="belongs to another user"):
        write_recording(shared / "c")
    assert precious.read_text() == CONTENT
    assert (shared / "a").read_text() == CONTENT


def test_the_command_says_so_and_ends(shared: Path, precious: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = next(RECORDINGS.glob("*.nfp"))
    path = link(shared / "report.txt", precious, os.geteuid())
    assert main(["report", str(recording), "-o", str(path)]) == 1
    assert f"Cannot write {path}: 'report.txt' is a symbolic link" in capsys.readouterr().err
    assert precious.read_text() == CONTENT


def test_links_of_ones_own_are_followed(tmp_path: Path, precious: Path) -> None:
    first = tmp_path / "first"
    first.symlink_to("second/../third")
    (tmp_path / "second").mkdir()
    (tmp_path / "third").symlink_to(precious)
    write(first)
    assert precious.read_text() == "written"
    (tmp_path / "away").symlink_to(tmp_path / "second")
    write(tmp_path / "away" / "new")
    assert (tmp_path / "second" / "new").read_text() == "written"
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"):
        write(tmp_path / "loop")


def test_relative_and_odd_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("a", "./b", f"../{tmp_path.name}/c", f"{tmp_path}//.//d"):
        write(path)
    assert sorted(os.listdir()) == ["a", "b", "c", "d"]
    for path in (".", "/", "..", ""):
        with pytest.raises(OSError):
            write(path)
    with pytest.raises(FileNotFoundError):
        write("missing/file")
    with pytest.raises(NotADirectoryError):
        write("a/b")


def test_files_are_private_and_begin_anew(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("longer than what comes")
    file.chmod(0o644)
    for path in (file, tmp_path / "fresh"):
        write(path)
        assert path.read_text() == "written"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"])
def test_standard_output_is_written_by_name(path: str, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-c",
        f"from otel_nfprobe.recording.outputfile import *; import os; os.write(open_output({path!r}), b'x')",
    ]
    assert subprocess.run(words, capture_output=True, check=True).stdout == b"x"  # a pipe
    with open(tmp_path / "file", "wb") as file:
        os.fchmod(file.fileno(), 0o644)
        subprocess.run(words, stdout=file, check=True)
    assert (tmp_path / "file").read_bytes() == b"x"


def test_devices_and_pipes_of_ones_own(tmp_path: Path) -> None:
    write("/dev/null")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NfprobeError, match="No such device"):  # nobody reads: a recording does not wait for that
        write_recording(tmp_path / "pipe")
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    write(tmp_path / "pipe")
    reader.join()
    assert read == ["written"]


@ROOT_ONLY
def test_tables_and_spool(tmp_path: Path, shared: Path, precious: Path) -> None:
    from otel_nfprobe.export.spool import Spool, SpoolSettings

    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, EVE, EVE)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    for folder in (theirs, open_to_all):
        with pytest.raises(UsageError, match="others can write there"):
            Spool(SpoolSettings(folder), "x")
    ours = Spool(SpoolSettings(shared), "x")  # as /tmp: sticky
    forged = shared / "00000000000000000001-forged"
    link(forged, ours.own.directory if ours.own is not None else shared, EVE)
    assert list(ours.recover()) == []
    ours.close(is_empty=True)
