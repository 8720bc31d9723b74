# SPDX-License-Identifier: Apache-2.0
"""`nfprobe report RECORDING`: shows the contents of a recording."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.arrival_options import add_arrival_options, take_arrivals
from otel_nfprobe.cli.main import EXIT_DONE, tell
from otel_nfprobe.cli.options import add_flow_option, find_flow, parse_duration_ns
from otel_nfprobe.cli.output import write_out
from otel_nfprobe.cli.trace_file import add_trace_options, check_trace_options, is_trace_file, write_trace_file
from otel_nfprobe.cli.waiting import Waiting
from otel_nfprobe.profiling.samples import describe_samples, find_name, is_known
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts
from otel_nfprobe.report.flame import FlameRequest, fold, is_by_time, render_folded, render_speedscope
from otel_nfprobe.report.report import SLOWEST, Report, build_report
from otel_nfprobe.report.views.page import render_page
from otel_nfprobe.report.views.table import render_table

# ---- as JSON --------------------------------------------------------------------------------------------------------
# The report as one JSON object, the contract of `nfprobe report --format json`.


def render_json(report: Report, timelines: bool = False) -> str:
    """Returns the document as one line of JSON, ending with a newline.

    Args:
        timelines: include what the thread of each slow packet did meanwhile, as `timelines`.
    """
    document = report.document
    if timelines:
        document = {**document, "timelines": [asdict(timeline) for timeline in report.timelines]}
    return json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n"


# ---- verb -----------------------------------------------------------------------------------------------------------


FORMATS = {"table": render_table, "json": render_json, "html": render_page}
FLAME, SPEEDSCOPE, PERFETTO = "flame", "speedscope", "perfetto"
STACKS = (FLAME, SPEEDSCOPE)


class ReportCommand:
    """Shows functions, batches, packets, the slowest packets and what made them late.

    A truncated recording (its monitor was killed, the disk was full) is shown up to its end, and the report says where
    that is. Several recordings are joined by packet, as nfprobe why does.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("recordings", metavar="RECORDING", nargs="+", help="file written by attach --record")
        parser.add_argument(
            "--format", choices=(*FORMATS, *STACKS, PERFETTO), help="default: table, or by the name of FILE"
        )
        parser.add_argument("--json", action="store_true", help="the same as --format json")
        parser.add_argument(
            "--timelines",
            action="store_true",
            help="with --json: what ran from each slow packet's arrival until it was done, in ns after its arrival",
        )
        parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE instead of standard output")
        parser.add_argument(
            "--slowest",
            metavar="N",
            type=int,
            help=f"number of slow packets (default: {SLOWEST}); of a Perfetto trace: only what ran around them",
        )
        add_flame_options(parser)
        add_trace_options(parser)
        add_flow_option(parser, "the slowest and the late")
        add_arrival_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        format = _choose_format(arguments)
        check_flame_options(arguments, format in STACKS)
        check_trace_options(arguments, format == PERFETTO)
        if format == PERFETTO:
            return _write_trace(arguments)
        arguments.slowest = SLOWEST if arguments.slowest is None else max(0, arguments.slowest)
        if arguments.timelines and format != "json":
            raise UsageError("--timelines requires --json; the HTML page always has them.", "nfprobe report --help")
        if len(arguments.recordings) > 1:
            return _show_chain(arguments, format)
        (arguments.recording,) = arguments.recordings
        flow = find_flow(arguments)
        reader = RecordingReader(arguments.recording)
        facts = read_facts(reader)
        take_arrivals(arguments, reader, facts)
        if format in STACKS:
            return _show_stacks(arguments, format, reader, facts)
        with Waiting(f"reading {arguments.recording}"):
            report = build_report(reader, arguments.slowest, facts, flow)
        text = render_json(report, timelines=True) if arguments.timelines else FORMATS[format](report)
        write_out(arguments.output, text)
        _warn(report.damage)
        return EXIT_DONE


def _show_stacks(arguments: argparse.Namespace, format: str, reader: RecordingReader, facts: RecordingFacts) -> int:
    request = read_request(arguments, facts)
    with Waiting(f"reading {arguments.recording}"):
        stacks = fold(reader, facts, request)
    if format == FLAME:
        text = render_folded(stacks)
    else:
        text = render_speedscope(stacks, is_by_time(facts, request), Path(arguments.recording).name)
    write_out(arguments.output, text)
    if not stacks:
        say_nothing_seen(arguments)
    _say_precision(facts.samples)
    say_not_counted(facts, request.counter)
    _warn(facts.damage)
    return EXIT_DONE


def _write_trace(arguments: argparse.Namespace) -> int:
    again = f"nfprobe report {' '.join(arguments.recordings)} -o FILE.pftrace"
    if not arguments.output:
        raise UsageError("A Perfetto trace is not text: it is written to a file.", again)
    if arguments.timelines or arguments.flow or arguments.arrivals is not None:
        raise UsageError("A Perfetto trace is of all flows, and takes no --timelines or --arrivals.", again)
    return write_trace_file(arguments, arguments.recordings, arguments.slowest)


