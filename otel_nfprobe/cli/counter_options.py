# SPDX-License-Identifier: Apache-2.0
"""`--counters`: what is to be counted beside the time, and whether this machine can."""

from __future__ import annotations

import argparse
from typing import Any

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import tell
from otel_nfprobe.counters.availability import find_refusal, find_software_refusal
from otel_nfprobe.counters.choice import CounterChoice, choose_counters
from otel_nfprobe.target.target import Target


def add_counter_options(group: Any) -> None:
    """Declares the option."""
    group.add_argument(
        "--counters",
        metavar="NAME,...",
        help="performance counters to read with each time stamp: names of perf list, raw codes (r01c2,"
        " cpu/event=0xc2,umask=1/), cache, frontend, branch, topdown-l1, or auto: what there is (default: none)",
    )


def find_counters(arguments: argparse.Namespace) -> CounterChoice:
    """What the option asks for and this machine has; says once what it has not. Touches no target.

    Raises:
        UsageError: a name is unknown.
        NfprobeError: what was asked for by name cannot be had.
    """
    if arguments.counters is None:
        return CounterChoice()
    choice, sentences = decide(arguments.counters)
    for sentence in sentences:
        tell(sentence)
    return choice


def decide(text: str) -> tuple[CounterChoice, list[str]]:
    """What the option's text asks for and this machine has, and what a person should know of it.

    Raises:
        UsageError: a name is unknown.
        NfprobeError: what was asked for by name cannot be had.
    """
    choice = choose_counters(text)
    refusal = find_refusal(choice)
    if refusal is not None and not choice.auto:
        raise NfprobeError(f"Counters cannot be had: {refusal.reason}.", refusal.advice)
    lacking = find_software_refusal(choice)
    if lacking is not None and not choice.auto:
        raise NfprobeError(f"Counters cannot be had: {lacking.reason}.", lacking.advice)
    sentences = list(choice.notes)
    if refusal is not None:
        sentences = [f"no performance counters, times only: {refusal.reason}."]
        choice = CounterChoice(auto=True, counters=choice.software)
    if lacking is not None:
        sentences.append(f"no software counters: {lacking.reason}.")
        choice = CounterChoice(auto=True, counters=choice.hardware)
    return choice, sentences


def check_counting(target: Target, choice: CounterChoice) -> None:
    """Refuses counters that were asked for by name and that this target cannot have. It has been checked.

    Raises:
        NfprobeError: its seccomp filter forbids what handing them over needs.
    """
    if choice.hardware and not choice.auto and target.counters_forbidden:
        sentence = f"Process {target.pid} cannot be given counters: {target.counters_forbidden}."
        raise NfprobeError(sentence, f"nfprobe attach {target.pid} --counters auto")
