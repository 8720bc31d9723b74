# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs share, and values with units: argparse types for `50us`, `16MiB`, `0.1%`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.export.timescale import FACTOR_MAX, TimeScale
from otel_nfprobe.pipeline.identity import DEFAULT_KEY, Identity
from otel_nfprobe.pipeline.repeats import FOREVER_NS, WINDOW_NS

if TYPE_CHECKING:
    from otel_nfprobe.pipeline.flowfilter import FlowFilter


_NUMBER = compile_late(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z%µ]*)\s*")
_NS_PER_UNIT = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
}
_HZ_PER_UNIT = {"Hz": 1, "kHz": 1000}
_BYTES_PER_UNIT = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
}


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of a duration such as `50us`, `10s` or `1.5ms`; a unit is required, except for 0."""
    return _parse_scaled(text, _NS_PER_UNIT, "a duration such as 50us, 10ms or 10s")


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as `500ms` or `10s`; a bare number counts seconds."""
    number, unit = _split(text, "a duration such as 500ms or 10s")
    return number if not unit else parse_duration_ns(text) / 1e9


def parse_bytes(text: str) -> int:
    """Bytes of a size such as `64KiB`, `16MiB` or `1GB`; a bare number counts bytes."""
    number, unit = _split(text, "a size such as 64KiB or 16MiB")
    return round(number) if not unit else _parse_scaled(text, _BYTES_PER_UNIT, "a size such as 64KiB or 16MiB")


def parse_hertz(text: str) -> int:
    """A frequency such as `997`, `997Hz` or `10kHz`."""
    number, unit = _split(text, "a frequency such as 997 or 10kHz")
    return round(number) if not unit else _parse_scaled(text, _HZ_PER_UNIT, "a frequency such as 997 or 10kHz")


def parse_fraction(text: str) -> float:
    """A share from 0 to 1, written as `0.001` or `0.1%`."""
    wanted = "a share from 0 to 1 such as 0.001 or 0.1%"
    number, unit = _split(text, wanted)
    if unit == "%":
        number /= 100
    elif unit:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    if number > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return number


def _parse_scaled(text: str, units: dict[str, int], wanted: str) -> int:
    number, unit = _split(text, wanted)
    if unit not in units and not (number == 0 and not unit):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return round(number * units.get(unit, 1))


