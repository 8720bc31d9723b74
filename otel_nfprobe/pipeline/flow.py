# SPDX-License-Identifier: Apache-2.0
"""A packet's flow as text: `UDP 10.0.0.1:1000 > 10.0.0.2:53`."""

from __future__ import annotations

from socket import AF_INET, AF_INET6, inet_ntop

import numpy as np

from otel_nfprobe.base.columns import MESSAGE_VERSION

PROTOCOLS = {
    1: "ICMP",
    6: "TCP",
    17: "UDP",
    33: "DCCP",
    47: "GRE",
    50: "ESP",
    51: "AH",
    58: "ICMPv6",
    132: "SCTP",
    136: "UDP-Lite",
}
_WITH_PORTS = (6, 17, 33, 132, 136)
_ICMP, _ESP, _ICMP6 = 1, 50, 58


def format_flow(version: int, protocol: int, source: bytes, destination: bytes, ports: tuple[int, int]) -> str:
    """Formats the fields that identify a flow, as found by the digest's code (digest.PacketFacts).

    Args:
        version: 4 or 6.
        protocol: of IP.
        source: address in network order; only the first four bytes for IPv4.
        destination: as source.
        ports: or their equivalent in other protocols.
    """
    ends = []
    for address, port in ((source, ports[0]), (destination, ports[1])):
        text = inet_ntop(AF_INET, address[:4]) if version == 4 else inet_ntop(AF_INET6, address)
        if protocol in _WITH_PORTS:
            text = f"{text}:{port}" if version == 4 else f"[{text}]:{port}"
        ends.append(text)
    flow = f"{PROTOCOLS.get(protocol, f'protocol {protocol}')} {ends[0]} > {ends[1]}"
    if protocol in (_ICMP, _ICMP6):
        flow += f" type {ports[1] >> 8} code {ports[1] & 255}" + (f" id {ports[0]}" if ports[0] else "")
    elif protocol == _ESP:
        flow += f" spi 0x{ports[0] << 16 | ports[1]:08x}"
    return flow


def describe_flow(packet: np.void, topic: str = "") -> str:
    """Returns the flow of a packet (a row of dtype PACKET), or `not IP`.

    For a message: its topic and, if it has one, its ID: `topic plant/7/temperature, message 12`.
    """
    version = int(packet["ip_version"])
    if version == MESSAGE_VERSION:
        number = int(packet["ip_id"])
        return f"topic {topic or 'unknown'}" + (f", message {number}" if number else "")
    if version not in (4, 6):
        return "not IP"
    ends = packet["source"].tobytes(), packet["destination"].tobytes()
    ports = int(packet["source_port"]), int(packet["destination_port"])
    return format_flow(version, int(packet["protocol"]), *ends, ports)
