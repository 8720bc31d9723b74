# SPDX-License-Identifier: Apache-2.0
"""Content ids and ids: known hashes, the page's vectors, what they cover, C against Python over hostile frames."""

from __future__ import annotations

import os
import random
import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import MESSAGE_VERSION
from tests.support import frames
from tests.support import packet_digest as digest
from tests.support.frames import (
    BODY,
    FRAMES,
    NO_TUNNELS,
    TUNNELS,
    describe_in_c,
    ethernet,
    id_in_c,
    ipv4,
    mpls,
    tcp,
    udp,
)
from tests.support.marks import in_parts

VECTOR_KEY = bytes(range(16))
# Of SipHash-1-3 as Rust's standard library tests its own: message = bytes 0..n-1.
VECTORS = {
    0: 0xABAC0158050FC4DC,
    1: 0xC9F49BF37D57CA93,
    7: 0xD3927D989BB11140,
    8: 0x369095118D299A8E,
    15: 0xD320D86D2A519956,
    63: 0x9D199062B7BBB3A8,
}
PAGE = Path(__file__).parents[3] / "docs/identity.md"
DEFAULT_KEY_WORDS = (0x70666E2D6C65746F, 0x7364692065626F72)


@pytest.mark.parametrize("count", VECTORS)
def test_siphash_known_vectors(count: int) -> None:
    message = bytes(range(count))
    assert digest.siphash(message, VECTOR_KEY) == VECTORS[count]
    words = ffi.new("uint64_t[2]", struct.unpack("<2Q", VECTOR_KEY))
    assert lib.nfp_digest_siphash(message, count, words) == VECTORS[count]


@pytest.mark.skipif(sys.hash_info.algorithm != "siphash13", reason="Python hashes with something else")
def test_siphash_is_that_of_python() -> None:
    code = "print(*(hash(bytes(range(n))) & 2**64 - 1 for n in range(1, 200)))"
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # a key of zeros
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True).stdout
    assert [digest.siphash(bytes(range(n)), bytes(16)) for n in range(1, 200)] == [int(word) for word in said.split()]


def test_default_key_is_the_constant_of_the_header() -> None:
    assert struct.unpack("<2Q", digest.DEFAULT_KEY) == DEFAULT_KEY_WORDS
    assert (lib.NFP_DIGEST_KEY_0, lib.NFP_DIGEST_KEY_1) == DEFAULT_KEY_WORDS


