# SPDX-License-Identifier: Apache-2.0
"""Packet facts and the packet digest in Python: the readable twin of native/abi/{headers,digest,siphash}.h.

docs/identity.md defines the bytes that the digest covers; the C code is compared with this. It reads nothing beyond the
bytes it is given.
"""

from __future__ import annotations

import struct
from copy import copy
from dataclasses import astuple, dataclass

import xxhash

from otel_nfprobe.pipeline.identity import (
    DEFAULT_KEY,
    FLAG_CUT,
    FLAG_FRAGMENT,
    FLAG_INNER,
    FLAG_MALFORMED,
    LINK_ETHERNET,
    LINK_INNER,
)

_PAYLOAD_BYTES = 32
_OTHER_BYTES = 64
_VLAN_TYPES = (0x8100, 0x88A8, 0x9100)
_VLAN_TAGS_MAX = 4
_IPV4, _IPV6, _BRIDGED = 0x0800, 0x86DD, 0x6558
_MPLS_TYPES = (0x8847, 0x8848)
_MPLS_LABELS_MAX = 8
_TUNNELS_MAX = 4
_VXLAN_PORT, _GTP_U_PORT = 4789, 2152
_EXTENSIONS = (0, 43, 44, 51, 60, 135, 139, 140)
_EXTENSION_HEADERS_MAX = 8
_TCP, _UDP, _DCCP, _GRE, _ESP, _SCTP, _UDP_LITE = 6, 17, 33, 47, 50, 132, 136
_ICMP, _ICMP6 = 1, 58
_TRANSPORT_BYTES = {_ICMP: 8, _TCP: 20, _UDP: 8, _DCCP: 8, _ICMP6: 8, _SCTP: 12, _UDP_LITE: 8}
_ICMP_QUERIES = {_ICMP: (0, 8, *range(13, 19)), _ICMP6: (128, 129)}
_FACTS = struct.Struct("=Q16s16sHHIHHBBBx")
_MASK = 0xFFFFFFFFFFFFFFFF


@dataclass
class PacketFacts:
    """What identifies one packet. Addresses are in network order, an IPv4 address is the first four bytes.

    `length` counts the whole packet with its link layer header; ports and IP id are 0 where there are none;
    for ICMP the ports are the identifier, and type << 8 | code; for ESP the two halves of its SPI.
    `ip_version` 0 means not IP; `flags` are FLAG_FRAGMENT, FLAG_CUT, FLAG_MALFORMED, FLAG_INNER.
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
    def id(self) -> int:
        """What `nf.packet.id` shows as 16 hexadecimal digits; `nf.packet.content_id` shows the digest."""
        words = [0] * 5
        if self.ip_version in (4, 6):
            ports = self.source_port << 48 | self.destination_port << 32
            words = [
                *struct.unpack(">4Q", self.source + self.destination),
                ports | self.protocol << 8 | self.ip_version,
            ]
        id = self.digest
        for word in words:
            id = mix(id ^ word)
        return (id or 1) if self.digest else 0


def mix(x: int) -> int:
    """The finaliser of splitmix64."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def unpack_facts(facts: bytes) -> PacketFacts:
    """The 56 bytes of struct nfp_packet_facts as PacketFacts."""
    return PacketFacts(*_FACTS.unpack(facts))


def pack_facts(facts: PacketFacts) -> bytes:
    """PacketFacts as the 56 bytes of struct nfp_packet_facts."""
    return _FACTS.pack(*astuple(facts))


def xxh3(message: bytes, key: bytes = DEFAULT_KEY) -> int:
    """XXH3 with 64 bits of a message; the seed is made of a key of 16 bytes."""
    k0, k1 = struct.unpack("<2Q", key)
    return xxhash.xxh3_64_intdigest(message, k0 ^ k1)


