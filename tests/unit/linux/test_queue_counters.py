# SPDX-License-Identifier: Apache-2.0
"""Drop counters of sockets: as the kernel's files and messages have them, real ones, and damaged ones."""

from __future__ import annotations

import os
import random
import socket
import struct
from contextlib import suppress

import pytest

from otel_nfprobe.linux.queue_counters import (
    BY_FAMILY,
    DONE,
    ERROR,
    INFO,
    MEMORY,
    RING,
    PacketSocket,
    Queue,
    QueueCounters,
    QueueKind,
    parse_interfaces,
    parse_packet_sockets,
    parse_sockets,
)

UDP = """\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
 1200: 0100007F:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 37971 2 0000000000000000 94
 1300: 0000007F:xxxx 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 37972 2 0000000000000000 1
 1400: 0100007F:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 -5 2 0000000000000000 1
 1500: 0100007F:0035
"""
UDP6 = UDP.splitlines()[0] + (
    "\n  7: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000"
    " 00:00000000 00000000 0 0 12 2 0000000000000000 4294967295\n"
)


def message(kind: int, body: bytes) -> bytes:
    padded = struct.pack("<IHHII", 16 + len(body), kind, 2, 1, 0) + body
    return padded + bytes(-len(padded) % 4)


def attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("<HH", 4 + len(content), kind) + content + bytes(-len(content) % 4)


def packet_socket(number: int, *attributes: bytes) -> bytes:
    return message(BY_FAMILY, struct.pack("<BBHIII", 17, 3, 3, number, 1, 2) + b"".join(attributes))


def memory(drops: int) -> bytes:
    return attribute(MEMORY, struct.pack("<9I", *range(8), drops))


def information(interface: int) -> bytes:
    return attribute(INFO, struct.pack("<6I", interface, 0, 0, 0, 0, 1))


def test_the_table_of_udp_sockets() -> None:
    found = list(parse_sockets(UDP, QueueKind.UDP, "udp"))
    assert found == [(Queue(QueueKind.UDP, 37971, "udp 127.0.0.1:8080"), 94)]
    found = list(parse_sockets(UDP6, QueueKind.UDP, "udp"))
    assert found == [(Queue(QueueKind.UDP, 12, "udp [::1]:53"), 0xFFFFFFFF)]


def test_the_table_of_interfaces() -> None:
    text = "Inter-|\n face |\n  tap0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  cut: 1 2\nnot one\n"
    assert parse_interfaces(text) == {"tap0": 12}


def test_packet_sockets_with_and_without_a_ring() -> None:
    answer = packet_socket(5, information(3), memory(77))
    answer += packet_socket(6, information(0), attribute(RING, bytes(24)), memory(1)) + packet_socket(7)
    assert parse_packet_sockets(answer + message(DONE, bytes(4))) == (
        [PacketSocket(5, 3, 77, False), PacketSocket(6, 0, 1, True), PacketSocket(7, 0, 0, True)],
        True,
    )
    with pytest.raises(OSError, match="Operation not permitted"):
        parse_packet_sockets(message(ERROR, struct.pack("<i", -1) + bytes(16)))


def test_damaged_answers_and_tables_give_no_error() -> None:
    answer, numbers = packet_socket(5, information(3), memory(77)) + message(DONE, bytes(4)), random.Random(3)
    for _ in range(2000):
        damaged = bytearray(answer[: numbers.randrange(len(answer))])
        for _ in range(min(3, len(damaged))):
            damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
        with suppress(OSError):  # it has become an error message
            parse_packet_sockets(bytes(damaged))
        text = "".join(chr(numbers.randrange(32, 127)) if numbers.random() < 0.05 else c for c in UDP)
        list(parse_sockets(text, QueueKind.UDP, "udp"))
        parse_interfaces(text)


def test_own_sockets_are_counted_as_the_kernel_says() -> None:
    """SO_MEMINFO of the socket itself is the oracle."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as full,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        full.bind(("127.0.0.1", 0))
        full.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        counters = QueueCounters(os.getpid())
        counters.look()
        queue = Queue(QueueKind.UDP, os.fstat(full.fileno()).st_ino, f"udp 127.0.0.1:{full.getsockname()[1]}")
        assert counters.read()[queue] == 0
        for _ in range(100):
            out.sendto(bytes(300), full.getsockname())
        so_meminfo = 55
        dropped = struct.unpack_from("<9I", full.getsockopt(socket.SOL_SOCKET, so_meminfo, 36))[8]
        assert dropped > 50
        assert counters.read()[queue] == dropped
        assert full.fileno() in counters.descriptors.sockets[queue.number]
        counters.close()


def test_a_process_that_has_ended_has_no_queues() -> None:
    counters = QueueCounters(2**22 + 1)
    counters.look()
    assert counters.read() == {}
    counters.close()
