# SPDX-License-Identifier: Apache-2.0
"""Packet facts and the packet digest in Python: the readable twin of native/include/nfprobe/digest.h.

docs/identity.md defines the bytes that the digest covers. The volume path never calls this; it serves tests
and whatever computes ids from a capture file. It reads nothing beyond the bytes it is given.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

DEFAULT_KEY = b"otel-nfprobe ids"
LINK_ETHERNET = 0
LINK_IP = 1
FLAG_FRAGMENT = 1
FLAG_CUT = 2
FLAG_MALFORMED = 4

_PAYLOAD_BYTES = 32
_OTHER_BYTES = 64
_VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
_VLAN_TAGS_MAX = 4
_EXTENSIONS = (0, 43, 44, 51, 60, 135, 139, 140)
_EXTENSION_HEADERS_MAX = 8
_TRANSPORT_BYTES = {1: 8, 6: 20, 17: 8, 58: 8, 132: 12}
_FACTS = struct.Struct("=Q16s16sHHIHHBBBx")


@dataclass
class PacketFacts:
    """What identifies one packet. Addresses are in network order, an IPv4 address is the first four bytes.

    `length` counts the whole packet with its link layer header; ports and IP id are 0 where there are none;
    `ip_version` 0 means not IP; `flags` are FLAG_FRAGMENT, FLAG_CUT, FLAG_MALFORMED.
    """

    digest: int = 0
    source: bytes = bytes(16)
    destination: bytes = bytes(16)
    source_port: int = 0
    destination_port: int = 0
    length: int = 0
    ip_id: int = 0
    ether_type: int = 0
    protocol: int = 0
    ip_version: int = 0
    flags: int = 0

    @property
    def packet_id(self) -> str:
        """The digest as `nf.packet.id` shows it: 16 hexadecimal digits."""
        return f"{self.digest:016x}"


def unpack_facts(facts: bytes) -> PacketFacts:
    """The 56 bytes of struct nfp_packet_facts as PacketFacts."""
    return PacketFacts(*_FACTS.unpack(facts))


def siphash(message: bytes, key: bytes = DEFAULT_KEY) -> int:
    """SipHash-2-4 of a message with a key of 16 bytes, as a number of 64 bits."""
    mask = 0xFFFFFFFFFFFFFFFF
    k0, k1 = struct.unpack("<2Q", key)
    v: list[int] = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[1] = _rotate_left(v[1], 13) ^ v[0]
            v[0] = _rotate_left(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = _rotate_left(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = _rotate_left(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = _rotate_left(v[1], 17) ^ v[2]
            v[2] = _rotate_left(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def describe(
    readable: bytes,
    packet_length: int | None = None,
    link_layer: int = LINK_ETHERNET,
    key: bytes = DEFAULT_KEY,
) -> PacketFacts:
    """Facts of the packet that begins with the bytes `readable` and is packet_length bytes long.

    Never fails: what is not understood stays zero.
    """
    length = len(readable) if packet_length is None else packet_length
    facts = PacketFacts(length=length)
    parse = _Parse(bytes(readable[:length]), length)
    if link_layer == LINK_ETHERNET:
        parse.ethernet(facts)
    elif parse.bytes:
        facts.ether_type = {4: 0x0800, 6: 0x86DD}.get(parse.bytes[0] >> 4, 0)
    is_ip = (facts.ether_type == 0x0800 and parse.ipv4(facts)) or (facts.ether_type == 0x86DD and parse.ipv6(facts))
    if is_ip:
        message = _ip_message(parse, facts)
    else:
        if facts.ether_type in (0x0800, 0x86DD):
            facts.flags |= FLAG_MALFORMED
        message = struct.pack(">HHI", 0, facts.ether_type, 0) + parse.payload(_OTHER_BYTES, facts)
    facts.digest = siphash(message, key)
    return facts


class _Parse:
    # Where the parser stands: 0 <= at <= len(bytes) <= end.
    def __init__(self, readable: bytes, end: int) -> None:
        self.bytes = readable
        self.end = end
        self.at = 0
        self.ip_id = 0
        self.fragment = 0
        self.later_fragment = False

    def has(self, count: int) -> bool:
        return len(self.bytes) - self.at >= count

    def be16(self, offset: int) -> int:
        return int.from_bytes(self.bytes[self.at + offset : self.at + offset + 2], "big")

    def cut(self, end: int) -> None:
        self.end = max(min(self.end, end), self.at)
        self.bytes = self.bytes[: self.end]

    def payload(self, limit: int, facts: PacketFacts) -> bytes:
        wanted = min(self.end - self.at, limit)
        taken = self.bytes[self.at : self.at + wanted]
        if len(taken) < wanted:
            facts.flags |= FLAG_CUT
        return taken

    def ethernet(self, facts: PacketFacts) -> None:
        if not self.has(14):
            return
        ether_type = self.be16(12)
        self.at = 14
        for _ in range(_VLAN_TAGS_MAX):
            if ether_type not in _VLAN_TYPES or not self.has(4):
                break
            ether_type = self.be16(2)
            self.at += 4
        facts.ether_type = ether_type

    def ipv4(self, facts: PacketFacts) -> bool:
        if not self.has(20) or self.bytes[self.at] >> 4 != 4:
            return False
        header = self.bytes[self.at :]
        header_bytes = (header[0] & 15) * 4
        if header_bytes < 20 or not self.has(header_bytes):
            return False
        facts.ip_version, facts.protocol = 4, header[9]
        facts.source, facts.destination = header[12:16] + bytes(12), header[16:20] + bytes(12)
        total, self.ip_id = self.be16(2), self.be16(4)
        self.fragment = self.be16(6) & 0x3FFF
        self.later_fragment = self.fragment & 0x1FFF != 0
        start = self.at
        self.at += header_bytes
        if total != 0:
            self.cut(start + total)
        return True

    def ipv6(self, facts: PacketFacts) -> bool:
        if not self.has(40) or self.bytes[self.at] >> 4 != 6:
            return False
        header = self.bytes[self.at : self.at + 40]
        facts.ip_version, facts.protocol = 6, header[6]
        facts.source, facts.destination = header[8:24], header[24:40]
        payload = self.be16(4)
        self.at += 40
        if payload != 0:
            self.cut(self.at + payload)
        self._extensions(facts)
        return True

    def _extensions(self, facts: PacketFacts) -> None:
        for _ in range(_EXTENSION_HEADERS_MAX):
            if facts.protocol not in _EXTENSIONS or not self.has(8):
                return
            header = self.bytes[self.at :]
            header_bytes = (header[1] + 1) * 8
            if facts.protocol == 51:
                header_bytes = (header[1] + 2) * 4
            elif facts.protocol == 44:
                header_bytes = 8
                self.fragment = self.be16(2) & 0xFFF9
                self.ip_id = int.from_bytes(header[4:8], "big")
                self.later_fragment = self.fragment & 0xFFF8 != 0
            if not self.has(header_bytes):
                return
            facts.protocol = header[0]
            self.at += header_bytes
            if self.later_fragment:
                return

    def transport(self, facts: PacketFacts) -> bytes:
        # The fields of the transport header that NFs do not rewrite: 12 bytes for TCP, otherwise 4.
        header_bytes = _TRANSPORT_BYTES.get(facts.protocol, 0)
        if self.later_fragment or not header_bytes or not self.has(header_bytes):
            return bytes(4)
        header = self.bytes[self.at :]
        if facts.protocol not in (1, 58):
            facts.source_port, facts.destination_port = self.be16(0), self.be16(2)
        if facts.protocol == 6:
            invariant = header[4:16]
            header_bytes = min(max(20, (header[12] >> 4) * 4), len(header))
        elif facts.protocol == 17:
            invariant = header[4:6] + bytes(2)
        elif facts.protocol == 132:
            invariant = header[4:8]
        else:
            invariant = header[0:2] + header[6:8]
        self.at += header_bytes
        return invariant


def _ip_message(parse: _Parse, facts: PacketFacts) -> bytes:
    facts.ip_id = parse.ip_id & 0xFFFF
    if parse.later_fragment:
        facts.flags |= FLAG_FRAGMENT
    payload_length = parse.end - parse.at
    head = struct.pack(">BBHII", facts.ip_version, facts.protocol, parse.fragment, parse.ip_id, payload_length)
    return head + parse.transport(facts) + parse.payload(_PAYLOAD_BYTES, facts)


def _rotate_left(word: int, bits: int) -> int:
    return (word << bits | word >> (64 - bits)) & 0xFFFFFFFFFFFFFFFF
