# SPDX-License-Identifier: Apache-2.0
"""Capture files for the tests: a seeded generator of packets and a reader that trusts nothing.

The same seed and count give the same bytes, so that tests can compute the digests that they expect.
`python -m tests.support.traffic OUT.pcap --count 1000` writes one by hand.
"""

from __future__ import annotations

import argparse
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

MAC_HEADER = bytes.fromhex("020000000002020000000001")
LENGTHS = (60, 64, 96, 128, 256)
KINDS = ("udp4", "udp4", "udp4", "tcp4", "udp6", "icmp4")
START_UNIX_S = 1_700_000_000
SNAPLEN_MAX = 1 << 18


def checksum(data: bytes) -> int:
    """The Internet checksum of an even number of bytes."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def make_frames(
    count: int, seed: int = 1, flows: int = 64, kinds: Sequence[str] = KINDS, lengths: Sequence[int] = LENGTHS
) -> Iterator[bytes]:
    """Yields `count` Ethernet frames; the payload begins with the frame's number, so no two are equal."""
    rng = random.Random(seed)
    for number in range(count):
        flow = rng.randrange(flows)
        kind = kinds[flow % len(kinds)]
        length = max(rng.choice(lengths), 14 + 40 + 20 + 8 if kind == "udp6" else 60)
        yield _make_frame(kind, number, flow, length)


def _make_frame(kind: str, number: int, flow: int, length: int) -> bytes:
    header_bytes = 40 if kind == "udp6" else 20
    transport_bytes = 20 if kind == "tcp4" else 8
    payload_bytes = length - 14 - header_bytes - transport_bytes
    payload = struct.pack(">I", number) + bytes((number + i) & 0xFF for i in range(payload_bytes - 4))
    transport = _make_transport(kind, number, flow, payload_bytes)
    if kind == "udp6":
        source = bytes.fromhex("fd000000000000000000000000000000")[:-2] + struct.pack(">H", flow)
        destination = bytes.fromhex("fd000001000000000000000000000000")[:-2] + struct.pack(">H", flow)
        ip = struct.pack(">IHBB", 6 << 28, len(transport) + payload_bytes, 17, 64) + source + destination
        return MAC_HEADER + b"\x86\xdd" + ip + transport + payload
    protocol = {"udp4": 17, "tcp4": 6, "icmp4": 1}[kind]
    ip = struct.pack(
        ">BBHHHBBHII",
        0x45,
        0,
        length - 14,
        number & 0xFFFF,
        0,
        64,
        protocol,
        0,
        0x0A000000 + flow,
        0x0A010000 + flow,
    )
    ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
    return MAC_HEADER + b"\x08\x00" + ip + transport + payload


def _make_transport(kind: str, number: int, flow: int, payload_bytes: int) -> bytes:
    if kind == "tcp4":
        return struct.pack(">HHIIHHHH", 20000 + flow, 443, number, 1, 0x5018, 512, 0, 0)
    if kind == "icmp4":
        return struct.pack(">BBHHH", 8, 0, 0, flow, number & 0xFFFF)
    return struct.pack(">HHHH", 10000 + flow, 53, 8 + payload_bytes, 0)


def write_pcap(
    path: str | Path, frames: Iterator[bytes] | Sequence[bytes], gap_ns: int = 1000, unit_ns: int = 1
) -> int:
    """Writes frames as an Ethernet capture with time stamps gap_ns apart, in ns or us. Returns how many."""
    count, magic = 0, {1: 0xA1B23C4D, 1000: 0xA1B2C3D4}[unit_ns]
    with open(path, "wb", buffering=1 << 20) as file:
        file.write(struct.pack("<IHHiIII", magic, 2, 4, 0, 0, SNAPLEN_MAX, 1))
        for count, frame in enumerate(frames, 1):
            seconds, ns = divmod(count * gap_ns, 10**9)
            file.write(struct.pack("<IIII", START_UNIX_S + seconds, ns // unit_ns, len(frame), len(frame)) + frame)
    return count


def read_pcap(path: str | Path) -> Iterator[tuple[int, bytes, int]]:
    """Yields (Unix ns, captured bytes, length on the wire) per packet; us and ns files, both byte orders.

    Raises:
        ValueError: no capture, not Ethernet, or cut inside a packet.
    """
    with open(path, "rb", buffering=1 << 20) as file:
        start = file.read(24)
        order = next((o for o in "<>" if start[:4] in _magics(o)), None)
        if len(start) < 24 or order is None:
            raise ValueError(f"{path} is not a pcap file")
        unit_ns = 1 if start[:4] == _magics(order)[1] else 1000
        if struct.unpack(order + "I", start[20:24])[0] & 0xFFFFFFF != 1:
            raise ValueError(f"{path} is not a capture of Ethernet frames")
        while header := file.read(16):
            if len(header) < 16:
                raise ValueError(f"{path} is cut inside a packet header")
            seconds, fraction, captured, length = struct.unpack(order + "4I", header)
            data = file.read(captured) if captured <= SNAPLEN_MAX else b""
            if len(data) < captured:
                raise ValueError(f"{path} is cut inside a packet, or its length is damaged")
            yield seconds * 10**9 + fraction * unit_ns, data, length


def _magics(order: str) -> tuple[bytes, bytes]:
    return struct.pack(order + "I", 0xA1B2C3D4), struct.pack(order + "I", 0xA1B23C4D)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a seeded capture file.")
    parser.add_argument("output")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flows", type=int, default=64)
    arguments = parser.parse_args()
    write_pcap(arguments.output, make_frames(arguments.count, arguments.seed, arguments.flows))


if __name__ == "__main__":
    main()
