# SPDX-License-Identifier: Apache-2.0
"""The options of `nfprobe report --format flame`."""

from __future__ import annotations

import argparse

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.main import tell
from otel_nfprobe.cli.units import parse_duration_ns
from otel_nfprobe.profiling.samplecounts import find_name, is_known
from otel_nfprobe.recording.replay import RecordingFacts
from otel_nfprobe.report.flame import FlameRequest

ALL, SLOW = "all", "slow"
SAMPLES, TIME = "samples", "time"


def add_flame_options(parser: argparse.ArgumentParser) -> None:
    """Declares them."""
    group = parser.add_argument_group("with --format flame (folded stacks)")
    group.add_argument(
        "--class",
        dest="packet_class",
        choices=(ALL, SLOW),
        help="slow: only batches that ran while a slow packet was there, its own and those before it (default: all)",
    )
    group.add_argument(
        "--slower-than",
        type=parse_duration_ns,
        metavar="TIME",
        help="what a slow packet is, such as 50us (default: later than 99%% of those identified)",
    )
    group.add_argument(
        "--by",
        metavar="WHAT",
        help="what stacks count: samples of --profile; time, ns of the calls themselves; or the NAME of a counter that"
        " the samples hold (default: samples, if any)",
    )


def check_flame_options(arguments: argparse.Namespace, is_flame: bool) -> None:
    """Refuses them without the format.

    Raises:
        UsageError: they do not fit together.
    """
    usage = "nfprobe report --help"
    asked = arguments.packet_class, arguments.slower_than, arguments.by
    if not is_flame and any(value is not None for value in asked):
        raise UsageError("--class, --slower-than and --by go with --format flame.", usage)
    if arguments.slower_than is not None and arguments.packet_class != SLOW:
        raise UsageError("--slower-than says what --class slow is.", usage)


def read_request(arguments: argparse.Namespace, facts: RecordingFacts) -> FlameRequest:
    """What is to be folded.

    Raises:
        UsageError: samples do not hold the counter.
    """
    counter = "" if arguments.by in (None, SAMPLES, TIME) else _find_counter(arguments, facts)
    return FlameRequest(arguments.packet_class == SLOW, arguments.slower_than, arguments.by == TIME, counter)


def _find_counter(arguments: argparse.Namespace, facts: RecordingFacts) -> str:
    names = list(facts.sample_counts)
    if found := find_name(names, arguments.by):
        return found
    again = f"nfprobe report {arguments.recording} --format flame --by "
    if not names:
        sentence = f"No sample of this recording holds counters such as {arguments.by!r}: --by takes samples or time."
        raise UsageError(sentence, again + TIME)
    raise UsageError(f"No sample holds {arguments.by!r}; they hold {', '.join(names)}.", again + names[0])


def say_not_counted(facts: RecordingFacts, counter: str) -> None:
    """Says on standard error of how many samples it is not known what a counter counted."""
    unknown = int((~is_known(facts.sample_counts[counter])).sum()) if counter else 0
    if unknown:
        count = f"{unknown} of {len(facts.samples)} samples"
        tell(f"what {counter} counted before {count} is not known, and left out.")


def say_nothing_seen(arguments: argparse.Namespace) -> None:
    """Says on standard error that there are no stacks, and what may help."""
    again = f"nfprobe report {arguments.recording} --format flame --class slow --by time"
    tell("nothing was seen of that class.", again if arguments.packet_class == SLOW else "")
