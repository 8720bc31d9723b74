# SPDX-License-Identifier: Apache-2.0
"""Counters of packets that the kernel dropped because a queue of a process was full, read without touching the process.

    udp, raw socket     the column `drops` of /proc/PID/net/{udp,udp6,raw,raw6}
    packet socket       sock_diag in the network namespace of the process; not of sockets with a ring (PACKET_RX_RING):
                        their count is only told by a call that also clears it
    tap, tun            `tx_dropped` of the interface: what the kernel sends there is what the process receives

What a network interface dropped on receiving (`rx_dropped`, `rx_missed_errors`) is the kernel's or the card's: no
thread of the process could have prevented it, so it is not among them.
Which sockets a process has is read from /proc/PID/fd. Everything is bounded; what cannot be read is left out.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.linux.namespaces import run_in_network

DESCRIPTORS_MAX = 4096  # looked at, of one process
QUEUES_MAX = 256  # watched
TABLE_BYTES_MAX = 4 << 20  # of a file in /proc/PID/net
TUN = "/dev/net/tun"
_SOCKET = compile_late(r"socket:\[(\d+)\]")
_INTERFACE = compile_late(r"^iff:\s*(\S+)", re.MULTILINE)


class QueueKind(IntEnum):
    """Whose counter it is; COUNTER_BITS says at which number it begins anew."""

    UDP = 1
    RAW = 2
    PACKET = 3
    TAP = 4
    PORT = 5  # of DPDK: read elsewhere (monitor/dpdk_ports.py)
    TRANSMIT = 6  # into which the process sends: no counter, but known by its calls (pipeline/short_sends.py)


COUNTER_BITS = {QueueKind.UDP: 32, QueueKind.RAW: 32, QueueKind.PACKET: 32}


@dataclass(frozen=True)
class Queue:
    """One queue, as long as it exists: another socket has another `number`.

    Attributes:
        number: inode of a socket; of a DPDK port its number, of a transmit function its ID; 0 for interfaces, which
            are known by their name.
        name: for people, such as "udp 127.0.0.1:4789".
    """

    kind: QueueKind
    number: int
    name: str


@dataclass
class Descriptors:
    """The descriptors of a process through which it receives: numbers of descriptors by inode and by interface."""

    sockets: dict[int, list[int]] = field(default_factory=dict)
    taps: dict[str, list[int]] = field(default_factory=dict)


def read_descriptors(pid: int) -> Descriptors:
    """Returns the sockets and taps that a process has open; empty where this user may not look."""
    found = Descriptors()
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)[:DESCRIPTORS_MAX]
    except OSError:
        return found
    for name in names:
        with suppress(OSError, ValueError):
            link = os.readlink(f"{folder}/{name}")
            match = _SOCKET.fullmatch(link)
            if match:
                found.sockets.setdefault(int(match[1]), []).append(int(name))
            elif link == TUN:
                interface = _INTERFACE.search(_read(f"/proc/{pid}/fdinfo/{name}"))
                if interface:
                    found.taps.setdefault(interface[1], []).append(int(name))
    return found


# ---- files in /proc -------------------------------------------------------------------------------------------------


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read(TABLE_BYTES_MAX)


def parse_sockets(text: str, kind: QueueKind, word: str) -> Iterator[tuple[Queue, int]]:
    """Yields the sockets of a file like /proc/net/udp, and how many packets each has dropped.

    Args:
        word: begins the name.
    """
    for line in text.splitlines()[1:]:
        columns = line.split()
        with suppress(ValueError, IndexError):
            address, port = columns[1].split(":")
            number = int(columns[9])
            drops = int(columns[12])
            if number > 0 and drops >= 0:
                yield Queue(kind, number, f"{word} {_name_address(address)}:{int(port, 16)}"), drops


def _name_address(text: str) -> str:
    # Words of 32 bits as the processor has them.
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    packed = b"".join(word.to_bytes(4, "little") for word in words)
    if len(packed) == 4:
        return socket.inet_ntop(socket.AF_INET, packed)
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]"


def parse_interfaces(text: str) -> dict[str, int]:
    """Returns how many packets could not be sent through each interface, from a file like /proc/net/dev."""
    found = {}
    for line in text.splitlines()[2:]:
        name, colon, rest = line.partition(":")
        with suppress(ValueError, IndexError):
            if colon:
                found[name.strip()] = int(rest.split()[11])
    return found


# ---- packet sockets -------------------------------------------------------------------------------------------------
# linux/packet_diag.h: a request for all packet sockets of the network namespace in which this socket was made.


SOCK_DIAG, BY_FAMILY, DUMP_REQUEST = 4, 20, 0x301  # NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP
DONE, ERROR = 3, 2
SHOWN = 0x01 | 0x04 | 0x10  # PACKET_SHOW_INFO, _RING_CFG, _MEMINFO
INFO, RING, MEMORY = 0, 2, 6  # PACKET_DIAG_INFO, _RX_RING, _MEMINFO
DROPS_WORD = 8  # SK_MEMINFO_DROPS
ANSWERS_MAX = 256  # messages of one dump
_MESSAGE = struct.Struct("<IHHII")
_REQUEST = struct.Struct("<BBHIIII")
_ANSWER = struct.Struct("<BBHIII")
_ATTRIBUTE = struct.Struct("<HH")


@dataclass(frozen=True)
class PacketSocket:
    """A packet socket: its inode, the index of its interface (0: all), its drops; has_ring: these are not counted."""

    number: int
    interface: int
    drops: int
    has_ring: bool


class PacketSockets:
    """Reads the packet sockets of a process's network namespace.

    Args:
        pid: of the process.

    Raises:
        OSError: the kernel has no packet_diag, or this user may not enter the namespace.
    """

    def __init__(self, pid: int) -> None:
        self._socket = run_in_network(
            pid, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, SOCK_DIAG)
        )
        self._socket.settimeout(1.0)
        try:
            self.read()
        except OSError:
            self._socket.close()
            raise

    def read(self) -> list[PacketSocket]:
        """Returns all of them.

        Raises:
            OSError: the kernel does not answer.
        """
        request = _REQUEST.pack(socket.AF_PACKET, 0, 0, 0, SHOWN, 0, 0)
        self._socket.send(_MESSAGE.pack(_MESSAGE.size + len(request), BY_FAMILY, DUMP_REQUEST, 1, 0) + request)
        found: list[PacketSocket] = []
        for _ in range(ANSWERS_MAX):
            part, is_last = parse_packet_sockets(self._socket.recv(1 << 16))
            found += part
            if is_last:
                break
        return found

    def close(self) -> None:
        """Closes the netlink socket."""
        self._socket.close()


def parse_packet_sockets(answer: bytes) -> tuple[list[PacketSocket], bool]:
    """Returns the sockets in one netlink answer, and whether it was the last one.

    Raises:
        OSError: it is an error message.
    """
    found: list[PacketSocket] = []
    at = 0
    while at + _MESSAGE.size <= len(answer):
        length, kind, *_ = _MESSAGE.unpack_from(answer, at)
        if not _MESSAGE.size <= length <= len(answer) - at:
            break
        body = answer[at + _MESSAGE.size : at + length]
        if kind == DONE:
            return found, True
        if kind == ERROR:
            number = -struct.unpack_from("<i", body)[0] if len(body) >= 4 else 0
            raise OSError(number, os.strerror(number))
        if kind == BY_FAMILY and len(body) >= _ANSWER.size:
            found.append(_parse_packet_socket(body))
        at += -(-length // 4) * 4
    return found, False


def _parse_packet_socket(body: bytes) -> PacketSocket:
    number = _ANSWER.unpack_from(body)[3]
    attributes, at = {}, _ANSWER.size
    while at + _ATTRIBUTE.size <= len(body):
        length, kind = _ATTRIBUTE.unpack_from(body, at)
        if length < _ATTRIBUTE.size:
            break
        attributes[kind] = body[at + _ATTRIBUTE.size : at + length]
        at += -(-length // 4) * 4
    information, memory = attributes.get(INFO, b""), attributes.get(MEMORY, b"")
    interface = struct.unpack_from("<I", information)[0] if len(information) >= 4 else 0
    has_drops = len(memory) >= 4 * (DROPS_WORD + 1)
    drops = struct.unpack_from("<I", memory, 4 * DROPS_WORD)[0] if has_drops else 0
    return PacketSocket(number, interface, drops, RING in attributes or not has_drops)


# ---- the queues of a process ----------------------------------------------------------------------------------------


_TABLES = (
    ("udp", QueueKind.UDP, "udp"),
    ("udp6", QueueKind.UDP, "udp"),
    ("raw", QueueKind.RAW, "raw socket"),
    ("raw6", QueueKind.RAW, "raw socket"),
)


class QueueCounters:
    """Reads the drop counters of one process's queues.

    Args:
        pid: of the process.

    Attributes:
        descriptors: of its queues, since the last `look`.
        uncounted: packet sockets whose drops cannot be read because they have a ring, by the last reading.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.descriptors = Descriptors()
        self.uncounted = 0
        self._tables: list[tuple[str, QueueKind, str]] = []
        self._packet: PacketSockets | None = None
        with suppress(OSError):
            self._packet = PacketSockets(pid)
        self._has_packet_sockets = False
        self._interfaces: dict[int, str] = {}

    def look(self) -> None:
        """Finds out which queues the process has now; to be called about once a second."""
        self.descriptors = read_descriptors(self._pid)
        # What none of its sockets is in is not read until the next look.
        wanted = self.descriptors.sockets
        self._tables = [
            table for table in _TABLES if any(queue.number in wanted for queue, _ in self._read_table(*table))
        ]
        with suppress(OSError):
            found = self._packet.read() if self._packet is not None else []
            self._has_packet_sockets = any(item.number in wanted for item in found)

    def read(self) -> dict[Queue, int]:
        """Returns how many packets each queue has dropped so far, at most QUEUES_MAX queues."""
        wanted, found = self.descriptors.sockets, {}
        for table in self._tables:
            found.update({queue: drops for queue, drops in self._read_table(*table) if queue.number in wanted})
        self._read_packet_sockets(found)
        if self.descriptors.taps:
            self._read_taps(found)
        return dict(list(found.items())[:QUEUES_MAX])

    def close(self) -> None:
        """Closes what it reads from."""
        if self._packet is not None:
            self._packet.close()

    def _read_table(self, file: str, kind: QueueKind, word: str) -> list[tuple[Queue, int]]:
        try:
            return list(parse_sockets(_read(f"/proc/{self._pid}/net/{file}"), kind, word))
        except OSError:
            return []

    def _read_packet_sockets(self, found: dict[Queue, int]) -> None:
        if self._packet is None or not self._has_packet_sockets:
            return
        self.uncounted = 0
        with suppress(OSError):
            for item in self._packet.read():
                if item.number not in self.descriptors.sockets:
                    continue
                if item.has_ring:
                    self.uncounted += 1
                    continue
                name = self._name_interface(item.interface) if item.interface else "all interfaces"
                found[Queue(QueueKind.PACKET, item.number, f"packet socket on {name}")] = item.drops

    def _name_interface(self, index: int) -> str:
        if index not in self._interfaces:
            with suppress(OSError):
                self._interfaces = dict(run_in_network(self._pid, socket.if_nameindex))
            self._interfaces.setdefault(index, f"interface {index}")
        return self._interfaces[index]

    def _read_taps(self, found: dict[Queue, int]) -> None:
        with suppress(OSError):
            for name, drops in parse_interfaces(_read(f"/proc/{self._pid}/net/dev")).items():
                if name in self.descriptors.taps:
                    found[Queue(QueueKind.TAP, 0, f"tap {name}")] = drops
