# SPDX-License-Identifier: Apache-2.0
"""`nfprobe ids`: every form of capture file gives the ids that docs/identity.md defines; bad files are told of."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.pipeline import capturefile
from otel_nfprobe.pipeline.identity import DEFAULT_KEY
from tests.support.frames import FRAMES, TUNNELS, ethernet, ipv4, udp
from tests.support.packet_digest import mix, xxh3
from tests.support.traffic import make_frames, write_pcap

NS = 1_700_000_000_123_456_000
ETHERNET, RAW, LINUX_SLL, LINUX_SLL2, LOOPBACK = 1, 101, 113, 276, 0


def expected_ids(frame: bytes, key: bytes = DEFAULT_KEY) -> tuple[str, str]:
    """Id and content id of UDP, TCP or ICMP echo in IPv4, or UDP in IPv6, straight from docs/identity.md."""
    ip = frame[14:]
    if ip[0] >> 4 == 4:
        protocol, body = ip[9], ip[20 : int.from_bytes(ip[2:4], "big")]
        message = bytes([4, protocol]) + struct.pack(">H", int.from_bytes(ip[6:8], "big") & 0x3FFF)
        message += bytes(2) + ip[4:6] + struct.pack(">I", len(body))
        addresses = ip[12:16].ljust(16, b"\0") + ip[16:20].ljust(16, b"\0")
    else:
        protocol, body = ip[6], ip[40 : 40 + int.from_bytes(ip[4:6], "big")]
        message = bytes([6, protocol]) + bytes(6) + struct.pack(">I", len(body))
        addresses = ip[8:40]
    ends = body[0:4]
    if protocol == 6:
        fields, payload = body[4:16], body[20:52]
    elif protocol == 17:
        fields, payload = body[4:6], body[8:40]
    else:
        fields, payload, ends = body[0:2] + body[6:8], body[8:40], body[4:6] + body[0:2]
    message += fields.ljust(12, b"\0") + payload.ljust(32, b"\0")
    id = content_id = xxh3(message, key)
    for word in struct.unpack(">5Q", addresses + ends + bytes([0, 0, protocol, ip[0] >> 4])):
        id = mix(id ^ word)
    return f"{id:016x}", f"{content_id:016x}"


def pcap(
    frames: Sequence[bytes],
    link: int = ETHERNET,
    order: str = "<",
    nanoseconds: bool = False,
    snap: int = 65535,
    modified: bool = False,
) -> bytes:
    magic = 0xA1B2CD34 if modified else 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    data = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snap, link)
    fraction = NS % 10**9 // (1 if nanoseconds else 1000)
    for frame in frames:
        data += struct.pack(order + "4I", NS // 10**9, fraction, len(frame[:snap]), len(frame))
        data += bytes(8 if modified else 0) + frame[:snap]
    return data


def block(order: str, kind: int, body: bytes) -> bytes:
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", 12 + len(body))
    return struct.pack(order + "I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str = "<", link: int = ETHERNET, options: bytes = b"", snap: int = 0) -> bytes:
    return block(order, 1, struct.pack(order + "HHI", link, 0, snap) + options)


def packet(frame: bytes, order: str = "<", number: int = 0, ticks: int = NS // 1000, kind: int = 6) -> bytes:
    words = struct.pack(order + "I", number) if kind == 6 else struct.pack(order + "HH", number, 0)
    words += struct.pack(order + "4I", ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return block(order, kind, words + frame)


def pcapng(frames: Sequence[bytes], order: str = "<") -> bytes:
    return section(order) + interface(order) + b"".join(packet(frame, order) for frame in frames)


def sll(frame: bytes) -> bytes:
    return bytes([0, 4, 0, 1, 0, 6]) + frame[6:12] + bytes(2) + frame[12:]


def sll2(frame: bytes) -> bytes:
    return frame[12:14] + bytes(2) + struct.pack(">IHBB", 3, 1, 4, 6) + frame[6:12] + bytes(2) + frame[14:]


def both(packet: Any) -> tuple[str, str]:
    return packet["id"], packet["content_id"]


class Ids:
    """Runs the command on bytes."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self.capsys = capsys
        self.errors = ""

    def run(self, data: bytes, *options: str, status: int = 0) -> str:
        self.path.write_bytes(data)
        got = main(["ids", str(self.path), *options])
        captured = self.capsys.readouterr()
        self.errors = captured.err
        assert got == status, captured.err
        return captured.out

    def json(self, data: bytes, *options: str, status: int = 0) -> Any:
        return json.loads(self.run(data, "--json", *options, status=status).splitlines()[-1])

    def read(self, data: bytes, *options: str, status: int = 0) -> list[tuple[str, str]]:
        return [both(packet) for packet in self.json(data, *options, status=status)["packets"]]