def siphash(message: bytes, key: bytes = DEFAULT_KEY) -> int:
    """SipHash-1-3 of a message with a key of 16 bytes, as a number of 64 bits."""
    k0, k1 = struct.unpack("<2Q", key)
    v = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v0, v1, v2, v3 = _round(v[0], v[1], v[2], v[3] ^ word)
        v = v0 ^ word, v1, v2, v3
    v = _round(*_round(*_round(v[0], v[1], v[2] ^ 0xFF, v[3])))
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _round(v0: int, v1: int, v2: int, v3: int) -> tuple[int, int, int, int]:
    v0 = (v0 + v1) & _MASK
    v1 = (v1 << 13 & _MASK | v1 >> 51) ^ v0
    v0 = v0 << 32 & _MASK | v0 >> 32
    v2 = (v2 + v3) & _MASK
    v3 = (v3 << 16 & _MASK | v3 >> 48) ^ v2
    v0 = (v0 + v3) & _MASK
    v3 = (v3 << 21 & _MASK | v3 >> 43) ^ v0
    v2 = (v2 + v1) & _MASK
    v1 = (v1 << 17 & _MASK | v1 >> 47) ^ v2
    v2 = v2 << 32 & _MASK | v2 >> 32
    return v0, v1, v2, v3


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
    if link_layer & ~LINK_INNER == LINK_ETHERNET:
        parse.ethernet(facts)
    else:
        facts.ether_type = parse.guess_type()
    is_ip = parse.network(facts)
    tunnels = _TUNNELS_MAX if link_layer & LINK_INNER else 0
    while is_ip and tunnels:
        inner = _find_inner(parse, facts)
        if inner is None:
            break
        parse, facts, is_ip = inner
        tunnels -= 1
    if is_ip:
        message = _ip_head(parse, facts) + parse.payload(_PAYLOAD_BYTES, facts).ljust(_PAYLOAD_BYTES, b"\0")
    else:
        payload = parse.payload(_OTHER_BYTES, facts)
        head = struct.pack(">HHI", 0, facts.ether_type, len(payload))
        message = head + payload.ljust(_OTHER_BYTES, b"\0")
    facts.digest = xxh3(message, key)
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
        self.at += 14
        for _ in range(_VLAN_TAGS_MAX):
            if ether_type not in _VLAN_TYPES or not self.has(4):
                break
            ether_type = self.be16(2)
            self.at += 4
        facts.ether_type = ether_type

    def guess_type(self) -> int:
        # What the first nibble says of a packet that nothing else names.
        version = self.bytes[self.at] >> 4 if self.has(1) else 0
        return {4: _IPV4, 6: _IPV6}.get(version, 0)

    def network(self, facts: PacketFacts) -> bool:
        # MPLS labels and the IP header; whether there is one.
        ether_type = self.labels() if facts.ether_type in _MPLS_TYPES else facts.ether_type
        is_ip = (ether_type == _IPV4 and self.ipv4(facts)) or (ether_type == _IPV6 and self.ipv6(facts))
        if not is_ip and facts.ether_type in (_IPV4, _IPV6):
            facts.flags |= FLAG_MALFORMED
        return is_ip

    def labels(self) -> int:
        for _ in range(_MPLS_LABELS_MAX):
            if not self.has(4):
                return 0
            bottom = self.bytes[self.at + 2] & 1
            self.at += 4
            if bottom:
                return self.guess_type()
        return 0

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

    def flow(self, facts: PacketFacts) -> None:
        # Two numbers that tell flows between the same addresses apart.
        first, second = self.be16(0), self.be16(2)
        if facts.protocol in _ICMP_QUERIES:
            identified = first >> 8 in _ICMP_QUERIES[facts.protocol]
            first, second = self.be16(4) if identified else 0, first
        facts.source_port, facts.destination_port = first, second

    def transport(self, facts: PacketFacts) -> bytes:
        # The fields of the transport header that NFs do not rewrite: 12 bytes of TCP, otherwise 4.
        header_bytes = _TRANSPORT_BYTES.get(facts.protocol, 0)
        if self.later_fragment:
            return bytes(4)
        if facts.protocol == _ESP and self.has(4):
            self.flow(facts)
        if not header_bytes or not self.has(header_bytes):
            return bytes(4)
        self.flow(facts)
        header = self.bytes[self.at :]
        if facts.protocol == _TCP:
            invariant = header[4:16]
            header_bytes = min(max(20, (header[12] >> 4) * 4), len(header))
        elif facts.protocol in (_UDP, _UDP_LITE):
            invariant = header[4:6] + bytes(2)
        elif facts.protocol == _SCTP:
            invariant = header[4:8]
        elif facts.protocol == _DCCP:
            invariant = bytes(4)
        else:
            invariant = header[0:2] + header[6:8]
        self.at += header_bytes
        return invariant

    # ---- tunnels: the type of what is inside, or 0 ---------------------------------------------------------

    def reaches(self, count: int, facts: PacketFacts) -> bool:
        # As `has`; bytes that are in the packet and cannot be read are marked.
        if not self.has(count) and self.end - self.at >= count:
            facts.flags |= FLAG_CUT
        return self.has(count)

    def gre(self, facts: PacketFacts) -> int:
        if not self.reaches(4, facts):
            return 0
        flags, ether_type = self.be16(0), self.be16(2)
        header_bytes = 4 + 4 * (flags & 0xB000).bit_count()
        if flags & 0x4007 or not self.reaches(header_bytes, facts):
            return 0
        self.at += header_bytes
        return ether_type if ether_type in (_IPV4, _IPV6, _BRIDGED, _MPLS_TYPES[0]) else 0

    def gtp(self, facts: PacketFacts) -> int:
        if not self.reaches(8, facts) or self.bytes[self.at] & 0xF0 != 0x30 or self.bytes[self.at + 1] != 255:
            return 0
        flags, end = self.bytes[self.at], self.at + 8 + self.be16(2)
        header_bytes = 12 if flags & 7 else 8
        if not self.reaches(header_bytes, facts):
            return 0
        next_extension = self.bytes[self.at + 11] if flags & 4 else 0
        self.at += header_bytes
        for _ in range(_EXTENSION_HEADERS_MAX):
            if not next_extension:
                break
            size = self.bytes[self.at] * 4 if self.reaches(4, facts) else 0
            if not size or not self.reaches(size, facts):
                return 0
            self.at += size
            next_extension = self.bytes[self.at - 1]
        if next_extension:
            return 0
        self.cut(end)
        return self.guess_type() if self.reaches(1, facts) else 0

    def udp_tunnel(self, facts: PacketFacts) -> int:
        if not self.reaches(8, facts):
            return 0
        port = self.be16(2)
        self.at += 8
        if port == _GTP_U_PORT:
            return self.gtp(facts)
        if port != _VXLAN_PORT or not self.reaches(8 + 14, facts) or not self.bytes[self.at] & 8:
            return 0
        self.at += 8
        return _BRIDGED


