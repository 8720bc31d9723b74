# SPDX-License-Identifier: Apache-2.0
"""Adapter for a network function that a person describes in a YAML file. docs/adapters.md is the manual.

The file is checked key by key: what is unknown, missing or out of range is named in one sentence.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import (
    ABSENT,
    ARGUMENTS,
    CAPACITY,
    COUNT_ARGUMENT,
    COUNT_FIXED,
    COUNT_MEMORY,
    COUNT_RETURN,
    DEQUEUE,
    DROP,
    NO_OFFSET,
    PACKETS_MAX,
    RECEIVE,
    TRANSMIT,
    WHEN_ALWAYS,
    WHEN_NONZERO,
    WHEN_ZERO,
    Batch,
    Buffer,
    Burst,
    RoleFunction,
    make_program,
)
from otel_nfprobe.adapters.generic import find_loop_iteration
from otel_nfprobe.base.errors import RefusedError, UsageError
from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.target.target import Target

ROLES = {"receive": RECEIVE, "take_over": DEQUEUE, "transmit": TRANSMIT, "drop": DROP}
POLLING = ("receive", "take_over")  # their calls return packets
ARRIVAL_UNITS = {"ticks": lib.NFP_ARRIVAL_TICKS, "unix_ns": lib.NFP_ARRIVAL_UNIX_NS}
LINK_LAYERS = {"ethernet": lib.NFP_LINK_ETHERNET, "ip": lib.NFP_LINK_IP}
RECEIVED_WHEN = {"zero": WHEN_ZERO, "nonzero": WHEN_NONZERO, "always": WHEN_ALWAYS}
OFFSET_MAX = 4095
FIXED_MAX = 254
CAPACITY_MAX = 4096
FILE_BYTES_MAX = 1 << 20
MANUAL = "docs/adapters.md"

_TOP = ("name", "recognise", *ROLES, "buffer", "batch", "link_layer", "functions", "packets_max")
_CALL = ("function", "pointers", "packet", "batch", "requested", "count", "count_bits", "when", "queue")
_PACKETS = ("pointers", "packet", "batch")  # which of the keys says where a call's packets are
_BUFFER = ("data", "data_offset", "length", "segment_length", "arrival", "pooled")


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
        self.inner = self._texts("functions", top.get("functions", []))
        self._turn = self._read_turn(top)
        if self._turn:
            return
        self._buffer = self._read_buffer(top.get("buffer"))
        self._batch = self._read_batch(top["batch"]) if "batch" in top else None
        self._calls = [
            (role, *self._read_call(f"{role}[{position}]", call))
            for role in ROLES
            for position, call in enumerate(self._list(role, top.get(role, [])))
        ]
        if not any(role == "receive" for role, _, _ in self._calls):
            raise self._wrong("receive", "names no function: without one there are no batches")

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
        if self._turn:
            return [find_loop_iteration(target, self._turn)]
        found = []
        for role, glob, burst in self._calls:
            functions = find_functions(target, [glob])
            if len(functions) > 1:
                raise self._wrong(role, f"names {glob!r}, which matches {len(functions)} functions, not one")
            function = functions[0]
            program = make_program(ROLES[role], self._with_care(target, burst), self._buffer)
            label = f"{self.name} {role}"
            found.append(RoleFunction(function.address, function.label, ROLES[role], program, label))
        addresses = [role.address for role in found]
        for role_function in found:
            if addresses.count(role_function.address) > 1:
                raise self._wrong(", ".join(ROLES), f"name {role_function.name} more than once")
        return found

    def notes(self, target: Target) -> list[str]:
        """See Adapter."""
        notes = [f"functions and buffer layout are as {self._path} says"]
        if not target.may_check_memory:
            notes.append("a seccomp filter forbids process_vm_readv, so the layout is not checked while it is used")
        return notes

    def _with_care(self, target: Target, burst: Burst) -> Burst:
        """Lets the probe check what it is told, where the target may ask the kernel for its own memory."""
        if burst.batch is not None and not target.may_check_memory:
            raise RefusedError(
                f"Process {target.pid} ({target.name}) has a seccomp filter that may forbid process_vm_readv, "
                f"without which the batches that {self._path} describes cannot be checked.",
                f"grep Seccomp /proc/{target.pid}/status",
            )
        return replace(burst, checked=target.may_check_memory)

    # ---- reading the file ----------------------------------------------------------------------------------

    def _read_turn(self, top: Mapping[str, Any]) -> str:
        """The function whose calls begin batches, of a program without packets; "" in other descriptions."""
        batch = top.get("batch")
        if not isinstance(batch, Mapping) or "function" not in batch:
            return ""
        for key in (*ROLES, "buffer"):
            if key in top:
                raise self._wrong(key, "cannot stand beside batch.function: such a batch has no packets")
        return self._text("batch.function", self._mapping("batch", batch, ("function",))["function"])

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
            pooled=self._flag("buffer.pooled", buffer.get("pooled", False)),
        )

    def _read_call(self, key: str, value: Any) -> tuple[str, Burst]:
        call = self._mapping(key, value, _CALL)
        given = [name for name in _PACKETS if name in call]
        if len(given) != 1:
            raise self._wrong(key, "needs either `pointers`, `packet` or `batch`")
        which, batch = given[0], self._batch if "batch" in call else None
        if which == "batch" and batch is None:
            raise self._wrong(f"{key}.batch", "needs the layout of a batch: the key `batch` of the file")
        pointers = self._argument(f"{key}.{which}", call[which])
        requested = self._requested(f"{key}.requested", call["requested"], batch) if "requested" in call else ABSENT
        usual = "batch" if batch is not None else "return"
        count_from, count_argument = self._count(f"{key}.count", call.get("count", usual), requested, batch)
        bits = self._number(f"{key}.count_bits", call.get("count_bits", 32), 1, 32)
        when = WHEN_ALWAYS if count_from == COUNT_MEMORY else WHEN_NONZERO
        if "when" in call:
            when = self._when(key, call["when"], count_from)
        single = which == "packet"
        packets_max = self._packets_max
        burst = Burst(
            pointers, requested, count_from, count_argument, (1 << bits) - 1, single, packets_max, batch, when
        )
        if "queue" in call:
            burst = replace(burst, queue=self._queue(key, call["queue"]))
        return self._text(f"{key}.function", call.get("function")), burst

    def _read_batch(self, value: Any) -> Batch:
        batch = self._mapping("batch", value, ("count", "pointers", "capacity"))
        offset, size = self._field("batch.count", batch.get("count"), "bytes", (2, 4, 8))
        pointers = self._number("batch.pointers", batch.get("pointers"), 0, OFFSET_MAX)
        capacity = self._number("batch.capacity", batch.get("capacity"), 1, CAPACITY_MAX)
        if offset < pointers + 8 * capacity and pointers < offset + size:
            raise self._wrong("batch.count", "lies in the array of pointers")
        return Batch(offset, size, pointers, capacity)

    def _requested(self, key: str, value: Any, batch: Batch | None) -> int:
        if value == "capacity" and batch is not None:
            return CAPACITY
        return self._argument(key, value)

    def _when(self, key: str, value: Any, count_from: int) -> int:
        if not key.startswith(POLLING) or count_from == COUNT_RETURN:
            raise self._wrong(
                f"{key}.when", "is for receive and take_over functions that do not return the number of packets"
            )
        return self._choice(f"{key}.when", value, RECEIVED_WHEN)

    def _queue(self, key: str, value: Any) -> int:
        if not key.startswith(POLLING):
            raise self._wrong(f"{key}.queue", "is for receive and take_over functions")
        return self._argument(f"{key}.queue", value)

    def _count(self, key: str, value: Any, requested: int, batch: Batch | None) -> tuple[int, int]:
        if value == "return":
            return COUNT_RETURN, ABSENT
        if value == "batch" and batch is not None:
            return COUNT_MEMORY, ABSENT
        if value == "requested":
            if requested in (ABSENT, CAPACITY):
                raise self._wrong(key, "is `requested`, but `requested` is not given")
            return COUNT_ARGUMENT, requested
        if isinstance(value, Mapping) and list(value) == ["argument"]:
            return COUNT_ARGUMENT, self._argument(f"{key}.argument", value["argument"])
        if isinstance(value, int) and not isinstance(value, bool):
            return COUNT_FIXED, self._number(key, value, 1, FIXED_MAX)
        raise self._wrong(key, "must be `return`, `requested`, `batch`, `{argument: N}` or a number")

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

    def _flag(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self._wrong(key, f"is {value!r}; it can be true or false")
        return value

    def _choice(self, key: str, value: Any, known: Mapping[str, int]) -> int:
        if not isinstance(value, str) or value not in known:
            raise self._wrong(key, f"is {value!r}; it can be {' or '.join(known)}")
        return known[value]

    def _wrong(self, key: str, what: str) -> UsageError:
        return UsageError(f"In the adapter file {self._path}, {key} {what}.", f"less {MANUAL}")