def read_vectors() -> list[tuple[str, ...]]:
    """Name, frame, content id and id of each packet on the page."""
    (block,) = re.findall(r"^```vectors\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = re.findall(r"^(\S.*)\n((?:  [0-9a-f]+\n)+)  ([0-9a-f]{16}) ([0-9a-f]{16})$", block, re.MULTILINE)
    return [(name, "".join(frame.split()), content_id, id) for name, frame, content_id, id in found]


def test_packets_of_the_page_have_its_ids() -> None:
    # Ids are compared between hosts and releases: these change never.
    vectors = read_vectors()
    assert len(vectors) == 6
    for name, frame, content_id, id in vectors:
        for describe in (describe_in_c, digest.describe):
            facts = describe(bytes.fromhex(frame))
            assert f"{facts.digest:016x}" == content_id, name
            assert f"{facts.id:016x}" == f"{id_in_c(facts):016x}" == id, name


def test_the_message_of_a_udp_packet() -> None:
    head = bytes([4, 17, 0, 0, 0, 0, 0, 7, 0, 0, 0, 72]) + struct.pack(">H", 72) + bytes(10)
    assert describe_in_c(FRAMES["udp"]).digest == digest.xxh3(head + BODY[:32])
    short = bytes([4, 17, 0, 0, 0, 0, 0, 7, 0, 0, 0, 9]) + struct.pack(">H", 9) + bytes(10) + b"x"
    assert describe_in_c(FRAMES["udp, short, padded"]).digest == digest.xxh3(short + bytes(31))


def test_the_message_of_another_frame() -> None:
    arp = FRAMES["arp"]
    head = bytes(2) + arp[12:14] + struct.pack(">I", len(arp) - 14)
    assert describe_in_c(arp).digest == digest.xxh3(head + arp[14:].ljust(64, b"\0"))
    assert describe_in_c(arp + b"\0").digest != describe_in_c(arp).digest


def test_equal_packets_of_many_flows_have_one_content_id_and_an_id_each() -> None:
    rng = random.Random(4)
    ends = [(rng.randbytes(4), rng.randbytes(4), rng.getrandbits(16), rng.getrandbits(16)) for _ in range(2048)]
    ends += [(b"\x0a\0" + struct.pack(">H", n % 64), b"\x0a\0\0\2", n // 64, 53) for n in range(2048)]
    frames = [ethernet(ipv4(udp(BODY, *ports), source=a, destination=b, ip_id=0)) for a, b, *ports in ends]
    facts = [describe_in_c(frame) for frame in frames]
    assert len({one.digest for one in facts}) == 1
    assert len({id_in_c(one) for one in facts}) == 4096
    assert all(id_in_c(one) == one.id for one in facts)


@pytest.mark.parametrize("version", [4, 6])
def test_id_covers_each_bit_of_the_flow(version: int) -> None:
    plain = digest.PacketFacts(digest=5, ip_version=version, protocol=17)
    ids = {plain.id}
    for field, bits in (("source", 128), ("destination", 128), ("source_port", 16), ("destination_port", 16)):
        for bit in range(bits):
            value = 1 << bit
            other = replace(plain, **{field: value.to_bytes(16, "big") if bits == 128 else value})
            assert id_in_c(other) == other.id
            ids.add(other.id)
    assert len(ids) == 1 + 2 * 128 + 2 * 16


def test_what_has_no_flow_has_an_id_of_its_content() -> None:
    message = digest.PacketFacts(digest=5, ip_version=MESSAGE_VERSION, source=bytes(range(16)))
    assert id_in_c(message) == digest.PacketFacts(digest=5).id == id_in_c(digest.PacketFacts(digest=5))
    assert id_in_c(digest.PacketFacts(digest=0, ip_version=4, source_port=7)) == 0  # not described


def test_facts_of_a_udp_packet() -> None:
    facts = describe_in_c(FRAMES["udp"])
    assert (facts.ip_version, facts.protocol, facts.ip_id, facts.length) == (4, 17, 7, len(FRAMES["udp"]))
    assert facts.source[:4] == b"\x0a\0\0\1"
    assert facts.destination[:4] == b"\x0a\0\0\2"
    assert (facts.source_port, facts.destination_port, facts.flags) == (1000, 2000, 0)


ALL_FRAMES = {**FRAMES, **TUNNELS, **{f"no {name}": frame for name, frame in NO_TUNNELS.items()}}
INNER = digest.LINK_INNER


@pytest.mark.parametrize("name", ALL_FRAMES)
def test_c_equals_python_at_every_cut(name: str) -> None:
    frame = ALL_FRAMES[name]
    for readable in range(len(frame) + 1):
        for length in (readable, len(frame)):
            got = describe_in_c(frame[:readable], length, INNER)
            assert got == digest.describe(frame[:readable], length, INNER), readable


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALL_FRAMES)
def test_c_equals_python_when_any_byte_is_hostile(name: str) -> None:
    frame = ALL_FRAMES[name]
    for position in range(len(frame)):
        for value in (0x00, 0xFF, frame[position] ^ 0x40):
            hostile = frame[:position] + bytes([value]) + frame[position + 1 :]
            assert describe_in_c(hostile, link=INNER) == digest.describe(hostile, link_layer=INNER), (position, value)


@in_parts(5)
@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=200),
    st.integers(0, 300),
    st.sampled_from((0, 1, INNER, INNER | 1)),
    st.binary(min_size=16, max_size=16),
)
def test_c_equals_python_over_random_bytes(part: int, frame: bytes, length: int, link: int, key: bytes) -> None:
    facts = describe_in_c(frame, length, link, key)
    assert facts == digest.describe(frame, length, link, key)
    assert id_in_c(facts) == facts.id