# The packet inside a tunnel that begins behind the IP header: parser, facts and whether it is IP. None when
# there is no tunnel or its headers are not whole; the first fragment has no whole packet inside.
def _find_inner(parse: _Parse, facts: PacketFacts) -> tuple[_Parse, PacketFacts, bool] | None:
    inner = copy(parse)
    inner.ip_id = 0
    ether_type = 0
    if parse.fragment == 0 and facts.protocol == _GRE:
        ether_type = inner.gre(facts)
    elif parse.fragment == 0 and facts.protocol == _UDP:
        ether_type = inner.udp_tunnel(facts)
    if not ether_type or (ether_type == _BRIDGED and not inner.reaches(14, facts)):
        return None
    found = PacketFacts(length=facts.length, ether_type=ether_type, flags=FLAG_INNER)
    if ether_type == _BRIDGED:
        inner.ethernet(found)
    return inner, found, inner.network(found)


# The message's first 24 bytes.
def _ip_head(parse: _Parse, facts: PacketFacts) -> bytes:
    facts.ip_id = parse.ip_id & 0xFFFF
    if parse.later_fragment:
        facts.flags |= FLAG_FRAGMENT
    payload_length = parse.end - parse.at
    head = struct.pack(">BBHII", facts.ip_version, facts.protocol, parse.fragment, parse.ip_id, payload_length)
    return (head + parse.transport(facts)).ljust(24, b"\0")
