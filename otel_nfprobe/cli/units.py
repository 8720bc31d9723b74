# SPDX-License-Identifier: Apache-2.0
"""Values with units on the command line: argparse types for `50us`, `16MiB`, `0.1%`."""

from __future__ import annotations

import argparse
import re

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z%µ]*)\s*")
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
