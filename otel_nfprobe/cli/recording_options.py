# SPDX-License-Identifier: Apache-2.0
"""The options of a session's recording, and the writer that they ask for. Shared by the verbs attach and run."""

from __future__ import annotations

import argparse
from typing import Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.units import parse_bytes, parse_duration_ns, parse_seconds
from otel_nfprobe.recording.flightrecorder import MAX_BYTES, FlightWriter
from otel_nfprobe.recording.recording import RecordingHeader, RecordingWriter

SIZE_MIN = 1 << 20
SECONDS_MAX = 3600.0


def add_recording_options(group: argparse._ActionsContainer) -> None:
    """Declares them."""
    group.add_argument(
        "--max-size",
        type=parse_bytes,
        metavar="BYTES",
        help="end the recording, not the session, before its file is longer, such as 1GiB; with --flight-recorder all"
        " its files together (default there: 1GiB)",
    )
    group.add_argument(
        "--flight-recorder",
        type=parse_seconds,
        metavar="TIME",
        help="keep the last TIME of the recording in memory, such as 10s, and write it to FILE-1, FILE-2 ... when a"
        " packet is slower than --trigger, or on SIGUSR2 (attach)",
    )
    group.add_argument(
        "--trigger", type=parse_duration_ns, metavar="TIME", help="with --flight-recorder: such as 1ms (default: none)"
    )


def check_recording_options(arguments: argparse.Namespace) -> None:
    """Refuses what does not fit together."""
    usage = f"nfprobe {arguments.verb} --help"
    for name in ("max_size", "flight_recorder"):
        if getattr(arguments, name) is not None and arguments.record is None:
            raise UsageError(f"--{name.replace('_', '-')} needs --record FILE.", usage)
    if arguments.max_size is not None and arguments.max_size < SIZE_MIN:
        raise UsageError("--max-size must be 1MiB or more.", usage)
    if arguments.trigger is not None and arguments.flight_recorder is None:
        raise UsageError("--trigger needs --flight-recorder TIME.", usage)
    if arguments.flight_recorder is not None and not 0.1 <= arguments.flight_recorder <= SECONDS_MAX:
        raise UsageError("--flight-recorder must be from 100ms to 1h.", usage)


def open_writer(arguments: argparse.Namespace, header: RecordingHeader) -> RecordingWriter:
    """The writer of the session's recording.

    Raises:
        UsageError: it cannot be written there.
    """
    if arguments.flight_recorder is None:
        return RecordingWriter(arguments.record, header, arguments.max_size or 0)
    trigger_ticks = round((arguments.trigger or 0) * header.ticks_per_second / 1e9)
    max_bytes = arguments.max_size or MAX_BYTES
    return FlightWriter(arguments.record, header, arguments.flight_recorder, trigger_ticks, max_bytes)


def describe_recording(recording: RecordingWriter) -> tuple[dict[str, Any], list[str]]:
    """The object `recording` of a summary, and sentences for a person."""
    file: dict[str, Any] = {"file": recording.path, "bytes": recording.bytes_written, "left_out": recording.left_out}
    sentences = []
    if isinstance(recording, FlightWriter):
        file["files"] = recording.files
    if recording.reached_max:
        file["reached_max"] = True
        sentences.append(f"The recording {recording.path} ends before the session does: it has reached --max-size.")
    if recording.left_out:
        lost = f"{recording.left_out:,} records are not in the recording {recording.path}"
        sentences.append(f"The disk was too slow: {lost}.")
    return file, sentences
