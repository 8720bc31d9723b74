# SPDX-License-Identifier: Apache-2.0
"""Adapter for a network function that a person describes in a YAML file. docs/adapters.md is the manual.

The file is checked key by key: what is unknown, missing or out of range is named in one sentence.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from otel_nfprobe.adapters.base import (
    ABSENT,
    ARGUMENTS,
    COUNT_ARGUMENT,
    COUNT_FIXED,
    COUNT_RETURN,
    DROP,
    NO_OFFSET,
    PACKETS_MAX,
    RECEIVE,
    TRANSMIT,
    Buffer,
    Burst,
    RoleFunction,
    make_program,
)
from otel_nfprobe.errors import UsageError
from otel_nfprobe.symbols import find_functions
from otel_nfprobe.target import Target

ROLES = {"receive": RECEIVE, "transmit": TRANSMIT, "drop": DROP}
ARRIVAL_UNITS = {"ticks": 0, "unix_ns": 1}  # NFP_ARRIVAL_*
LINK_LAYERS = {"ethernet": 0, "ip": 1}
OFFSET_MAX = 4095
FIXED_MAX = 254
FILE_BYTES_MAX = 1 << 20
MANUAL = "docs/adapters.md"

_TOP = (
    "name",
    "recognise",
    "receive",
    "transmit",
    "drop",
    "buffer",
    "link_layer",
    "functions",
    "packets_max",
)
_CALL = ("function", "pointers", "packet", "requested", "count", "count_bits")
_BUFFER = ("data", "data_offset", "length", "segment_length", "arrival")


class DescribedAdapter:
    """A description, checked.

    Args:
        path: of the file, for messages.
        description: what the file holds.

    Raises:
        UsageError: something in it is wrong; the sentence names the key.
    """

    def __init__(self, path: str, description: Any) -> None:
        self._path = path
        top = self._mapping("the file", description, _TOP)
        self.name = self._text("name", top.get("name"))
        recognise = self._mapping("recognise", top.get("recognise", {}), ("executable", "exports"))
        self._executable = self._text("recognise.executable", recognise.get("executable", "*"))
        self._exports = self._texts("recognise.exports", recognise.get("exports", []))
        self._link_layer = self._choice("link_layer", top.get("link_layer", "ethernet"), LINK_LAYERS)
        self._packets_max = self._number("packets_max", top.get("packets_max", PACKETS_MAX), 1, 65535)
        self._buffer = self._read_buffer(top.get("buffer"))
        self._calls = [
            (role, *self._read_call(f"{role}[{position}]", call))
            for role in ROLES
            for position, call in enumerate(self._list(role, top.get(role, [])))
        ]
        if not any(role == "receive" for role, _, _ in self._calls):
            raise self._wrong("receive", "names no function: without one there are no batches")
        self.inner = self._texts("functions", top.get("functions", []))

    @classmethod
    def from_file(cls, path: str | Path) -> DescribedAdapter:
        """Reads a description.

        Raises:
            UsageError: the file cannot be read, is no YAML, or something in it is wrong.
        """
        try:
            with open(path, "rb") as file:
                text = file.read(FILE_BYTES_MAX)
        except OSError as error:
            raise UsageError(f"The adapter file {path} cannot be read: {error.strerror}.", f"ls -l {path}") from error
        try:
            return cls(str(path), yaml.safe_load(text))
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            place = getattr(error, "problem_mark", None)
            where = f" at line {place.line + 1}" if place is not None else ""
            raise UsageError(f"The adapter file {path} is not YAML{where}.", f"less {MANUAL}") from error

    def recognise(self, target: Target) -> str | None:
        """See Adapter."""
        modules = target.modules()
        if not modules or not any(fnmatch.fnmatchcase(name, self._executable) for name in modules[0].names):
            return None
        if any(name not in modules[0].image.exports for name in self._exports):
            return None
        return f"{self._path} describes {modules[0].name}"

    def roles(self, target: Target) -> list[RoleFunction]:
        """See Adapter."""
        found = []
        for role, glob, burst in self._calls:
            functions = find_functions(target, [glob])
            if len(functions) > 1:
                raise self._wrong(role, f"names {glob!r}, which matches {len(functions)} functions, not one")
            function = functions[0]
            program = make_program(ROLES[role], burst, self._buffer)
            label = f"{self.name} {role}"
            found.append(RoleFunction(function.address, function.label, ROLES[role], program, label))
        addresses = [role.address for role in found]
        for role_function in found:
            if addresses.count(role_function.address) > 1:
                raise self._wrong("receive, transmit, drop", f"name {role_function.name} more than once")
        return found

    def notes(self, target: Target) -> list[str]:
        """See Adapter."""
        return [f"functions and buffer layout are as {self._path} says"]

    # ---- reading the file ----------------------------------------------------------------------------------

    def _read_buffer(self, value: Any) -> Buffer:
        buffer = self._mapping("buffer", value, _BUFFER)
        length = self._field("buffer.length", buffer.get("length"), "bytes", (2, 4))
        segment = length
        if "segment_length" in buffer:
            segment = self._field("buffer.segment_length", buffer["segment_length"], "bytes", (2, 4))
        data_offset, arrival, unit = NO_OFFSET, NO_OFFSET, 0
        if "data_offset" in buffer:
            data_offset = self._number("buffer.data_offset", buffer["data_offset"], 0, OFFSET_MAX)
        if "arrival" in buffer:
            fields = self._mapping("buffer.arrival", buffer["arrival"], ("offset", "unit"))
            arrival = self._number("buffer.arrival.offset", fields.get("offset"), 0, OFFSET_MAX)
            unit = self._choice("buffer.arrival.unit", fields.get("unit"), ARRIVAL_UNITS)
        return Buffer(
            data=self._number("buffer.data", buffer.get("data"), 0, OFFSET_MAX),
            length=length[0],
            length_bytes=length[1],
            segment_length=segment[0],
            segment_bytes=segment[1],
            data_offset=data_offset,
            arrival=arrival,
            arrival_unit=unit,
            link_layer=self._link_layer,
        )

    def _read_call(self, key: str, value: Any) -> tuple[str, Burst]:
        call = self._mapping(key, value, _CALL)
        if ("pointers" in call) == ("packet" in call):
            raise self._wrong(key, "needs either `pointers` or `packet`")
        single = "packet" in call
        which = "packet" if single else "pointers"
        pointers = self._argument(f"{key}.{which}", call[which])
        requested = ABSENT
        if "requested" in call:
            requested = self._argument(f"{key}.requested", call["requested"])
        count_from, count_argument = self._count(f"{key}.count", call.get("count", "return"), requested)
        bits = self._number(f"{key}.count_bits", call.get("count_bits", 32), 1, 32)
        burst = Burst(pointers, requested, count_from, count_argument, (1 << bits) - 1, single, self._packets_max)
        return self._text(f"{key}.function", call.get("function")), burst

    def _count(self, key: str, value: Any, requested: int) -> tuple[int, int]:
        if value == "return":
            return COUNT_RETURN, ABSENT
        if value == "requested":
            if requested == ABSENT:
                raise self._wrong(key, "is `requested`, but `requested` is not given")
            return COUNT_ARGUMENT, requested
        if isinstance(value, Mapping) and list(value) == ["argument"]:
            return COUNT_ARGUMENT, self._argument(f"{key}.argument", value["argument"])
        if isinstance(value, int) and not isinstance(value, bool):
            return COUNT_FIXED, self._number(key, value, 1, FIXED_MAX)
        raise self._wrong(key, "must be `return`, `requested`, `{argument: N}` or a number")

    def _field(self, key: str, value: Any, size_key: str, sizes: Sequence[int]) -> tuple[int, int]:
        fields = self._mapping(key, value, ("offset", size_key))
        size = self._number(f"{key}.{size_key}", fields.get(size_key), 1, 8)
        if size not in sizes:
            raise self._wrong(f"{key}.{size_key}", f"must be {' or '.join(str(item) for item in sizes)}")
        return self._number(f"{key}.offset", fields.get("offset"), 0, OFFSET_MAX), size

    def _argument(self, key: str, value: Any) -> int:
        return self._number(key, value, 0, ARGUMENTS - 1)

    def _mapping(self, key: str, value: Any, known: Sequence[str]) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._wrong(key, f"must hold keys ({', '.join(known)})")
        for name in value:
            if name not in known:
                raise self._wrong(key, f"has an unknown key {name!r}; there are {', '.join(known)}")
        return value

    def _list(self, key: str, value: Any) -> Sequence[Any]:
        if not isinstance(value, list):
            raise self._wrong(key, "must be a list")
        return value

    def _texts(self, key: str, value: Any) -> list[str]:
        return [self._text(f"{key}[{position}]", item) for position, item in enumerate(self._list(key, value))]

    def _text(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise self._wrong(key, "is missing" if value is None else "must be text")
        return value

    def _number(self, key: str, value: Any, low: int, high: int) -> int:
        if value is None:
            raise self._wrong(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self._wrong(key, f"is {value!r}, not a number from {low} to {high}")
        return value

    def _choice(self, key: str, value: Any, known: Mapping[str, int]) -> int:
        if not isinstance(value, str) or value not in known:
            raise self._wrong(key, f"is {value!r}; it can be {' or '.join(known)}")
        return known[value]

    def _wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"In the adapter file {self._path}, {key} {what}.", f"less {MANUAL}")
