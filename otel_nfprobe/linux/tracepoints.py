# SPDX-License-Identifier: Apache-2.0
"""Tracepoints: IDs of the kernel's tracepoints and where their fields stand in a sample. Reads tracefs.

Layouts differ between kernels: they are read from each tracepoint's `format` file (Documentation/trace/events.rst).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.lateregex import compile_late

FOLDERS = (Path("/sys/kernel/tracing/events"), Path("/sys/kernel/debug/tracing/events"))
_FIELD = compile_late(
    r"field:(?P<type>[^;]*?)\s*(?P<name>\w+)(\[\w*\])?;\s*offset:(?P<offset>\d+);\s*size:(?P<size>\d+);"
)


class Field(NamedTuple):
    """Of a tracepoint, in bytes. `is_located`: it is an offset and a length of the bytes (`__data_loc`)."""

    offset: int
    size: int
    is_located: bool


class Tracepoint(NamedTuple):
    """`id` is the config of its perf event."""

    id: int
    fields: dict[str, Field]


def read_tracepoint(name: str) -> Tracepoint | None:
    """Returns a tracepoint by `subsystem:event`; None: this kernel has none of that name.

    Raises:
        NfprobeError: tracefs cannot be read.
    """
    try:
        folder = next((folder for folder in FOLDERS if folder.is_dir()), None)
    except OSError as error:  # others than root may not enter
        raise NfprobeError(f"tracefs cannot be read: {error.strerror}", "nfprobe doctor") from None
    if folder is None:
        raise NfprobeError("tracefs is not mounted", "mount -t tracefs tracefs /sys/kernel/tracing")
    try:
        text = folder.joinpath(*name.split(":"), "format").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not as expected"
        raise NfprobeError(f"tracefs cannot be read: {reason}", "nfprobe doctor") from None
    found = re.search(r"^ID: (\d+)$", text, re.MULTILINE)
    if found is None:
        return None
    fields = {
        field["name"]: Field(int(field["offset"]), int(field["size"]), "__data_loc" in field["type"])
        for field in _FIELD.finditer(text)
    }
    return Tracepoint(int(found[1]), fields)
