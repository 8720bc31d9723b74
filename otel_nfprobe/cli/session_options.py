# SPDX-License-Identifier: Apache-2.0
"""The options of a verb that runs a session, and which of them cannot be combined."""

from __future__ import annotations

import argparse
from typing import Any

from otel_nfprobe.arch.snippet import read_capture
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.cli.main import tell
from otel_nfprobe.cli.options import (
    add_correlation_options,
    add_digest_options,
    add_flow_option,
    add_limit_option,
    add_span_options,
    find_flow,
    find_identity,
    find_time_scale,
    parse_bytes,
    parse_duration_ns,
    parse_fraction,
    parse_hertz,
    parse_seconds,
)
from otel_nfprobe.cli.session_spans import add_spool_options
from otel_nfprobe.counters.availability import find_refusal, find_software_refusal
from otel_nfprobe.counters.choice import CounterChoice, choose_counters
from otel_nfprobe.linux.perfring import max_hertz
from otel_nfprobe.monitor.detail import ALWAYS, AUTO, ONE_IN
from otel_nfprobe.monitor.latecapture import ALL, NONE, SLOW
from otel_nfprobe.recording.flightrecorder import MAX_BYTES, FlightWriter
from otel_nfprobe.recording.recording import RecordingHeader, RecordingWriter
from otel_nfprobe.shm.session import RING_BYTES_MAX, RING_BYTES_MIN
from otel_nfprobe.target.target import Target

# ---- --counters -----------------------------------------------------------------------------------------------------
# `--counters`: what to count in addition to time, and whether this machine can.


def add_counter_options(group: Any) -> None:
    """Declares the option."""
    group.add_argument(
        "--counters",
        metavar="NAME,...",
        help="performance counters to read with each timestamp: names of perf list, raw codes (r01c2,"
        " cpu/event=0xc2,umask=1/), cache, frontend, branch, topdown-l1, or auto: those available (default: none)",
    )


def find_counters(arguments: argparse.Namespace) -> CounterChoice:
    """Returns the requested counters that this machine has; reports missing ones once. Touches no target.

    Raises:
        UsageError: a name is unknown.
        NfprobeError: counters requested by name are not available.
    """
    if arguments.counters is None:
        return CounterChoice()
    choice, sentences = decide(arguments.counters)
    for sentence in sentences:
        tell(sentence)
    return choice


def decide(text: str) -> tuple[CounterChoice, list[str]]:
    """Returns the requested counters that this machine has, and messages for the user.

    Raises:
        UsageError: a name is unknown.
        NfprobeError: counters requested by name are not available.
    """
    choice = choose_counters(text)
    refusal = find_refusal(choice)
    if refusal is not None and not choice.auto:
        raise NfprobeError(f"Counters are not available: {refusal.reason}.", refusal.advice)
    lacking = find_software_refusal(choice)
    if lacking is not None and not choice.auto:
        raise NfprobeError(f"Counters are not available: {lacking.reason}.", lacking.advice)
    sentences = list(choice.notes)
    if refusal is not None:
        sentences = [f"no performance counters, times only: {refusal.reason}."]
        choice = CounterChoice(auto=True, counters=choice.software)
    if lacking is not None:
        sentences.append(f"no software counters: {lacking.reason}.")
        choice = CounterChoice(auto=True, counters=choice.hardware)
    return choice, sentences


def check_counting(target: Target, choice: CounterChoice) -> None:
    """Refuses counters requested by name that this target cannot have. The target has been checked.

    Raises:
        NfprobeError: its seccomp filter forbids passing them.
    """
    if choice.hardware and not choice.auto and target.counters_forbidden:
        sentence = f"Process {target.pid} cannot be given counters: {target.counters_forbidden}."
        raise NfprobeError(sentence, f"nfprobe attach {target.pid} --counters auto")


# ---- the recording --------------------------------------------------------------------------------------------------
# The options of a session's recording, and their writer. Shared by the verbs attach and run.


SIZE_MIN = 1 << 20
SECONDS_MAX = 3600.0


