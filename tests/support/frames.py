# SPDX-License-Identifier: Apache-2.0
"""Frames of every kind that the packet digest knows, built byte by byte, and the digest's C code."""

from __future__ import annotations

import struct

from otel_nfprobe._core import ffi, lib
from tests.support import packet_digest as digest


def describe_in_c(readable: bytes, length: int | None = None, link: int = 0, key: bytes = digest.DEFAULT_KEY):
    # Exactly as many bytes as may be read: a read beyond them is one that a sanitizer sees.
    memory = ffi.new("uint8_t[]", readable) if readable else ffi.new("uint8_t[1]")
    facts = ffi.new("uint8_t[56]")
    words = ffi.new("uint64_t[2]", struct.unpack("<2Q", key))
    lib.nfp_digest_describe(memory, len(readable), len(readable) if length is None else length, link, words, facts)
    return digest.unpack_facts(bytes(facts))


def id_in_c(facts: digest.PacketFacts) -> int:
    ids = ffi.new("uint64_t[1]")
    lib.nfp_digest_ids(ffi.from_buffer("uint8_t[]", digest.pack_facts(facts)), 1, ids)
    return ids[0]


def ethernet(payload: bytes, ether_type: int = 0x0800, macs: bytes = bytes(12), tags: bytes = b"") -> bytes:
    return macs + tags + struct.pack(">H", ether_type) + payload


def ipv4(
    payload: bytes,
    protocol: int = 17,
    *,
    ip_id: int = 7,
    ttl: int = 64,
    tos: int = 0,
    fragment: int = 0,
    source: bytes = b"\x0a\0\0\1",
    destination: bytes = b"\x0a\0\0\2",
    options: bytes = b"",
) -> bytes:
    return (
        struct.pack(
            ">BBHHHBBH4s4s",
            0x45 + len(options) // 4,
            tos,
            20 + len(options) + len(payload),
            ip_id,
            fragment,
            ttl,
            protocol,
            0x1234,
            source,
            destination,
        )
        + options
        + payload
    )


def ipv6(payload: bytes, next_header: int = 17, hop_limit: int = 64) -> bytes:
    return struct.pack(">IHBB", 0x60000000, len(payload), next_header, hop_limit) + bytes(range(32)) + payload


def udp(payload: bytes, source: int = 1000, destination: int = 2000, checksum: int = 0) -> bytes:
    return struct.pack(">HHHH", source, destination, 8 + len(payload), checksum) + payload


