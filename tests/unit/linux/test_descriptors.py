# SPDX-License-Identifier: Apache-2.0
"""Descriptors of another process: only memory files with the right seals are taken, and only as they are open there."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux import descriptors
from otel_nfprobe.linux.descriptors import (
    ADD_SEALS,
    GET_SEALS,
    KEPT_SIZE,
    SEAL_GROW,
    SEAL_WRITE,
    SESSION_NAME,
    can_take,
    fill_library,
    look_at_session_file,
    open_session_file,
    take_channel,
)
from otel_nfprobe.shm.session import FLOCK

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def pid() -> Iterator[Callable[[], int]]:
    """Another process with the descriptors that this one has at that moment: pid()."""
    children = []

    def fork() -> int:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the test closes its end
            os._exit(0)
        os.close(reader)
        children.append((child, writer))
        return child

    yield fork
    for child, writer in children:
        os.close(writer)
        os.waitpid(child, 0)


def memory(name: str, size_bytes: int = 0, seals: int = 0) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size_bytes)
    if seals:
        fcntl.fcntl(fd, ADD_SEALS, seals)
    return fd


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_library(pid: Callable[[], int]) -> None:
    fd = memory("library")
    other = pid()
    before = open_descriptors()
    fill_library(other, fd, "library", CONTENT)
    assert open_descriptors() == before
    assert os.pread(fd, len(CONTENT) + 1, 0) == CONTENT
    assert fcntl.fcntl(fd, GET_SEALS) == KEPT_SIZE | SEAL_WRITE
    with pytest.raises(NfprobeError, match="it has other seals"):
        fill_library(other, fd, "library", CONTENT)
    os.close(fd)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: memory("other"), "it has another name"),
        (lambda: memory("library", 1), "it is not empty"),
        (lambda: memory("library", seals=SEAL_GROW), "it has other seals"),
        (lambda: os.open("/etc/hostname", os.O_RDONLY), "it is of another type"),
        (lambda: os.open("/etc/hostname", os.O_PATH), "it is of another type"),
        (lambda: os.open("/dev/zero", os.O_RDWR), "it is of another type"),
        (lambda: os.open(f"/proc/self/fd/{memory('library')}", os.O_RDONLY), "it is not open for reading and writing"),
        (lambda: os.open(f"/proc/self/fd/{memory('library')}", os.O_PATH), "it is of another type"),
        (lambda: 900, "there is no such descriptor"),
        (lambda: -1, "there is no such descriptor"),
    ],
    ids=[
        "name",
        "full",
        "sealed",
        "read-only",
        "path",
        "device",
        "memory read-only",
        "memory path",
        "none",
        "negative",
    ],
)
def test_what_is_no_library(make: Callable[[], int], reason: str, pid: Callable[[], int]) -> None:
    fd = make()
    other = pid()
    before = open_descriptors()
    with pytest.raises(NfprobeError, match=reason) as caught:
        fill_library(other, fd, "library", CONTENT)
    assert caught.value.sentence.startswith(f"Descriptor {fd} of process {other} is not the memory file")
    assert open_descriptors() == before
    if 0 <= fd < 900:
        os.close(fd)


def test_session_has_a_lock_of_its_own(pid: Callable[[], int]) -> None:
    """The target asks whether somebody else holds the lock: an open file that it shares would never say so."""
    fd = memory(SESSION_NAME, 4096, KEPT_SIZE)
    own = open_session_file(pid(), fd)
    fcntl.fcntl(own, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    with pytest.raises(BlockingIOError):
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    os.close(own)
    os.close(fd)


@pytest.mark.parametrize("seals", [0, KEPT_SIZE & ~SEAL_GROW, KEPT_SIZE | SEAL_WRITE])
def test_session_without_its_seals(seals: int, pid: Callable[[], int]) -> None:
    """A file that can become shorter would end whoever has it mapped."""
    fd = memory(SESSION_NAME, 4096, seals)
    other = pid()
    with pytest.raises(NfprobeError, match="it has other seals"):
        open_session_file(other, fd)
    assert look_at_session_file(other, fd) is None
    os.close(fd)


def test_look_is_for_reading_only(pid: Callable[[], int]) -> None:
    fd = memory(SESSION_NAME, 4096, KEPT_SIZE)
    other = pid()
    looked = look_at_session_file(other, fd)
    assert looked is not None
    assert os.fstat(looked).st_ino == os.fstat(fd).st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(looked, b"x")
    assert look_at_session_file(other, 900) is None
    os.close(looked)
    os.close(fd)


def test_channel(pid: Callable[[], int]) -> None:
    """Made by the process itself: here by this one."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    taken = socket.socket(fileno=take_channel(os.getpid(), ends[0].fileno()))
    taken.send(b"x")
    assert ends[1].recv(1) == b"x"
    with pytest.raises(NfprobeError, match="it is of another type"):
        take_channel(pid(), ends[0].fileno())  # whose other end is not that process's
    stream = socket.socketpair()
    with pytest.raises(NfprobeError, match="it is of another type"):
        take_channel(os.getpid(), stream[0].fileno())
    for each in (*ends, *stream, taken):
        each.close()


def test_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_take()
    old = SimpleNamespace(nfp_descriptor_take=lambda *_: -errno.ENOSYS, NFP_DESCRIPTOR_MEMORY=0)
    monkeypatch.setattr(descriptors, "lib", old)
    assert not can_take()
    with pytest.raises(NfprobeError, match=r"Linux 5\.6"):
        open_session_file(1, 3)
