# SPDX-License-Identifier: Apache-2.0
"""Flow filters: what is kept of a packet is judged as libpcap judges the whole frame; anything else is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cffi import FFI

from otel_nfprobe.base.columns import MESSAGE_VERSION, PACKET
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.pipeline.flowfilter import FlowFilter
from tests.support.frames import BODY, describe_in_c, ethernet, ipv4, ipv6, mpls, tcp, udp

ETHERNET = 1  # DLT_EN10MB


class Oracle:
    """libpcap on whole Ethernet frames."""

    def __init__(self) -> None:
        self._ffi = FFI()
        self._ffi.cdef(
            "typedef struct pcap pcap_t; struct bpf_program { unsigned int bf_len; void *bf_insns; };"
            "struct pcap_pkthdr { long sec; long usec; uint32_t caplen; uint32_t len; };"
            "pcap_t *pcap_open_dead(int, int);"
            "int pcap_compile(pcap_t *, struct bpf_program *, const char *, int, uint32_t);"
            "int pcap_offline_filter(struct bpf_program *, struct pcap_pkthdr *, const char *);"
        )
        self._pcap = self._ffi.dlopen("libpcap.so.0.8")
        self._dead = self._pcap.pcap_open_dead(ETHERNET, 65535)

    def match(self, expression: str, frames: list[bytes]) -> list[bool]:
        program = self._ffi.new("struct bpf_program *")
        assert self._pcap.pcap_compile(self._dead, program, expression.encode(), 0, 0xFFFFFFFF) == 0, expression
        headers = [self._ffi.new("struct pcap_pkthdr *", (0, 0, len(frame), len(frame))) for frame in frames]
        return [
            bool(self._pcap.pcap_offline_filter(program, header, frame))
            for header, frame in zip(headers, frames, strict=True)
        ]


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def address(dice: random.Random) -> bytes:
    return bytes((10, dice.randrange(3), 0, dice.randrange(4)))


def make_frames(dice: random.Random, count: int) -> Iterator[bytes]:
    ports = (53, 80, 443, 1000, 5000)
    for _ in range(count):
        source, destination = dice.choice(ports), dice.choice(ports)
        body = BODY[: dice.choice((20, 40, 60))]
        transports: list[tuple[bytes, int]] = [
            (udp(body, source, destination), 17),
            (tcp(body, source=source)[:2] + destination.to_bytes(2, "big") + tcp(body)[4:], 6),
            (source.to_bytes(2, "big") + destination.to_bytes(2, "big") + bytes(8) + body, 132),
            (bytes((dice.choice((0, 8)), dice.randrange(2), 0, 0, 0, 9, 0, 1)) + body, 1),
            (bytes(8) + body, 47),
            (bytes((0, 0, 16, 0)) + bytes(12) + body, 50),
        ]
        transport, protocol = dice.choice(transports)
        kind = dice.randrange(10)
        if kind == 0:
            yield ethernet(bytes(46), 0x0806)
        elif kind < 4:
            protocol, transport = (58, bytes((128, 0)) + transport[2:]) if protocol == 1 else (protocol, transport)
            yield ethernet(ipv6(transport, protocol), 0x86DD)
        else:
            fragment = dice.choice((0, 0, 0, 0x2000, 0x2005, 0x4000))
            addresses: dict[str, Any] = {"source": address(dice), "destination": address(dice)}
            packet = ipv4(transport, protocol, fragment=fragment, ip_id=dice.randrange(5), **addresses)
            yield ethernet(packet)


def make_packets(frames: list[bytes]) -> np.ndarray:
    packets = np.zeros(len(frames), PACKET)
    for row, frame in zip(packets, frames, strict=True):
        facts = describe_in_c(frame)
        row["source"] = np.frombuffer(facts.source.ljust(16, b"\0"), np.uint8)
        row["destination"] = np.frombuffer(facts.destination.ljust(16, b"\0"), np.uint8)
        for name in ("source_port", "destination_port", "length", "ip_id", "protocol", "ip_version"):
            row[name] = getattr(facts, name)
        row["flags"] = facts.flags << 4  # NFP_PACKET_MARKS_BIT
    return packets


PRIMITIVES = (
    "port 53", "dst port 443", "src port 80", "portrange 80-1000", "tcp port 443", "udp", "tcp", "sctp", "icmp",
    "icmp6", "ip", "ip6", "host 10.1.0.1", "src host 10.0.0.2", "net 10.1.0.0/16", "dst net 10.2.0.0/24",
    "src net 10.0.0.0/8", "ip proto 47", "proto 50", "less 80", "greater 90", "len > 74", "ip[4:2] = 3",
    "icmp[icmptype] = icmp-echo",
    "icmp6[icmp6type] = icmp6-echo", "ip6 host 1:203:405:607:809:a0b:c0d:e0f", "ip6 net 1011:1213::/32",
    "udp[0:2] = 53", "tcp[2:2] & 0xff = 80", "ip[12] + 1 = 11", "ip[6:2] & 0x1fff = 0", "icmp[1] = 1",
)  # fmt: skip


def make_expression(dice: random.Random, depth: int) -> str:
    if depth == 0 or dice.random() < 0.3:
        return ("not " if dice.random() < 0.2 else "") + dice.choice(PRIMITIVES)
    parts = (make_expression(dice, depth - 1), make_expression(dice, depth - 1))
    return f"({parts[0]}) {dice.choice(('and', 'or'))} ({parts[1]})"


def match(expression: str, packets: np.ndarray) -> np.ndarray:
    try:
        return FlowFilter(expression).match(packets)
    except UsageError as error:
        if "rejects all packets" in error.sentence:  # libpcap's optimiser sees that nothing can match
            return np.zeros(len(packets), bool)
        raise


def test_the_flow_is_judged_as_the_frame_is(oracle: Oracle) -> None:
    dice = random.Random(5)
    frames = list(make_frames(dice, 400))
    packets = make_packets(frames)
    compared = 0
    for expression in [*PRIMITIVES, *(make_expression(dice, 3) for _ in range(300))]:
        found = match(expression, packets)
        assert found.tolist() == oracle.match(expression, frames), expression
        compared += 0 < found.sum() < len(frames)
    assert compared > 200


def test_tags_are_looked_through() -> None:
    packet = ipv4(udp(BODY, 1000, 53))
    tagged = [ethernet(packet, tags=b"\x81\0\0\5"), mpls(packet, 16), ethernet(packet)]
    assert FlowFilter("udp dst port 53").match(make_packets(tagged)).all()


def test_messages_and_damaged_packets() -> None:
    packets = np.zeros(2, PACKET)
    packets["ip_version"] = MESSAGE_VERSION, 4
    packets["protocol"], packets["flags"] = 6, 32
    assert FlowFilter("not port 0").match(packets).tolist() == [True, False]  # as of a capture that ends there
    assert FlowFilter("tcp").match(packets).tolist() == [False, True]
    assert FlowFilter("port 0").match(packets).tolist() == [False, False]
    assert FlowFilter("tcp").match(packets[:0]).tolist() == []


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("tcp[tcpflags] & tcp-syn != 0", "byte 13 after the IP header"),
        ("ip[8] < 5", "byte 8 of the IPv4 header"),
        ("net 10.0.0.0/8 and ip[2:2] > 1000", "byte 2 of the IPv4 header"),
        ("ip6[7] = 64", "byte 7 of the IPv6 header"),
        ("ip[6] & 0x20 != 0", "byte 6 of the IPv4 header"),
        ("ip[6:2] & 0x2000 != 0", "the flags and the offset of fragments"),
        ("ip[0] & 0xf > 5", "the length of the IP header"),
        ("igmp[0] = 0x16", "byte 0 after the IP header"),
        ("icmp[4:2] = 7", "byte 4 after the IP header"),
        ("ip[ip[4]] = 2", "at a computed offset"),
        ("ip[20] = 2", "byte 20 of the IPv4 header"),
        ("tcp[tcp[0]] = 2", "the length of the IP header"),
    ],
)
def test_what_is_not_kept_is_refused(expression: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        FlowFilter(expression)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("dst port 443 and and", "syntax error"),
        ("port no-such-service", "unknown port"),
        ("port 70000", "illegal port number"),
        ("ether host 02:00:00:00:00:01", "ethernet addresses supported only"),
        ("vlan 5", "no VLAN support"),
        ("net 10.0.0.1/8", "non-network bits set"),
        ("tcp and udp", "rejects all packets"),
    ],
)
def test_what_libpcap_does_not_take(expression: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FlowFilter(expression)