def add_recording_options(group: argparse._ActionsContainer) -> None:
    """Declares them."""
    group.add_argument(
        "--max-size",
        type=parse_bytes,
        metavar="BYTES",
        help="end the recording, not the session, at this file size, such as 1GiB; with --flight-recorder all"
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
    """Refuses invalid combinations."""
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
    """Returns the writer of the session's recording.

    Raises:
        UsageError: the recording cannot be written there.
    """
    if arguments.flight_recorder is None:
        return RecordingWriter(arguments.record, header, arguments.max_size or 0)
    trigger_ticks = round((arguments.trigger or 0) * header.ticks_per_second / 1e9)
    max_bytes = arguments.max_size or MAX_BYTES
    return FlightWriter(arguments.record, header, arguments.flight_recorder, trigger_ticks, max_bytes)


def describe_recording(recording: RecordingWriter) -> tuple[dict[str, Any], list[str]]:
    """Returns the object `recording` of a summary, and sentences for the user."""
    file: dict[str, Any] = {"file": recording.path, "bytes": recording.bytes_written, "left_out": recording.left_out}
    sentences = []
    if isinstance(recording, FlightWriter):
        file["files"] = recording.files
    if recording.reached_max:
        file["reached_max"] = True
        sentences.append(f"The recording {recording.path} ends before the session: it has reached --max-size.")
    if recording.left_out:
        lost = f"{recording.left_out:,} records are not in the recording {recording.path}"
        sentences.append(f"The disk was too slow: {lost}.")
    return file, sentences


# ---- all of them ----------------------------------------------------------------------------------------------------


RING_BYTES = 16 << 20


def add_session_options(
    parser: argparse.ArgumentParser, json_to: str = "standard output", until: str = "Ctrl-C"
) -> None:
    """Declares the options. `json_to` is where the summary object goes, `until` the duration without --for."""
    _add_choice(parser)
    _add_selection(parser)
    _add_outputs(parser, json_to, until)


def _add_choice(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is probed")
    group.add_argument(
        "--functions",
        action="append",
        default=[],
        metavar="GLOB",
        help="functions to probe: module:name, module:0xoffset, name or *; repeatable (default: the adapter's)",
    )
    group.add_argument(
        "--exclude", action="append", default=[], metavar="GLOB", help="functions not to probe; repeatable"
    )
    group.add_argument(
        "--adapter", default="auto", metavar="NAME", help="auto, none, a name, or a YAML file (default: auto)"
    )
    group.add_argument(
        "--batch-function",
        metavar="MODULE:NAME",
        help="for any program: a batch is everything between two calls of this function on a thread"
        " (--adapter generic)",
    )
    group.add_argument(
        "--archive",
        action="append",
        default=[],
        metavar="FILE.a",
        help="name unnamed functions by matching code in this static archive; repeatable",
    )
    group.add_argument(
        "--capture",
        action="append",
        default=[],
        metavar="'GLOB: SNIPPET'",
        help="probe these functions and capture a value at their entry: Intel instructions that put it into rax,"
        " such as 'libz.so.1:deflate: mov rax, [rdi+8]'; repeatable",
    )
    group.add_argument(
        "--trial",
        type=parse_seconds,
        metavar="TIME",
        help="without --functions: first determine, in at most this time, which other functions than the adapter's are"
        " worth a probe; 0s: probe the adapter's only (default: attach 1s, run 0s)",
    )
    _add_manner(group)


def _add_manner(group: argparse._ArgumentGroup) -> None:
    # How it is probed.
    group.add_argument(
        "--detail",
        choices=(ALWAYS, AUTO),
        default=ALWAYS,
        help="auto: time inner functions only while a queue has a backlog, in the batches after one that took longer"
        f" than --slower-than or is among the --slowest, and in one of {ONE_IN} batches (default: always)",
    )
    group.add_argument("--strategy", metavar="NAME", help=f"only this strategy: {' or '.join(STRATEGIES)}")
    group.add_argument(
        "--no-stop",
        action="store_true",
        help="never stop the target's threads: functions whose code would change are refused",
    )
    group.add_argument(
        "--max-share-of-core",
        type=parse_fraction,
        metavar="SHARE",
        help="limit of the probes' cost in shares of a core, such as 5%%: the costliest probes are removed, and"
        " the session ends if that is not enough",
    )
    group.add_argument(
        "--follow-forks",
        action="store_true",
        help="also measure the processes that the target forks, each with its own recording FILE.PID",
    )
    group.add_argument(
        "--ring-size",
        type=parse_bytes,
        default=RING_BYTES,
        metavar="BYTES",
        help="size of each thread's ring (default: 16MiB)",
    )
    add_counter_options(group)
    group.add_argument(
        "--profile",
        type=parse_hertz,
        metavar="HZ",
        help="record where each thread is, and its counters (--counters), HZ times per second"
        " that it runs, such as 997, for report --format flame (default: never)",
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which packets")
    group.add_argument(
        "--packets",
        choices=(ALL, SLOW, NONE),
        default=SLOW,
        help="identify every packet; those that are late, and a sample; or measure batches only (default: slow)",
    )
    group.add_argument(
        "--slower-than", type=parse_duration_ns, metavar="TIME", help="export packets slower than this, such as 50us"
    )
    group.add_argument(
        "--slowest",
        type=parse_fraction,
        metavar="SHARE",
        help="export the slowest packets, about this share, such as 0.1%%",
    )
    group.add_argument(
        "--sample",
        type=parse_fraction,
        metavar="SHARE",
        help="export this share of all packets, of --packets slow by their batch, of all by their id; 1: everything",
    )
    add_flow_option(group, "export")
    add_limit_option(group)
    add_digest_options(group)
    add_correlation_options(group)


def _add_outputs(parser: argparse.ArgumentParser, json_to: str, until: str) -> None:
    group = parser.add_argument_group("how long, and where to")
    group.add_argument(
        "--for",
        dest="seconds",
        type=parse_seconds,
        metavar="TIME",
        help=f"how long, such as 10s (default: until {until})",
    )
    group.add_argument("--record", metavar="FILE", help="write a recording")
    add_recording_options(group)
    group.add_argument("--endpoint", metavar="URL", help="OTLP receiver (default: OTEL_EXPORTER_OTLP_ENDPOINT)")
    group.add_argument(
        "--metrics-listen",
        metavar="[HOST:]PORT",
        help="show metrics of all packets there for Prometheus (default host: 127.0.0.1)",
    )
    group.add_argument(
        "--exporter",
        metavar="NAME",
        help="otlp, none, or an exporter installed for the OpenTelemetry SDK, such as console; for few spans"
        " (default: OTEL_TRACES_EXPORTER)",
    )
    add_span_options(group)
    add_spool_options(group)
    group.add_argument("--service", metavar="NAME", help="service.name of the spans (default: the executable's name)")
    group.add_argument(
        "--json", action="store_true", help=f"the last line of {json_to} is the summary as one JSON object"
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="the whole summary, also where it is longer than a terminal"
    )


def check_session_options(arguments: argparse.Namespace) -> None:
    """Refuses invalid combinations before anything is touched; assembles snippets."""
    usage = f"nfprobe {arguments.verb} --help"
    size = arguments.ring_size
    if size & (size - 1) or not RING_BYTES_MIN <= size <= RING_BYTES_MAX:
        raise UsageError("--ring-size must be a power of two from 64KiB to 256MiB.", usage)
    if arguments.strategy is not None and arguments.strategy not in STRATEGIES:
        sentence = f"No strategy is called {arguments.strategy!r}; there are {' and '.join(STRATEGIES)}."
        raise UsageError(sentence, usage)
    if arguments.packets == NONE and (arguments.endpoint or arguments.exporter not in (None, "none")):
        sentence = "--packets none identifies no packet, so there is nothing to send."
        raise UsageError(sentence, usage)
    check_recording_options(arguments)
    _check_profile(arguments.profile, arguments.record is not None, usage)
    find_identity(arguments)
    find_time_scale(arguments)
    find_flow(arguments)
    arguments.captures = [read_capture(text) for text in arguments.capture]
    arguments.counter_choice = find_counters(arguments)


def _check_profile(hertz: int | None, is_recorded: bool, usage: str) -> None:
    if hertz is None:
        return
    if not is_recorded:
        raise UsageError("--profile needs --record FILE: samples are stored in the recording.", usage)
    if not 1 <= hertz <= max_hertz():
        raise UsageError(f"--profile must be from 1 to {max_hertz()} Hz, the kernel's current limit.", usage)