def _show_chain(arguments: argparse.Namespace, format: str) -> int:
    from otel_nfprobe.cli.why import FORMATS as CHAIN_FORMATS  # slow to load, and few reports are of a chain
    from otel_nfprobe.cli.why import show_why
    from otel_nfprobe.report.why import WhyRequest

    single = arguments.timelines or arguments.flow or arguments.arrivals is not None
    if single or format not in CHAIN_FORMATS:
        sentence = "Of several recordings there is a table or JSON of all packets, and no other option than --slowest."
        raise UsageError(sentence, f"nfprobe why {' '.join(arguments.recordings)}")
    request = WhyRequest(arguments.slowest)
    return show_why(arguments.recordings, request, format, arguments.output)


def _choose_format(arguments: argparse.Namespace) -> str:
    if arguments.format or arguments.json:
        return arguments.format or "json"
    if is_trace_file(arguments.output):
        return PERFETTO
    path = Path((arguments.output or "").lower())
    if path.name.endswith(".speedscope.json"):
        return SPEEDSCOPE
    suffix = path.suffix
    return {".html": "html", ".htm": "html", ".json": "json"}.get(suffix, "table")


def _say_precision(samples: Rows) -> None:
    found = describe_samples(samples)
    if found and found["precise"] < found["samples"]:
        tell(
            f"{found['samples'] - found['precise']} of {found['samples']} samples ({found['event']}) are"
            " imprecise: the instruction is approximate."
        )


def _warn(damage: str) -> None:
    if damage:
        tell(damage)


# ---- options of flame graphs ----------------------------------------------------------------------------------------
# The options of `nfprobe report --format flame` and `--format speedscope`.


ALL, SLOW = "all", "slow"
SAMPLES, TIME = "samples", "time"


def add_flame_options(parser: argparse.ArgumentParser) -> None:
    """Declares them."""
    group = parser.add_argument_group("with --format flame (folded stacks) or speedscope")
    group.add_argument(
        "--class",
        dest="packet_class",
        choices=(ALL, SLOW),
        help="slow: only batches that ran while a slow packet was in the NF, its own and earlier ones (default: all)",
    )
    group.add_argument(
        "--slower-than",
        type=parse_duration_ns,
        metavar="TIME",
        help="latency of a slow packet, such as 50us (default: above 99%% of those identified)",
    )
    group.add_argument(
        "--by",
        metavar="WHAT",
        help="unit of stacks: samples of --profile; time, ns of own time; or the NAME of a counter that"
        " the samples contain (default: samples, if any)",
    )


def check_flame_options(arguments: argparse.Namespace, is_flame: bool) -> None:
    """Refuses them with other formats.

    Raises:
        UsageError: they cannot be combined.
    """
    usage = "nfprobe report --help"
    asked = arguments.packet_class, arguments.slower_than, arguments.by
    if not is_flame and any(value is not None for value in asked):
        raise UsageError("--class, --slower-than and --by require --format flame or speedscope.", usage)
    if arguments.slower_than is not None and arguments.packet_class != SLOW:
        raise UsageError("--slower-than requires --class slow.", usage)


def read_request(arguments: argparse.Namespace, facts: RecordingFacts) -> FlameRequest:
    """Returns what to fold.

    Raises:
        UsageError: samples do not contain the counter.
    """
    counter = "" if arguments.by in (None, SAMPLES, TIME) else _find_counter(arguments, facts)
    return FlameRequest(arguments.packet_class == SLOW, arguments.slower_than, arguments.by == TIME, counter)


def _find_counter(arguments: argparse.Namespace, facts: RecordingFacts) -> str:
    names = list(facts.sample_counts)
    if found := find_name(names, arguments.by):
        return found
    again = f"nfprobe report {arguments.recording} --format flame --by "
    if not names:
        sentence = f"Samples of this recording contain no counters such as {arguments.by!r}: use --by samples or time."
        raise UsageError(sentence, again + TIME)
    raise UsageError(f"No sample contains {arguments.by!r}; they contain {', '.join(names)}.", again + names[0])


def say_not_counted(facts: RecordingFacts, counter: str) -> None:
    """Reports on standard error for how many samples a counter's increase is unknown."""
    unknown = int((~is_known(facts.sample_counts[counter])).sum()) if counter else 0
    if unknown:
        count = f"{unknown} of {len(facts.samples)} samples"
        tell(f"the increase of {counter} before {count} is unknown, and left out.")


def say_nothing_seen(arguments: argparse.Namespace) -> None:
    """Reports on standard error that there are no stacks, and what may help."""
    again = f"nfprobe report {arguments.recording} --format flame --class slow --by time"
    tell("there are no stacks of that class.", again if arguments.packet_class == SLOW else "")
