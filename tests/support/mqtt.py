# SPDX-License-Identifier: Apache-2.0
"""A running mosquitto, its own clients, and a client of a few lines that can also send what no client should."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.target.target import Target
from tests.support.probed import wait_until

CLIENTS = "-h", "127.0.0.1"
PATIENCE_S = 60


class Broker:
    """mosquitto on a free port, and how it was before anything was done to it."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        settings = folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "sys_interval 1", "log_type subscribe"]
        settings.write_text("\n".join([*lines, "log_dest stderr", "persistence false", "max_queued_messages 0\n"]))
        self._log = folder / "mosquitto.log"
        with open(self._log, "wb") as log:
            words = ["mosquitto", "-c", str(settings)]
            self.process = subprocess.Popen(
                words, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, **(environment or {})}
            )
        self.pid = self.process.pid
        assert wait_until(self._answers), self._log.read_text()
        self.target = Target(self.pid)
        self._modules = self.target.modules()
        self._text = text_digests(self.target, self._modules)
        self._threads = self._thread_ids()

    def _thread_ids(self) -> list[str]:
        return sorted(os.listdir(f"/proc/{self.pid}/task"))

    def _answers(self) -> bool:
        try:
            Client(self.port, "probe").close()
        except OSError:
            return False
        return True

    def subscribe(self, topic: str, count: int, qos: int = 0) -> subprocess.Popen[bytes]:
        """A mosquitto_sub that ends after `count` messages; the broker knows of it when this returns."""
        known = self._log.read_text().count(f" {topic}\n")
        words = ["mosquitto_sub", *CLIENTS, "-p", str(self.port), "-t", topic, "-q", str(qos), "-C", str(count)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert wait_until(lambda: self._log.read_text().count(f" {topic}\n") > known), self._log.read_text()
        return process

    def publish(self, topic: str, count: int, qos: int = 0) -> None:
        """The numbers from 1 to `count`, by mosquitto_pub."""
        lines = "".join(f"{number}\n" for number in range(1, count + 1))
        words = ["mosquitto_pub", *CLIENTS, "-p", str(self.port), "-t", topic, "-q", str(qos), "-l"]
        subprocess.run(words, input=lines.encode(), check=True, timeout=PATIENCE_S)

    def own_count(self, name: str) -> int:
        """A number under $SYS/broker, as it was at most a second ago."""
        words = ["mosquitto_sub", *CLIENTS, "-p", str(self.port), "-t", f"$SYS/broker/{name}", "-C", "1"]
        return int(subprocess.run(words, capture_output=True, check=True, timeout=PATIENCE_S).stdout)

    def is_idle(self) -> bool:
        """Whether it waits for input, and there is none: blocked in epoll_wait or epoll_pwait."""
        return Path(f"/proc/{self.pid}/syscall").read_text().split()[0] in ("232", "281")

    def assert_as_before(self) -> None:
        """Every byte of code and every thread as before, and it answers."""
        assert self.process.poll() is None, self._log.read_text()
        assert self._answers()
        assert text_digests(self.target, self._modules) == self._text
        assert wait_until(lambda: self._thread_ids() == self._threads, PATIENCE_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Client:
    """MQTT 3.1.1, one packet at a time."""

    def __init__(self, port: int, name: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        body = text(b"MQTT") + bytes([4, 2, 0, 0]) + text(name.encode())  # kept alive without pings
        self.socket.sendall(packet(0x10, body))
        answer = self.receive()
        if answer != (0x20, b"\0\0"):
            raise OSError(f"refused: {answer}")

    def subscribe(self, topic: bytes) -> None:
        self.socket.sendall(packet(0x82, b"\0\1" + text(topic) + b"\0"))
        assert self.receive() == (0x90, b"\0\1\0")

    def publish(self, topic: bytes, payload: bytes) -> None:
        self.socket.sendall(packet(0x30, text(topic) + payload))

    def receive(self) -> tuple[int, bytes]:
        """First byte and body of the next packet; raises OSError when the broker has closed."""
        kind, size, shift = self._read(1)[0], 0, 0
        while True:
            byte = self._read(1)[0]
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return kind, self._read(size)

    def is_closed(self) -> bool:
        """Waits until the broker closes the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def _read(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            more = self.socket.recv(count - len(parts))
            if not more:
                raise OSError("the broker has closed the connection")
            parts += more
        return parts


def text(content: bytes) -> bytes:
    """A string of the protocol."""
    return struct.pack(">H", len(content)) + content


def packet(kind: int, body: bytes, claimed: int | None = None) -> bytes:
    """A network packet; `claimed` bytes are said to follow, if not those that do."""
    size, head = len(body) if claimed is None else claimed, bytearray([kind])
    while True:
        head.append(size & 127 | (128 if size > 127 else 0))
        size >>= 7
        if not size:
            return bytes(head) + body