def _split(text: str, wanted: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return float(match.group(1)), match.group(2)


# ---- --flow ---------------------------------------------------------------------------------------------------------
# The option --flow, which attach, run, export, report and tables share.


def add_flow_option(group: argparse._ActionsContainer, does: str) -> None:
    """Declares the option. `does` says what happens to the matching packets."""
    group.add_argument(
        "--flow",
        metavar="EXPRESSION",
        help=f"{does} packets of these flows only, in the language of pcap-filter(7), such as"
        " 'dst port 443 and net 10.0.0.0/8'",
    )


def find_flow(arguments: argparse.Namespace) -> FlowFilter | None:
    """Returns the filter of the option.

    Raises:
        UsageError: libpcap rejects it, or is missing.
    """
    if arguments.flow is None:
        return None
    from otel_nfprobe.pipeline.flowfilter import FlowFilter  # libpcap is loaded on demand

    return FlowFilter(arguments.flow)


# ---- ids of packets -------------------------------------------------------------------------------------------------
# Options for the identity of packets, shared by the verbs attach, run, export and ids.


KEY_VARIABLE = "NFPROBE_KEY"
KEY_BYTES = 16


def add_digest_options(group: argparse._ActionsContainer) -> None:
    """Declares the options that determine a packet's IDs."""
    group.add_argument(
        "--inner",
        action="store_true",
        help="identify the packet inside VXLAN, GTP-U and GRE tunnels, not the one that carries it",
    )
    group.add_argument(
        "--key",
        metavar="HEX",
        help=f"key of the ids, 32 hexadecimal digits, same for all monitors (default: {KEY_VARIABLE} or a public one)",
    )


def add_correlation_options(group: argparse._ActionsContainer) -> None:
    """Declares the options that determine a packet's trace ID."""
    group.add_argument(
        "--correlate",
        action="store_true",
        help="give a packet the same trace in all NFs exported with it: trace IDs from content ID and second",
    )
    group.add_argument(
        "--correlate-window",
        type=parse_duration_ns,
        metavar="TIME",
        help="as --correlate, with windows of TIME instead of a second, for NFs that see a packet far apart in time",
    )


def find_identity(arguments: argparse.Namespace) -> Identity:
    """Returns how packets are identified, by the options and the environment.

    Raises:
        UsageError: the key is invalid, or the window is too short.
    """
    return Identity(
        find_key(arguments),
        getattr(arguments, "inner", False),
        find_correlate_window_ns(arguments),
    )


def find_key(arguments: argparse.Namespace) -> bytes:
    """Returns the key of the IDs: 16 bytes.

    Raises:
        UsageError: it is invalid.
    """
    option: str | None = getattr(arguments, "key", None)
    text = option if option is not None else os.environ.get(KEY_VARIABLE, "")
    if option is None and not text:
        return DEFAULT_KEY
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        source = "--key" if option is not None else KEY_VARIABLE
        raise UsageError(f"{source} must have 32 hexadecimal digits.", "openssl rand -hex 16")
    return key


def find_correlate_window_ns(arguments: argparse.Namespace) -> int:
    """Returns the window of shared trace IDs in ns; 0 if they are unique.

    Raises:
        UsageError: it is too short.
    """
    window_ns: int | None = arguments.correlate_window
    if window_ns is None:
        return WINDOW_NS if arguments.correlate else 0
    if window_ns < 10**6:
        raise UsageError("--correlate-window must be 1ms or longer.", f"nfprobe {arguments.verb} --help")
    return min(window_ns, FOREVER_NS)


def recorded_window_ns(settings: Mapping[str, str]) -> int:
    """Returns the window of shared trace IDs of a recorded session, from its settings; 0: none."""
    window = settings.get("correlate_window", "")
    if window.isdecimal():
        return min(int(window), FOREVER_NS)
    return WINDOW_NS if settings.get("correlate") == "True" else 0


# ---- traces ---------------------------------------------------------------------------------------------------------
# Options for the form of traces, shared by attach, run and export.


NESTED, LINKS = "nested", "links"


def add_span_options(group: argparse._ActionsContainer) -> None:
    """Declares the options."""
    group.add_argument(
        "--spans",
        choices=(NESTED, LINKS),
        default=NESTED,
        help="nested: a packet's trace holds its batch and the calls in it; links: each batch is a separate trace,"
        " written once, and its packets' traces link to it (default: nested)",
    )
    group.add_argument(
        "--time-scale",
        type=int,
        metavar="FACTOR",
        help="a display aid for UIs that show whole microseconds: also write each trace stretched around"
        " its start, such as 1000, into the service `NAME (ns as us)`",
    )
    group.add_argument(
        "--time-scale-only", action="store_true", help="with --time-scale: write the stretched traces only"
    )


def add_limit_option(group: argparse._ActionsContainer) -> None:
    """Declares the limit on the number of traces."""
    group.add_argument(
        "--max-traces-per-second",
        type=_parse_rate,
        metavar="N",
        help="write at most N traces per second: excess drops the sample first, then the late packets that were"
        " least late",
    )


def _parse_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of traces, such as 1000")
    return rate


def find_time_scale(arguments: argparse.Namespace) -> TimeScale:
    """Returns the time scale of the options.

    Raises:
        UsageError: the factor is invalid, or missing.
    """
    usage = f"nfprobe {arguments.verb} --help"
    factor: int | None = arguments.time_scale
    if factor is None:
        if arguments.time_scale_only:
            raise UsageError("--time-scale-only needs --time-scale FACTOR, such as 1000.", usage)
        return TimeScale()
    if not 2 <= factor <= FACTOR_MAX:
        raise UsageError(f"--time-scale must be a whole number from 2 to {FACTOR_MAX}, such as 1000.", usage)
    return TimeScale(factor, arguments.time_scale_only)


def describe_time_scale(scale: TimeScale, service: object) -> str:
    """Returns a sentence about the copies, or an empty one."""
    if scale.factor == 1:
        return ""
    name = scale.rename({"service.name": str(service)})["service.name"]
    also = "only" if scale.is_only else "also"
    return f"traces are {also} written with times stretched {scale.factor:,} times, a display aid, as service {name!r}."
