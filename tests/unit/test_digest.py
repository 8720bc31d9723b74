# SPDX-License-Identifier: Apache-2.0
"""The packet digest: official SipHash vectors, what it covers, C against Python over hostile frames."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from otel_nfprobe._core import ffi, lib

from otel_nfprobe import digest

VECTOR_KEY = bytes(range(16))
# Aumasson and Bernstein's vectors_sip64: message = bytes 0..n-1.
VECTORS = {
    0: 0x726FDB47DD0E0E31,
    1: 0x74F839C593DC67FD,
    7: 0xAB0200F58B01D137,
    8: 0x93F5F5799A932462,
    15: 0xA129CA6149BE45E5,
    63: 0x958A324CEB064572,
}
KNOWN_UDP_ID = "0171898d085bdcf4"
DEFAULT_KEY_WORDS = (0x70666E2D6C65746F, 0x7364692065626F72)


def describe_in_c(readable: bytes, length: int | None = None, link: int = 0, key: bytes = digest.DEFAULT_KEY):
    # Exactly as many bytes as may be read: a read beyond them is one that a sanitizer sees.
    memory = ffi.new("uint8_t[]", readable) if readable else ffi.new("uint8_t[1]")
    facts = ffi.new("uint8_t[56]")
    words = ffi.new("uint64_t[2]", struct.unpack("<2Q", key))
    lib.nfp_digest_describe(memory, len(readable), len(readable) if length is None else length, link, words, facts)
    return digest.unpack_facts(bytes(facts))


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
}


@pytest.mark.parametrize("count", VECTORS)
def test_siphash_official_vectors(count: int) -> None:
    message = bytes(range(count))
    assert digest.siphash(message, VECTOR_KEY) == VECTORS[count]
    words = ffi.new("uint64_t[2]", struct.unpack("<2Q", VECTOR_KEY))
    assert lib.nfp_digest_siphash(message, count, words) == VECTORS[count]


def test_default_key_is_the_constant_of_the_header() -> None:
    assert struct.unpack("<2Q", digest.DEFAULT_KEY) == DEFAULT_KEY_WORDS
    from pathlib import Path

    header = (Path(__file__).parents[2] / "native/include/nfprobe/digest.h").read_text()
    for word in DEFAULT_KEY_WORDS:
        assert f"0x{word:016x}ULL" in header


def test_a_known_packet_keeps_its_digest() -> None:
    # Digests are compared between hosts and releases: this value changes only with docs/identity.md.
    head = bytes([4, 17, 0, 0, 0, 0, 0, 7, 0, 0, 0, 72]) + struct.pack(">H", 72) + bytes(2)
    assert digest.describe(FRAMES["udp"]).digest == digest.siphash(head + BODY[:32])
    assert digest.describe(FRAMES["udp"]).packet_id == KNOWN_UDP_ID


def test_facts_of_a_udp_packet() -> None:
    facts = describe_in_c(FRAMES["udp"])
    assert (facts.ip_version, facts.protocol, facts.ip_id, facts.length) == (4, 17, 7, len(FRAMES["udp"]))
    assert facts.source[:4] == b"\x0a\0\0\1"
    assert facts.destination[:4] == b"\x0a\0\0\2"
    assert (facts.source_port, facts.destination_port, facts.flags) == (1000, 2000, 0)


@pytest.mark.parametrize("name", FRAMES)
def test_c_equals_python_at_every_cut(name: str) -> None:
    frame = FRAMES[name]
    for readable in range(len(frame) + 1):
        for length in (readable, len(frame)):
            assert describe_in_c(frame[:readable], length) == digest.describe(frame[:readable], length), readable


@pytest.mark.parametrize("name", FRAMES)
def test_c_equals_python_when_any_byte_is_hostile(name: str) -> None:
    frame = FRAMES[name]
    for position in range(len(frame)):
        for value in (0x00, 0xFF, frame[position] ^ 0x40):
            hostile = frame[:position] + bytes([value]) + frame[position + 1 :]
            assert describe_in_c(hostile) == digest.describe(hostile), (position, value)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 1), st.binary(min_size=16, max_size=16))
def test_c_equals_python_over_random_bytes(frame: bytes, length: int, link: int, key: bytes) -> None:
    assert describe_in_c(frame, length, link, key) == digest.describe(frame, length, link, key)


def test_c_equals_python_over_random_ip_headers() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        version = rng.choice((4, 6))
        body = rng.randbytes(rng.randrange(120))
        header = bytes([version << 4 | rng.choice((5, 5, 5, 0, 6, 15))]) + rng.randbytes(39)
        packet = bytearray(header + body)
        if version == 6:
            packet[6] = rng.choice((0, 6, 17, 43, 44, 51, 58, 60, 132, 135))
            packet[4:6] = struct.pack(">H", rng.choice((0, len(body), len(body) // 2, 65535)))
        else:
            packet[9] = rng.choice((1, 6, 17, 47, 132))
            packet[2:4] = struct.pack(">H", rng.choice((0, len(packet), 19, 65535)))
        assert describe_in_c(bytes(packet), link=1) == digest.describe(bytes(packet), link_layer=1)


REWRITES = {
    "mac addresses": ethernet(ipv4(udp(BODY)), macs=b"\xff" * 12),
    "vlan": FRAMES["vlan"],
    "ttl and tos": ethernet(ipv4(udp(BODY), ttl=3, tos=0xB8)),
    "addresses": ethernet(ipv4(udp(BODY), source=b"\x01\x02\x03\x04", destination=b"\5\6\7\x08")),
    "ports and checksum": ethernet(ipv4(udp(BODY, 5, 6, 0x7777))),
    "padding": FRAMES["udp"] + bytes(9),
    "don't fragment": ethernet(ipv4(udp(BODY), fragment=0x4000)),
}


@pytest.mark.parametrize("name", REWRITES)
def test_digest_survives_what_nfs_rewrite(name: str) -> None:
    assert describe_in_c(REWRITES[name]).digest == describe_in_c(FRAMES["udp"]).digest


DIFFERENCES = {
    "ip id": (ethernet(ipv4(udp(BODY), ip_id=8)), "udp"),
    "payload": (ethernet(ipv4(udp(b"z" + BODY[1:]))), "udp"),
    "length": (ethernet(ipv4(udp(BODY + b"z"))), "udp"),
    "protocol": (ethernet(ipv4(udp(BODY), 47)), "udp"),
    "fragment offset": (ethernet(ipv4(BODY, fragment=0x2006)), "later fragment"),
    "tcp sequence": (ethernet(ipv4(tcp(BODY, 2), 6)), "tcp"),
    "tcp window": (ethernet(ipv4(tcp(BODY, window=9), 6)), "tcp"),
    "icmp sequence": (ethernet(ipv4(struct.pack(">BBHHH", 8, 0, 0, 0x55, 4) + BODY, 1)), "icmp"),
    "ether type": (ethernet(bytes(range(46)), 0x0807), "arp"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_digest_tells_packets_apart(name: str) -> None:
    frame, other = DIFFERENCES[name]
    assert describe_in_c(frame).digest != describe_in_c(FRAMES[other]).digest


def test_key_changes_the_digest() -> None:
    assert describe_in_c(FRAMES["udp"], key=b"0123456789abcdef").digest != describe_in_c(FRAMES["udp"]).digest


@pytest.mark.parametrize(
    ("name", "flag"),
    [("later fragment", 1), ("ipv6 fragment", 1), ("first fragment", 0), ("runt", 0), ("gre", 0)],
)
def test_fragment_flag(name: str, flag: int) -> None:
    assert describe_in_c(FRAMES[name]).flags & digest.FLAG_FRAGMENT == flag


def test_cut_and_malformed_flags() -> None:
    assert describe_in_c(FRAMES["udp"][:50], len(FRAMES["udp"])).flags == digest.FLAG_CUT
    assert describe_in_c(ethernet(b"\x41" + bytes(30))).flags == digest.FLAG_MALFORMED
