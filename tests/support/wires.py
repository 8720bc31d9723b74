# SPDX-License-Identifier: Apache-2.0
"""Two wires (veth pairs) in a network namespace: frames go into one and are awaited at the end of the other.

`nsenter --net=/proc/PID/ns/net python wires.py IN OUT PLAYED WRITTEN` plays a capture file there and writes what comes.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from tests.support.traffic import read_pcap, write_pcap

MTU = 9000
# Run before a program that is to have these interfaces: wire0 and wire1. Packets go in and come out at end0 and end1.
LAY = " && ".join(
    ["echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6", "ip link set lo up"]
    + [f"ip link add wire{n} mtu {MTU} type veth peer name end{n} mtu {MTU}" for n in range(2)]
    + [f"ip link set {name}{n} up" for n in range(2) for name in ("wire", "end")]
)
BURST = 256  # frames in flight, of which a socket's memory holds more
ALL_PROTOCOLS, RECEIVED_BYTES = 3, 1 << 16
SO_RCVBUFFORCE = 33  # beyond what the system allows without it
SILENCE_S = 10.0


def play(in_: str, out: str, played: Path, written: Path) -> None:
    """Sends the next frames when all before have come, or none has for so long."""
    sender, receiver = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) for _ in range(2))
    sender.bind((in_, 0))
    receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    receiver.bind((out, ALL_PROTOCOLS))
    receiver.settimeout(SILENCE_S)
    frames = [frame for _, frame, _ in read_pcap(played)]
    came: list[bytes] = []
    try:
        for start in range(0, len(frames), BURST):
            burst = frames[start : start + BURST]
            for frame in burst:
                sender.send(frame)
            came += [receiver.recv(RECEIVED_BYTES) for _ in burst]
    except TimeoutError:
        pass
    write_pcap(written, came)


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
