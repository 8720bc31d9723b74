# SPDX-License-Identifier: Apache-2.0
"""The options that say how packets are identified, shared by the verbs attach, run, export and ids."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.units import parse_duration_ns
from otel_nfprobe.pipeline.identity import DEFAULT_KEY, Identity
from otel_nfprobe.pipeline.repeats import FOREVER_NS, WINDOW_NS

KEY_VARIABLE = "NFPROBE_KEY"
KEY_BYTES = 16


def add_digest_options(group: argparse._ActionsContainer) -> None:
    """Declares what decides a packet's id."""
    group.add_argument(
        "--inner",
        action="store_true",
        help="identify the packet inside VXLAN, GTP-U and GRE tunnels, not the one that carries it",
    )
    group.add_argument(
        "--key",
        metavar="HEX",
        help=f"key of the ids, 32 hexadecimal digits, the same everywhere (default: {KEY_VARIABLE} or a public one)",
    )


def add_correlation_options(group: argparse._ActionsContainer) -> None:
    """Declares what decides a packet's trace id."""
    group.add_argument(
        "--correlate",
        action="store_true",
        help="give a packet one trace in all NFs that are exported so: trace ids from packet id and second",
    )
    group.add_argument(
        "--correlate-window",
        type=parse_duration_ns,
        metavar="TIME",
        help="the same with windows of TIME, not of a second, for NFs that see a packet long after each other",
    )


def find_identity(arguments: argparse.Namespace) -> Identity:
    """How packets are identified, by the options and the environment.

    Raises:
        UsageError: the key is none, or the window is too short.
    """
    return Identity(
        find_key(arguments),
        getattr(arguments, "inner", False),
        find_correlate_window_ns(arguments),
    )


def find_key(arguments: argparse.Namespace) -> bytes:
    """The key of the ids: 16 bytes.

    Raises:
        UsageError: it is none.
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
    """The window of shared trace ids in ns; 0 when they are unique.

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
    """The window of shared trace ids with which a session was exported, from its recording's settings; 0: none."""
    window = settings.get("correlate_window", "")
    if window.isdecimal():
        return min(int(window), FOREVER_NS)
    return WINDOW_NS if settings.get("correlate") == "True" else 0