@pytest.fixture
def ids(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ids:
    monkeypatch.delenv("NFPROBE_KEY", raising=False)
    return Ids(tmp_path / "file.pcap", capsys)


SOME = list(make_frames(200))
EXPECTED = [expected_ids(frame) for frame in SOME]
FORMS = {
    "little, us": pcap(SOME),
    "big, us": pcap(SOME, order=">"),
    "little, ns": pcap(SOME, nanoseconds=True),
    "big, ns": pcap(SOME, order=">", nanoseconds=True),
    "modified": pcap(SOME, modified=True),
    "length of a checksum": pcap(SOME, 0x50000001),
    "raw ip": pcap([frame[14:] for frame in SOME], RAW),
    "loopback": pcap([b"\2\0\0\0" + frame[14:] for frame in SOME], LOOPBACK),
    "cooked": pcap([sll(frame) for frame in SOME], LINUX_SLL),
    "cooked 2": pcap([sll2(frame) for frame in SOME], LINUX_SLL2),
    "pcapng, little": pcapng(SOME),
    "pcapng, big": pcapng(SOME, ">"),
    "pcapng, old packets": section() + interface() + b"".join(packet(frame, kind=2) for frame in SOME),
    "pcapng, two sections": pcapng(SOME[:50]) + pcapng(SOME[50:]),
    "pcapng, simple packets": section()
    + interface()
    + b"".join(block("<", 3, struct.pack("<I", len(frame)) + frame) for frame in SOME),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_documented_ids(form: str, ids: Ids) -> None:
    got = ids.json(FORMS[form])
    assert [both(packet) for packet in got["packets"]] == EXPECTED
    assert got["count"] == len(SOME)
    assert got["damage"] is None
    if "simple" not in form:  # those have no time
        assert {packet["unix_ns"] for packet in got["packets"]} == {NS}


def test_pieces_of_any_size_give_the_same(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    data = section() + interface() + block("<", 0xBAD, bytes(4000)) + b"".join(packet(frame) for frame in SOME)
    for size in (1, 97, 1021):
        monkeypatch.setattr(capturefile, "CHUNK_BYTES", size)
        assert ids.read(data) == EXPECTED
        assert ids.read(FORMS["big, us"]) == EXPECTED


def test_a_line_for_people(ids: Ids) -> None:
    frames = [FRAMES["udp"], FRAMES["esp"], FRAMES["ipv6 icmp"], FRAMES["arp"], FRAMES["udp"], FRAMES["later fragment"]]
    lines = ids.run(pcap(frames, nanoseconds=True)).splitlines()
    time = "1700000000.123456000"
    assert lines[0] == f"1  {time}  {'  '.join(expected_ids(FRAMES['udp']))}  UDP 10.0.0.1:1000 > 10.0.0.2:2000  106"
    assert lines[1].endswith("  ESP 10.0.0.1 > 10.0.0.2 spi 0xcafe0001  106")
    ends = "1:203:405:607:809:a0b:c0d:e0f > 1011:1213:1415:1617:1819:1a1b:1c1d:1e1f"
    assert lines[2].endswith(f"  ICMPv6 {ends} type 128 code 0 id 9  126")
    assert lines[3].endswith("  ethertype 0x0806  60")
    assert lines[4] == lines[0].replace("1 ", "5 ", 1) + "  repeated"
    assert lines[5].endswith("  98  fragment")
    assert ids.errors == ""


def test_address_translation_changes_the_id_and_not_the_content_id(ids: Ids) -> None:
    before = [ethernet(ipv4(udp(b"same"), source=bytes([10, 0, 0, n]), ip_id=n)) for n in range(50)]
    after = [
        ethernet(ipv4(udp(b"same", 40000 + n, checksum=n), source=b"\xc0\0\2\1", ttl=63, ip_id=n)) for n in range(50)
    ]
    inside, outside = ids.read(pcap(before)), ids.read(pcap(after))
    assert [content for _, content in inside] == [content for _, content in outside]
    assert len({id for id, _ in inside + outside}) == 100


def test_equal_packets_of_many_flows_are_not_repeated(ids: Ids) -> None:
    flows = [
        ethernet(ipv4(udp(bytes(18), 1024 + n % 64, 53), source=bytes([10, 0, 0, n // 64]), ip_id=0))
        for n in range(4096)
    ]
    got = ids.json(pcap(flows))
    assert got["repeated"] == 0
    assert len({packet["id"] for packet in got["packets"]}) == 4096
    assert len({packet["content_id"] for packet in got["packets"]}) == 1
    assert ids.json(pcap(flows[:9] * 2))["repeated"] == 9


def test_short_captures_are_marked_only_where_the_id_suffers(ids: Ids) -> None:
    frame = ethernet(ipv4(udp(bytes(range(200)))))
    enough = ids.json(pcap([frame], snap=14 + 20 + 8 + 32))["packets"][0]
    assert (both(enough), enough["length"], enough["marks"]) == (expected_ids(frame), len(frame), [])
    short = ids.json(pcap([frame], snap=14 + 20 + 8 + 31))
    assert short["packets"][0]["marks"] == ["truncated"]
    assert short["truncated"] == 1
    assert not set(both(short["packets"][0])) & set(expected_ids(frame))


def test_inner_and_key(ids: Ids, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pcap(list(TUNNELS.values()))
    inner = ids.json(data, "--inner")
    assert len({packet["id"] for packet in inner["packets"]}) == 1
    assert inner["packets"][0]["flow"] == "UDP 172.16.0.1:1000 > 10.0.0.2:2000"
    assert inner["inner"] == len(TUNNELS)
    key = bytes(range(16))
    assert ids.read(pcap(SOME), "--key", key.hex()) == [expected_ids(frame, key) for frame in SOME]
    monkeypatch.setenv("NFPROBE_KEY", key.hex())
    assert ids.read(pcap(SOME)) == [expected_ids(frame, key) for frame in SOME]
    for wrong in ("00", "x" * 32, ""):
        ids.run(pcap(SOME), "--key", wrong, status=2)
        assert "--key must have 32 hexadecimal digits." in ids.errors


def test_interfaces_of_pcapng(ids: Ids) -> None:
    nanoseconds = struct.pack("<HHB3x", 9, 1, 9) + struct.pack("<HHqHH", 14, 8, 100, 0, 0)
    binary = struct.pack("<HHB3x", 9, 1, 0x80 | 20)
    data = section() + interface(options=nanoseconds) + interface(options=binary)
    data += packet(SOME[0], ticks=NS) + packet(SOME[1], number=1, ticks=5 << 19)
    got = ids.json(data)
    assert [both(packet) for packet in got["packets"]] == EXPECTED[:2]
    assert [packet["unix_ns"] for packet in got["packets"]] == [NS + 100 * 10**9, 2_500_000_000]


def test_interfaces_that_libpcap_does_not_read_together(ids: Ids) -> None:
    data = section() + interface() + packet(SOME[0]) + interface(link=RAW) + packet(SOME[1][14:], number=1)
    assert ids.read(data, status=1) == EXPECTED[:1]
    assert "after packet 1: an interface has a type 101 different from the type of the first interface." in ids.errors


@pytest.mark.parametrize("form", ["little, us", "pcapng, big"])
def test_a_file_that_is_cut_is_read_as_far_as_it_goes(form: str, ids: Ids) -> None:
    data = FORMS[form]
    assert ids.read(data[:-5], status=1) == EXPECTED[:-1]
    assert ids.errors.count("\n") == 1
    assert f"is truncated or damaged after packet {len(SOME) - 1}: truncated" in ids.errors
    half = ids.read(data[: len(data) // 2], status=1)
    assert 50 < len(half) < 150
    assert half == EXPECTED[: len(half)]


BAD_FILES = {
    "empty": (b"", "is not a capture file (pcap or pcapng)."),
    "text": (b"no capture at all\n", "is not a capture file (pcap or pcapng)."),
    "elf": (b"\x7fELF" + bytes(100), "is not a capture file (pcap or pcapng)."),
    "gzip": (b"\x1f\x8b\x08\0" + bytes(50), "is compressed."),
    "header cut": (pcap([])[:20], "is not a complete capture file: truncated"),
    "link type": (pcap(SOME, 127), "has link type 127"),
    "pcapng cut": (pcapng([])[:20], "is not a complete capture file"),
    "pcapng damaged": (section()[:8] + bytes(40), "is not a capture file (pcap or pcapng)."),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files(name: str, ids: Ids) -> None:
    data, sentence = BAD_FILES[name]
    for options in ((), ("--json",)):
        assert ids.run(data, *options, status=2) == ""
        first, second = ids.errors.splitlines()
        assert first.startswith("nfprobe: ")
        assert sentence in first
        assert second.startswith("next: ")


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["ids", str(tmp_path / "none.pcap")]) == 2
    assert main(["ids", str(tmp_path)]) == 2
    assert "Cannot read" in capsys.readouterr().err


def test_damage_ends_the_file(ids: Ids) -> None:
    damaged = pcap(SOME[:3]) + struct.pack("<4I", 0, 0, 1 << 30, 0) + bytes(100)
    assert ids.read(damaged, status=1) == EXPECTED[:3]
    assert "is truncated or damaged after packet 3: " in ids.errors
    for broken in (
        packet(SOME[0], number=1),
        block("<", 6, bytes(8)),
        packet(SOME[0])[:-4] + bytes(4),
        struct.pack("<II", 6, 1 << 30) + bytes(100),
        struct.pack("<II", 0xBAD, 13) + bytes(100),
        block("<", 6, struct.pack("<5I", 0, 0, 0, 5000, 5000) + bytes(60)),
    ):
        assert ids.read(pcapng(SOME[:3]) + broken + packet(SOME[4]), status=1) == EXPECTED[:3]
        assert "is truncated or damaged after packet 3: " in ids.errors


@pytest.mark.thorough
def test_any_bytes_end_in_a_status(ids: Ids) -> None:
    rng = random.Random(3)
    whole = [FORMS[form][:3000] for form in FORMS]
    for _ in range(300):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        ids.path.write_bytes(data[: rng.randrange(len(data))])
        assert main(["ids", str(ids.path), "--json"]) in (0, 1, 2)
    ids.capsys.readouterr()


def test_standard_input_is_read_as_it_comes() -> None:
    """A packet is told before the next one is there."""
    words = [sys.executable, "-u", "-m", "otel_nfprobe", "ids", "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        start = pcap([])
        process.stdin.write(start)
        for frame, expected in zip(SOME[:3], EXPECTED, strict=False):
            process.stdin.write(pcap([frame])[len(start) :])
            process.stdin.flush()
            assert tuple(process.stdout.readline().decode().split()[2:4]) == expected


def test_memory_does_not_grow_with_the_file(ids: Ids) -> None:
    write_pcap(ids.path, make_frames(30_000))
    reader = capturefile.CaptureReader(str(ids.path))
    sizes = [len(piece.data) for piece in reader.pieces()]
    assert len(sizes) > 3
    assert max(sizes) <= 2 * capturefile.CHUNK_BYTES
