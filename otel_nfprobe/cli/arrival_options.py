# SPDX-License-Identifier: Apache-2.0
"""The options that take arrival times from a capture file, shared by the verbs report and export."""

from __future__ import annotations

import argparse
import struct

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.causes.arrivals import (
    CAPTURED,
    PAIRS_NEEDED,
    RECEIVED,
    Matches,
    estimate_offset_ns,
    match_by_id,
    match_by_order,
    read_received,
)
from otel_nfprobe.cli.main import tell
from otel_nfprobe.cli.options import add_digest_options, find_key, parse_duration_ns
from otel_nfprobe.pipeline.capturefile import FACTS, CaptureReader, describe_packets, find_ids
from otel_nfprobe.pipeline.identity import LINK_INNER
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, replay

AUTO = "auto"
PACKETS_MAX = 8_000_000  # per session and per capture: 650 MB; further ones count as absent


def add_arrival_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options for arrival times."""
    group = parser.add_argument_group("arrival times from a capture")
    group.add_argument("--arrivals", metavar="FILE", help="pcap or pcapng file that the generator captured")
    group.add_argument(
        "--arrivals-by",
        choices=("id", "content", "order"),
        default="id",
        help="how its packets are matched: by ID; by content ID, where addresses or ports are translated before the NF;"
        " or by their order and length (default: %(default)s)",
    )
    group.add_argument(
        "--arrivals-offset",
        type=_parse_offset,
        default=0,
        metavar="TIME",
        help="added to its times, such as 30us, -1.5ms or auto; default 0: captured on the same host",
    )
    add_digest_options(group)


def take_arrivals(arguments: argparse.Namespace, reader: RecordingReader, facts: RecordingFacts) -> None:
    """Matches the capture, if one was given, with the recording; reports the result on standard error.

    Subsequent replays of `facts` have these arrivals.

    Raises:
        UsageError: it cannot be read, is not a capture, or cannot be matched in the requested way.
    """
    if arguments.arrivals is None:
        return
    captured, damage = _read_captured(arguments)
    received = _read_received(reader, facts, arguments.arrivals_by == "content")
    offset_ns = _find_offset_ns(arguments, received, captured)
    if arguments.arrivals_by == "order":
        try:
            matches = match_by_order(received, captured, offset_ns)
        except ValueError:
            raise UsageError(
                "Packets of this recording came from more than one queue: they have no common order.",
                f"nfprobe {arguments.verb} {arguments.recording} --arrivals {arguments.arrivals}",
            ) from None
    else:
        matches = match_by_id(received, captured, offset_ns)
    facts.arrivals = matches
    for sentence in (damage, _describe(arguments, matches), _compare_clocks(matches, received, captured)):
        if sentence:
            tell(sentence)


def _parse_offset(text: str) -> int | str:
    if text == AUTO:
        return AUTO
    return -parse_duration_ns(text[1:]) if text.startswith("-") else parse_duration_ns(text)


def _read_captured(arguments: argparse.Namespace) -> tuple[NDArray[np.void], str]:
    """Returns the capture's packets as rows of CAPTURED, and a sentence about its damage."""
    key = ffi.new("uint64_t[2]", struct.unpack("<2Q", find_key(arguments)))
    reader, parts, count = CaptureReader(arguments.arrivals), [np.empty(0, CAPTURED)], 0
    for piece in reader.pieces():
        if not piece.unix_ns or count >= PACKETS_MAX:
            continue
        raw = describe_packets(piece, key, LINK_INNER if arguments.inner else 0)
        facts = np.frombuffer(raw, FACTS)
        part = np.zeros(len(facts), CAPTURED)
        part["id"] = facts["digest"] if arguments.arrivals_by == "content" else find_ids(raw)
        part["unix_ns"], part["length"] = piece.unix_ns, facts["length"]
        parts.append(part)
        count += len(part)
    return np.concatenate(parts), reader.damage


def _read_received(reader: RecordingReader, facts: RecordingFacts, by_content: bool) -> NDArray[np.void]:
    clock, parts, count = facts.make_clock(), [np.empty(0, RECEIVED)], 0
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            if count < PACKETS_MAX:
                parts.append(read_received(columns, clock, by_content))
                count += len(parts[-1])
    return np.concatenate(parts)


def _find_offset_ns(arguments: argparse.Namespace, received: NDArray[np.void], captured: NDArray[np.void]) -> int:
    if arguments.arrivals_offset != AUTO:
        return int(arguments.arrivals_offset)
    offset_ns = estimate_offset_ns(received, captured)
    if offset_ns is None:
        raise UsageError(
            f"Fewer than {PAIRS_NEEDED} packets of the recording are found in {arguments.arrivals} by ID: "
            "too few to estimate the difference of the clocks.",
            f"nfprobe {arguments.verb} {arguments.recording} --arrivals {arguments.arrivals} --arrivals-offset 0",
        )
    return offset_ns


def _describe(arguments: argparse.Namespace, matches: Matches) -> str:
    name = arguments.arrivals
    if not matches.matched and not matches.impossible:
        return (
            f"{name} does not match: none of {matches.packets:,} packets was found among its {matches.captured:,} by "
            f"{arguments.arrivals_by}. It has other traffic, or IDs had another --key; it gives no arrivals."
        )
    moved = ""
    if arguments.arrivals_offset == AUTO:
        moved = f" Its times were shifted by {matches.offset_ns:,} ns, so that the fastest packet did not wait."
    return (
        f"{matches.matched:,} of {matches.packets:,} packets got their arrival from {name} ({matches.absent:,} are "
        f"not in it, {matches.impossible:,} cannot have arrived at its time).{moved}"
    )


def _compare_clocks(matches: Matches, received: NDArray[np.void], captured: NDArray[np.void]) -> str:
    if matches.impossible <= matches.matched:
        return ""
    difference = estimate_offset_ns(received, captured)
    if difference is None:
        return ""
    return f"Its clock differs from the recording's by about {difference:,} ns; --arrivals-offset auto corrects that."