def tcp(payload: bytes, sequence: int = 1, window: int = 512, options: bytes = b"", source: int = 1000) -> bytes:
    offset = (5 + len(options) // 4) << 12
    return struct.pack(">HHIIHHHH", source, 80, sequence, 99, offset | 0x18, window, 0xBEEF, 0) + options + payload


BODY = bytes(range(100, 164))


def mpls(payload: bytes, *labels: int, ether_type: int = 0x8847) -> bytes:
    """An Ethernet frame with these labels; the last one is the bottom of the stack."""
    stack = [label << 12 | (index == len(labels) - 1) << 8 | 64 for index, label in enumerate(labels)]
    return ethernet(struct.pack(f">{len(stack)}I", *stack) + payload, ether_type)


def vxlan(frame: bytes, network: int = 7) -> bytes:
    return udp(struct.pack(">II", 0x08000000, network << 8) + frame, 49152, 4789)


def gtp_u(packet: bytes, tunnel: int = 9, extensions: bytes = b"") -> bytes:
    """A user's packet; `extensions` begins with the optional fields' four bytes, its last one the first type."""
    flags = 0x34 if extensions else 0x30
    return udp(
        struct.pack(">BBHI", flags, 255, len(extensions) + len(packet), tunnel) + extensions + packet, 2152, 2152
    )


def gre(payload: bytes, ether_type: int, flags: int = 0, options: bytes = b"") -> bytes:
    return struct.pack(">HH", flags, ether_type) + options + payload


PDU_SESSION = b"\0\0\0\x85" + b"\1\0\5\0"
INNER = ipv4(udp(bytes(range(100, 164))), source=b"\xac\x10\0\1", ip_id=77)
INNER_FRAME = ethernet(INNER)
OUTER = {"source": b"\xc0\xa8\0\1", "destination": b"\xc0\xa8\0\2", "ip_id": 5}

FRAMES = {
    "udp": ethernet(ipv4(udp(BODY))),
    "udp, short, padded": ethernet(ipv4(udp(b"x"))) + bytes(17),
    "tcp": ethernet(ipv4(tcp(BODY), 6)),
    "tcp with options": ethernet(ipv4(tcp(BODY, options=b"\x02\x04\x05\xb4"), 6)),
    "ip options": ethernet(ipv4(udp(BODY), options=bytes(8))),
    "sctp": ethernet(ipv4(struct.pack(">HHII", 5, 6, 0xAABBCCDD, 1) + BODY, 132)),
    "icmp": ethernet(ipv4(struct.pack(">BBHHH", 8, 0, 0, 0x55, 3) + BODY, 1)),
    "gre": ethernet(ipv4(BODY, 47)),
    "first fragment": ethernet(ipv4(udp(BODY), fragment=0x2000)),
    "later fragment": ethernet(ipv4(BODY, fragment=0x2005)),
    "vlan": ethernet(ipv4(udp(BODY)), tags=b"\x81\0\0\5"),
    "qinq": ethernet(ipv4(udp(BODY)), tags=b"\x88\xa8\0\5\x81\0\0\6"),
    "ipv6 udp": ethernet(ipv6(udp(BODY)), 0x86DD),
    "ipv6 hop by hop, tcp": ethernet(ipv6(b"\x06\0" + bytes(6) + tcp(BODY), 0), 0x86DD),
    "ipv6 fragment": ethernet(ipv6(b"\x11\0\0\x09\0\0\x12\x34" + BODY, 44), 0x86DD),
    "ipv6 authentication": ethernet(ipv6(b"\x11\x04" + bytes(22) + udp(BODY), 51), 0x86DD),
    "ipv6 icmp": ethernet(ipv6(struct.pack(">BBHHH", 128, 0, 0, 9, 1) + BODY, 58), 0x86DD),
    "arp": ethernet(bytes(range(46)), 0x0806),
    "runt": b"\1\2\3",
    "empty": b"",
    "udp-lite": ethernet(ipv4(udp(BODY), 136)),
    "dccp": ethernet(ipv4(udp(BODY), 33)),
    "esp": ethernet(ipv4(struct.pack(">II", 0xCAFE0001, 3) + BODY, 50)),
    "icmp, unreachable": ethernet(ipv4(struct.pack(">BBHHH", 3, 1, 0, 0, 0) + BODY, 1)),
    "mpls": mpls(ipv4(udp(BODY)), 16, 17),
    "mpls, multicast, ipv6": mpls(ipv6(udp(BODY)), 16, ether_type=0x8848),
    "mpls, ethernet inside": mpls(bytes(4) + ethernet(ipv4(udp(BODY))), 16),
    "mpls, looks like ipv4": mpls(b"\x41" + bytes(30), 16),
    "mpls without an end": ethernet(bytes([0, 1, 0, 64]) * 20, 0x8847),
}
TUNNELS = {
    "vxlan": ethernet(ipv4(vxlan(INNER_FRAME), **OUTER)),
    "vxlan over ipv6, vlan inside": ethernet(ipv6(vxlan(ethernet(INNER, tags=b"\x81\0\0\5"))), 0x86DD),
    "gtp-u": ethernet(ipv4(gtp_u(INNER), **OUTER)),
    "gtp-u, session container": ethernet(ipv4(gtp_u(INNER, extensions=PDU_SESSION), **OUTER)),
    "gre": ethernet(ipv4(gre(INNER, 0x0800), 47, **OUTER)),
    "gre, key and sequence": ethernet(ipv4(gre(INNER, 0x0800, 0x3000, bytes(8)), 47, **OUTER)),
    "gre, ethernet": ethernet(ipv4(gre(INNER_FRAME, 0x6558), 47, **OUTER)),
    "gre, mpls": ethernet(ipv4(gre(b"\0\1\1\x40" + INNER, 0x8847), 47, **OUTER)),
    "gtp-u in vxlan": ethernet(ipv4(vxlan(ethernet(ipv4(gtp_u(INNER), **OUTER))), **OUTER)),
}
NO_TUNNELS = {
    "first fragment": ethernet(ipv4(vxlan(INNER_FRAME), fragment=0x2000)),
    "vxlan without a network": ethernet(ipv4(udp(bytes(8) + INNER_FRAME, 1, 4789))),
    "gtp-u echo": ethernet(ipv4(udp(b"\x32\1\0\4" + bytes(8), 2152, 2152))),
    "gtp-u, not ip": ethernet(ipv4(gtp_u(bytes(60)))),
    "gtp-u, endless extensions": ethernet(ipv4(gtp_u(INNER, extensions=b"\0\0\0\x85" + b"\1\0\0\x85" * 9))),
    "gtp-u, extension of no length": ethernet(ipv4(gtp_u(INNER, extensions=b"\0\0\0\x85" + bytes(4)))),
    "gre, routing": ethernet(ipv4(gre(INNER, 0x0800, 0x4000), 47)),
    "gre, version 1": ethernet(ipv4(gre(INNER, 0x0800, 1), 47)),
    "gre, unknown": ethernet(ipv4(gre(INNER, 0x88BE), 47)),
    "gre, cut": ethernet(ipv4(b"\x30\0\x08\0", 47)),
}
