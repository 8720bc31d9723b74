# SPDX-License-Identifier: Apache-2.0
"""Flows, the rules of l3fwd that match them, and the same packets in an order of any locality, as a capture file."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from pathlib import Path

Flow = tuple[int, int, int, int]  # source, destination, source port, destination port

FILE_HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
_ETHERNET = bytes.fromhex("020000000002 020000000001 0800")
_PAYLOAD_BYTES = 18
_EVERYTHING = "0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x00/0x00 0"
_EVERYTHING_6 = "0:0:0:0:0:0:0:0/0 0:0:0:0:0:0:0:0/0 0 : 65535 0 : 65535 0x00/0x00 0"


def make_flows(count: int, seed: int) -> list[Flow]:
    """So many different UDP flows."""
    rng = random.Random(seed)
    flows: dict[Flow, None] = {}
    while len(flows) < count:
        source, destination = 0x0A000000 | rng.getrandbits(24), 0xC6120000 | rng.getrandbits(17)
        flows[source, destination, rng.randrange(1024, 65536), rng.randrange(1, 1024)] = None
    return list(flows)


def write_rules(folder: Path, flows: Sequence[Flow]) -> tuple[Path, Path]:
    """One five-tuple rule for each flow, and one for everything else. Returns the files for IPv4 and IPv6."""
    rules, rules_6 = folder / "rules.cfg", folder / "rules6.cfg"
    lines = [
        f"R{IPv4Address(source)}/32 {IPv4Address(destination)}/32 {port} : {port} {to} : {to} 0x11/0xff 0"
        for source, destination, port, to in flows
    ]
    rules.write_text("\n".join([*lines, f"R{_EVERYTHING}", ""]))
    rules_6.write_text(f"R{_EVERYTHING_6}\n")
    return rules, rules_6


def order(flows: int, packets_per_flow: int, slf: int, seed: int) -> list[int]:
    """Flow numbers: always the same packets, `slf` of a flow back to back, the groups in random order."""
    groups = [flow for flow in range(flows) for _ in range(packets_per_flow // slf)]
    random.Random(seed).shuffle(groups)
    return [flow for flow in groups for _ in range(slf)]


def make_capture(flows: Sequence[Flow], numbers: Sequence[int]) -> Iterator[bytes]:
    """These packets as they stand in a pcap file behind its header, in pieces."""
    frames = [_make_frame(flow) for flow in flows]
    records = [struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame for frame in frames]
    for first in range(0, len(numbers), 512):
        yield b"".join(records[number] for number in numbers[first : first + 512])


def _make_frame(flow: Flow) -> bytes:
    source, destination, port, to = flow
    ip = struct.pack(">BBHHHBBHII", 0x45, 0, 28 + _PAYLOAD_BYTES, 0, 0, 64, 17, 0, source, destination)
    total = sum(struct.unpack(">10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~(total + (total >> 16)) & 0xFFFF
    ip = ip[:10] + struct.pack(">H", checksum) + ip[12:]
    return _ETHERNET + ip + struct.pack(">HHHH", port, to, 8 + _PAYLOAD_BYTES, 0) + bytes(_PAYLOAD_BYTES)
