# SPDX-License-Identifier: Apache-2.0
"""Clients that are slow, many or silent: others are answered, and no descriptors are used up."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from otel_nfprobe.metrics import httplistener
from otel_nfprobe.metrics.httplistener import CONNECTIONS_MAX, HttpListener, Reply
from otel_nfprobe.shm import control
from otel_nfprobe.shm.control import Control, ask, socket_name

PATIENCE_S = 60.0
BODY = b"ok\n"
LARGE_BYTES = 16 << 20  # more than the buffers of both ends of a connection


@pytest.fixture
def listener() -> Iterator[HttpListener]:
    made = HttpListener("--metrics-listen", "127.0.0.1", 0, lambda path, _: Reply(200, "text/plain", _page(path)))
    yield made
    made.close()


def _page(path: str) -> bytes:
    return bytes(LARGE_BYTES) if path == "/large" else BODY


def scrape(listener: HttpListener) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{listener.port}/", timeout=PATIENCE_S) as response:
        return bytes(response.read())


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def connect(listener: HttpListener, words: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", listener.port))
    client.sendall(words)
    return client


@pytest.mark.thorough
@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.0\r\nX: y", b"GET /large HTTP/1.0\r\n\r\n"])
def test_clients_that_wait_keep_nobody_out(
    listener: HttpListener, words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httplistener, "CLIENT_S", 10 * PATIENCE_S)  # none of them runs out of time for it
    before = count_descriptors()
    with ExitStack() as clients:
        for _ in range(10 * CONNECTIONS_MAX):
            clients.enter_context(connect(listener, words))
        assert [scrape(listener) for _ in range(3)] == [BODY] * 3
        # Of their 160 ends in this process each has one more here, unless it was closed.
        assert wait_until(lambda: count_descriptors() <= before + 11 * CONNECTIONS_MAX)


def test_a_client_that_sends_a_byte_now_and_then_is_closed(
    listener: HttpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httplistener, "CLIENT_S", 1.0)
    with connect(listener, b"GET / HTTP/1.0\r\n") as client:
        client.settimeout(0.1)
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE_S:
            try:
                client.sendall(b"x")
                if not client.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - began < PATIENCE_S


def test_a_client_that_does_not_read_is_closed(listener: HttpListener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httplistener, "CLIENT_S", 1.0)
    before = threading.active_count()
    with connect(listener, b"GET /large HTTP/1.0\r\n\r\n"):
        assert wait_until(lambda: threading.active_count() > before)
        assert wait_until(lambda: threading.active_count() == before)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """None can be opened in this process; those that are there stay."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_listener_without_descriptors_does_not_spin_and_goes_on(listener: HttpListener) -> None:
    client = socket.socket()
    with client:
        with no_descriptors():
            began_s = time.process_time()
            client.connect(("127.0.0.1", listener.port))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            time.sleep(1.0)
            assert time.process_time() - began_s < 0.5
        client.settimeout(PATIENCE_S)
        assert client.recv(1 << 16).startswith(b"HTTP/1.0 200")


INODE = 0xABCDEF0000 + os.getpid()  # tests run in several processes at once


@pytest.fixture
def talking() -> Iterator[Control]:
    made = Control(INODE, lambda request: request, lambda asked: {"done": asked})
    stopping = threading.Event()

    def drain() -> None:
        while not stopping.wait(0.01):
            made.step()

    thread = threading.Thread(target=drain)
    thread.start()
    yield made
    stopping.set()
    thread.join()
    made.close()


def knock() -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(socket_name(INODE))
    return client


def test_the_name_of_a_closed_control_is_free_at_once() -> None:
    for _ in range(300):
        Control(INODE, lambda request: request, lambda asked: {"done": asked}).close()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listening:
            listening.bind(socket_name(INODE))


def test_control_outlives_having_no_descriptor(talking: Control) -> None:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with client, no_descriptors():
        client.connect(socket_name(INODE))
        time.sleep(0.3)
    assert ask(INODE, {"set": 1}) == {"done": {"set": 1}}


@pytest.mark.parametrize("words", [b"[" * 50_000 + b"\n", b"\xff\xff\n", b"7\n", b"x" * 70_000])
def test_control_outlives_any_request(talking: Control, words: bytes) -> None:
    with knock() as client:
        client.sendall(words)
        client.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):  # it did not read all of it
            assert client.recv(1 << 16) == b""
    assert ask(INODE, {"set": 2}) == {"done": {"set": 2}}


def test_control_is_not_held_by_a_byte_now_and_then(talking: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CLIENT_PATIENCE_S", 1.0)
    stopping = threading.Event()

    def drip(client: socket.socket) -> None:
        while not stopping.wait(0.1):
            try:
                client.sendall(b"x")
            except OSError:
                return

    with knock() as slow:
        dripping = threading.Thread(target=drip, args=(slow,))
        dripping.start()
        try:
            assert ask(INODE, {"set": 3}) == {"done": {"set": 3}}
        finally:
            stopping.set()
            dripping.join()
