# SPDX-License-Identifier: Apache-2.0
"""`nfprobe ids FILE.pcap`: prints the IDs of each packet of a capture, to search for in Jaeger."""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi
from otel_nfprobe.cli.main import EXIT_DONE, EXIT_NOT_DONE, tell
from otel_nfprobe.cli.options import add_digest_options, find_key
from otel_nfprobe.pipeline.capturefile import (
    FACTS,
    FACTS_BYTES,
    SECOND_NS,
    CaptureReader,
    describe_packets,
    find_ids,
)
from otel_nfprobe.pipeline.flow import format_flow
from otel_nfprobe.pipeline.identity import FLAG_CUT, FLAG_FRAGMENT, FLAG_INNER, FLAG_MALFORMED, LINK_INNER
from otel_nfprobe.pipeline.repeats import FOREVER_NS, Repeats, Seen

IDS_MAX = 4_000_000  # remembered per file: 64 MiB
FLOWS_MAX = 1 << 16  # whose text is cached

_FLOW = struct.Struct("<16s16sHH4x2xHBB")  # the fields of struct nfp_packet_facts from its addresses on
_FLOW_AT = 8
_UNKNOWN_TYPE = 0
# The flags of facts are shifted above those that `Repeats` returns.
_FACTS_SHIFT = 2
_MARKS = {
    Seen.BEFORE: "repeated",
    Seen.PERHAPS: "unsure",
    FLAG_CUT << _FACTS_SHIFT: "truncated",
    FLAG_FRAGMENT << _FACTS_SHIFT: "fragment",
    FLAG_MALFORMED << _FACTS_SHIFT: "malformed",
    FLAG_INNER << _FACTS_SHIFT: "inner",
}


class IdsCommand:
    """Prints one line per packet: number, time, ID, content ID, flow, length, and marks: repeated, if the ID occurred
    before; truncated, if the capture is too short for the ID; fragment, malformed, inner.

    FILE is pcap or pcapng, `-` standard input: tcpdump -w - | nfprobe ids -
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("capture", metavar="FILE", help="pcap or pcapng file, or -")
        add_digest_options(parser)
        parser.add_argument("--json", action="store_true", help="one JSON object: packets, counts, damage")

    def run(self, arguments: argparse.Namespace) -> int:
        key = struct.unpack("<2Q", find_key(arguments))
        reader = CaptureReader(arguments.capture)
        printer = _Printer(reader, ffi.new("uint64_t[2]", key), LINK_INNER if arguments.inner else 0)
        printer.print_json() if arguments.json else printer.print_lines()
        for sentence in printer.sentences():
            tell(sentence)
        return EXIT_NOT_DONE if reader.damage else EXIT_DONE


@dataclass
class _Printer:
    # One capture being printed.
    reader: CaptureReader
    key: object  # cffi: uint64_t[2]
    link_flags: int
    count: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_MARKS.values(), 0))
    _repeats: Repeats = field(default_factory=lambda: Repeats(FOREVER_NS, IDS_MAX))
    _flows: dict[bytes, str] = field(default_factory=dict)
    _names: dict[int, list[str]] = field(default_factory=dict)

    def print_lines(self) -> None:
        for number, unix_ns, (id, content), flow, length, marks in self._packets():
            seconds, ns = divmod(unix_ns, SECOND_NS)
            more = "  " + " ".join(marks) if marks else ""
            sys.stdout.write(f"{number}  {seconds}.{ns:09d}  {id:016x}  {content:016x}  {flow}  {length}{more}\n")

    def print_json(self) -> None:
        before = '{"packets":['  # written late: a file that is not a capture gives an error and no output
        for number, unix_ns, (id, content), flow, length, marks in self._packets():
            sys.stdout.write(
                f'{before}{{"number":{number},"unix_ns":{unix_ns},"id":"{id:016x}","content_id":"{content:016x}",'
                f'"flow":"{flow}","length":{length},"marks":{json.dumps(marks) if marks else "[]"}}}'
            )
            before = ","
        rest = {"count": self.count, **self.counts, "damage": self.reader.damage or None}
        if not self.count:
            sys.stdout.write(before)
        sys.stdout.write("]," + json.dumps(rest, separators=(",", ":"))[1:] + "\n")

    def sentences(self) -> Iterator[str]:
        """Yields what the user must know about the capture."""
        if self.reader.damage:
            yield self.reader.damage
        if self.counts["unsure"]:
            yield f"IDs of {IDS_MAX:,} packets were remembered; later ones marked unsure may be repeated."

    def _packets(self) -> Iterator[tuple[int, int, tuple[int, int], str, int, list[str]]]:
        for piece in self.reader.pieces():
            if not piece.unix_ns:
                continue
            raw = describe_packets(piece, self.key, self.link_flags)
            facts, ids = np.frombuffer(raw, FACTS), find_ids(raw)
            marks = self._mark(facts, ids)
            flows = self._find_flows(raw)
            numbers = range(self.count + 1, self.count + 1 + len(facts))
            self.count += len(facts)
            names = map(self._names_of, marks.tolist())
            both = zip(ids.tolist(), facts["digest"].tolist(), strict=True)
            columns = (piece.unix_ns, both, flows, facts["length"].tolist(), names)
            yield from zip(numbers, *columns, strict=True)

    def _mark(self, facts: NDArray[np.void], ids: NDArray[np.uint64]) -> NDArray[np.uint8]:
        marks = self._repeats.look(ids, np.zeros(len(facts), np.uint64))
        marks |= facts["flags"] << np.uint8(_FACTS_SHIFT)
        for bit, name in _MARKS.items():
            self.counts[name] += int(np.count_nonzero(marks & np.uint8(bit)))
        return marks

    def _names_of(self, marks: int) -> list[str]:
        if marks not in self._names:
            self._names[marks] = [name for bit, name in _MARKS.items() if marks & bit]
        return self._names[marks]

    def _find_flows(self, raw: bytes) -> list[str]:
        flows, known = [], self._flows
        if len(known) > FLOWS_MAX:
            known.clear()
        for at in range(_FLOW_AT, len(raw), FACTS_BYTES):
            key = raw[at : at + 36] + raw[at + 42 : at + 46]
            flow = known.get(key)
            if flow is None:
                flow = known[key] = _format(raw, at)
            flows.append(flow)
        return flows


def _format(raw: bytes, at: int) -> str:
    source, destination, source_port, destination_port, ether_type, protocol, version = _FLOW.unpack_from(raw, at)
    if version:
        return format_flow(version, protocol, source, destination, (source_port, destination_port))
    return f"ethertype 0x{ether_type:04x}" if ether_type != _UNKNOWN_TYPE else "unknown frame"