@in_parts(5)
def test_c_equals_python_over_random_ip_headers(part: int) -> None:
    rng = random.Random(10 + part)
    for _ in range(600):
        version = rng.choice((4, 6))
        body = rng.randbytes(rng.randrange(120))
        header = bytes([version << 4 | rng.choice((5, 5, 5, 0, 6, 15))]) + rng.randbytes(39)
        packet = bytearray(header + body)
        if version == 6:
            packet[6] = rng.choice((0, 6, 17, 43, 44, 51, 58, 60, 132, 135))
            packet[4:6] = struct.pack(">H", rng.choice((0, len(body), len(body) // 2, 65535)))
        else:
            packet[9] = rng.choice((1, 6, 17, 33, 47, 50, 132, 136))
            packet[2:4] = struct.pack(">H", rng.choice((0, len(packet), 19, 65535)))
        assert describe_in_c(bytes(packet), link=1) == digest.describe(bytes(packet), link_layer=1)


@in_parts(5)
def test_c_equals_python_over_mutated_frames(part: int) -> None:
    """Several bytes of a known frame at once, with any part of it readable, inside of tunnels and outside."""
    rng = random.Random(20 + part)
    known = list(ALL_FRAMES.values())
    for _ in range(1000):
        frame = bytearray(rng.choice(known))
        for _ in range(rng.randrange(4) if frame else 0):
            frame[rng.randrange(len(frame))] = rng.choice((0, 1, 4, 0x45, 0x60, 0xFF, rng.randrange(256)))
        readable = bytes(frame[: rng.randrange(len(frame) + 1)]) if rng.random() < 0.5 else bytes(frame)
        length = rng.choice((len(frame), len(readable), rng.randrange(2000)))
        link = rng.choice((0, 1)) | rng.choice((0, INNER))
        assert describe_in_c(readable, length, link) == digest.describe(readable, length, link), readable.hex()


@pytest.mark.parametrize("name", TUNNELS)
def test_packet_inside_a_tunnel_is_the_one_that_went_in(name: str) -> None:
    alone = describe_in_c(ethernet(frames.INNER))
    inside = describe_in_c(TUNNELS[name], link=INNER)
    assert inside.digest == alone.digest
    assert (inside.source[:4], inside.source_port, inside.ip_id) == (b"\xac\x10\0\1", 1000, 77)
    assert (inside.flags, inside.length) == (digest.FLAG_INNER, len(TUNNELS[name]))
    outside = describe_in_c(TUNNELS[name])
    assert outside.digest != alone.digest
    assert outside.flags == 0


@pytest.mark.parametrize("name", NO_TUNNELS)
def test_what_is_no_whole_tunnel_keeps_the_outer_identity(name: str) -> None:
    assert describe_in_c(NO_TUNNELS[name], link=INNER) == describe_in_c(NO_TUNNELS[name])


def test_a_tunnel_that_cannot_be_read_is_marked() -> None:
    frame = TUNNELS["vxlan"]
    assert describe_in_c(frame[:54], len(frame), INNER).flags & digest.FLAG_CUT


def test_mpls_labels_do_not_count() -> None:
    for labels in ((1,), (16, 17, 18)):
        assert describe_in_c(mpls(ipv4(udp(BODY)), *labels)).digest == describe_in_c(FRAMES["udp"]).digest


FLOWS = {
    "icmp": (0x55, 0x0800),
    "icmp, unreachable": (0, 0x0301),
    "ipv6 icmp": (9, 0x8000),
    "esp": (0xCAFE, 1),
    "udp-lite": (1000, 2000),
    "dccp": (1000, 2000),
    "sctp": (5, 6),
    "mpls": (1000, 2000),
    "qinq": (1000, 2000),
    "later fragment": (0, 0),
    "gre": (0, 0),
}


@pytest.mark.parametrize("name", FLOWS)
def test_flow_key(name: str) -> None:
    facts = describe_in_c(FRAMES[name])
    assert (facts.source_port, facts.destination_port) == FLOWS[name]


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
def test_content_id_survives_what_nfs_rewrite(name: str) -> None:
    before, after = describe_in_c(FRAMES["udp"]), describe_in_c(REWRITES[name])
    assert after.digest == before.digest
    translates = name in ("addresses", "ports and checksum")
    assert (after.id != before.id) == translates


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
