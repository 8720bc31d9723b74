# SPDX-License-Identifier: Apache-2.0
"""Arm and disarm probes: the only writer of a target's code and GOT slots.

Every change goes plan -> check the expected bytes -> write -> read back. The probe table in the session's
memory is written before the target is, so that a monitor that comes after a killed one can undo everything.
"""

from __future__ import annotations

import hashlib
import os
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.errors import NfprobeError
from otel_nfprobe.session import Session
from otel_nfprobe.target import Module, Target
from otel_nfprobe.trampoline import Probe

STOP_PATIENCE_NS = 2_000_000_000
STOP_ATTEMPTS = 50
BYTES_DIFFER = "the bytes in memory differ from the file"


@dataclass
class Stops:
    """How often and how long all threads of the target stood still."""

    count: int = 0
    longest_ns: int = 0
    moved: int = 0  # program counters moved out of changed bytes


@dataclass
class Patcher:
    """Changes the target of one session."""

    session: Session
    target: Target
    stops: Stops = field(default_factory=Stops)

    def arm(self, probes: Sequence[Probe]) -> tuple[list[Probe], dict[str, int]]:
        """Puts the probes in place, code in one batched stop and GOT slots without one.

        Returns the probes that are in place, and the number of refused ones by reason.
        """
        refused: dict[str, int] = {}
        for probe in probes:
            self.session.probe(probe.id).armed = 1
        code = sorted((probe for probe in probes if not probe.request.plan.is_slot), key=_site)
        slots = [probe for probe in probes if probe.request.plan.is_slot]
        failed = self._change_code([probe.id for probe in code], True, [probe.moves for probe in code])
        failed |= {probe.id for probe in slots if not self._change_slot(probe.id, True)}
        for probe_id in failed:
            self.session.probe(probe_id).armed = 0
            refused[BYTES_DIFFER] = refused.get(BYTES_DIFFER, 0) + 1
        return [probe for probe in probes if probe.id not in failed], refused

    def disarm(self) -> list[int]:
        """Puts back every byte that the probe table says is changed. Returns probes whose bytes were not found."""
        armed = [index for index in range(self.session.probe_count) if self.session.probe(index).armed]
        code = [index for index in armed if self.session.probe(index).kind == lib.NFP_SITE_CODE]
        slots = [index for index in armed if self.session.probe(index).kind == lib.NFP_SITE_GOT]
        code.sort(key=lambda index: int(self.session.probe(index).site))
        missing = [index for index in slots if not self._change_slot(index, False) and not self._is_ours_no_more(index)]
        # A monitor that was killed between the table and the stop has marked probes that are not in place.
        in_place = [index for index in code if self._stands(index, armed=True)]
        missing += [index for index in code if index not in set(in_place) and not self._stands(index, armed=False)]
        missing += self._change_code(in_place, False, [()] * len(in_place))
        for index in armed:
            self.session.probe(index).armed = 0
        return missing

    def _stands(self, index: int, armed: bool) -> bool:
        entry = self.session.probe(index)
        length = min(int(entry.length), 32)
        expected = bytes(ffi.buffer(entry.new_bytes if armed else entry.old_bytes, 32))[:length]
        try:
            return self.target.read(int(entry.site), length) == expected
        except NfprobeError:
            return False

    def _is_ours_no_more(self, index: int) -> bool:
        """Whether a slot holds what it held before, or the dynamic linker has bound it over the probe."""
        if self._stands(index, armed=False):
            return True
        entry = self.session.probe(index)
        try:
            return self.target.read_word(int(entry.site)) == int(entry.function)
        except NfprobeError:
            return False

    def _change_code(self, indexes: Sequence[int], arm: bool, moves: Sequence[Iterable[tuple[int, int]]]) -> set[int]:
        if not indexes:
            return set()
        changes = ffi.new("struct nfp_change[]", len(indexes))
        flat: list[tuple[int, int]] = []
        for change, index, own_moves in zip(changes, indexes, moves, strict=True):
            entry = self.session.probe(index)
            own = list(own_moves)
            change.address, change.bytes = entry.site, min(int(entry.length), 32)
            change.first_move, change.moves = len(flat), len(own)
            ffi.memmove(change.expected, entry.old_bytes if arm else entry.new_bytes, 32)
            ffi.memmove(change.replacement, entry.new_bytes if arm else entry.old_bytes, 32)
            flat += own
        self._stop_and_change(changes, len(indexes), ffi.new("struct nfp_move[]", flat or [(0, 0)]))
        return {index for change, index in zip(changes, indexes, strict=True) if change.failed}

    def _stop_and_change(self, changes: Any, count: int, moves: Any) -> None:
        stop = ffi.new("struct nfp_stop *", {"pid": self.target.pid})
        result = 0
        for attempt in range(STOP_ATTEMPTS):
            result = lib.nfp_stop_and_change(stop, changes, count, moves, STOP_PATIENCE_NS)
            self.stops.count += 1
            self.stops.longest_ns = max(self.stops.longest_ns, int(stop.stopped_ns))
            self.stops.moved += int(stop.moved)
            if result == 0:
                return
            if not os.path.exists(f"/proc/{self.target.pid}"):
                break
            time.sleep(0.001 * (attempt + 1))
        sentence = ffi.string(stop.message).decode(errors="replace")
        raise NfprobeError(
            f"The code of process {self.target.pid} was not changed: {sentence}.", f"nfprobe doctor {self.target.pid}"
        )

    def _change_slot(self, index: int, arm: bool) -> bool:
        entry = self.session.probe(index)
        (old,) = struct.unpack("<Q", bytes(ffi.buffer(entry.old_bytes, 8)))
        (new,) = struct.unpack("<Q", bytes(ffi.buffer(entry.new_bytes, 8)))
        expected, replacement = (old, new) if arm else (new, old)
        return bool(lib.nfp_change_word(self.target.pid, int(entry.site), expected, replacement) == 0)


def text_digests(target: Target, modules: Iterable[Module]) -> dict[str, str]:
    """A digest of the executable bytes of each module as they stand in the target, by path and address."""
    digests = {}
    for module in modules:
        for start, end in module.executable_ranges:
            body = target.read(start, end - start)
            digests[f"{module.path}@{start:#x}"] = hashlib.blake2b(body, digest_size=16).hexdigest()
    return digests


def _site(probe: Probe) -> int:
    return probe.request.plan.site
