# SPDX-License-Identifier: Apache-2.0
"""Patch: arms and disarms probes; the only writer of a target's code and GOT slots.

Every change goes plan -> check the expected bytes -> write -> read back. The original bytes stay in the monitor's own
memory (patchtable.py); the probe table in the session's memory is written before the target is, so that a later monitor
can undo everything that the target's files confirm (evidence.py) if this one is killed.

Sites where exactly one instruction is displaced are changed while the target runs (native/core/live.h), the others in
short stops of all threads (native/core/stop.h). docs/patching.md explains why.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.evidence import find_doubts
from otel_nfprobe.probes.trampoline import Probe
from otel_nfprobe.shm.session import Session
from otel_nfprobe.target.target import Target, read_status

STOP_PATIENCE_NS = 2_000_000_000
STOP_ATTEMPTS = 50
STOP_CHANGES_MAX = 4000  # in one stop: about a millisecond of writing
SYNC_PATIENCE_NS = 5_000_000_000
BYTES_DIFFER = "the bytes in memory differ from the file"
CODE_KINDS = (lib.NFP_SITE_CODE, lib.NFP_SITE_SINGLE)
NEEDS_STOP = "needs a stop of all threads"
ISLAND_BYTES = 5
LEFT_TOLD_MAX = 8
Moves = Mapping[int, Iterable[tuple[int, int]]]  # by probe: program counters inside displaced bytes -> in their copy
NO_HELPER = "no helper thread is in the target"
NO_MEMBARRIER = "the kernel or a seccomp filter denies membarrier to the target"


@dataclass
class Stops:
    """How often and how long all threads of the target were stopped."""

    count: int = 0
    longest_ns: int = 0
    moved: int = 0  # number of program counters moved out of changed bytes

    def add(self, stopped_ns: int, moved: int = 0) -> None:
        """Counts one stop."""
        self.count += 1
        self.longest_ns = max(self.longest_ns, stopped_ns)
        self.moved += moved


@dataclass
class Live:
    """Changes made while the target ran.

    Attributes:
        changed: number of sites armed and disarmed.
        traps: how often a thread hit a site under change and was redirected.
        children: processes that the target forked in the meantime, which got consistent code.
        refusal: why sites that need no stop were changed in one regardless; "" if none were.
    """

    changed: int = 0
    traps: int = 0
    children: int = 0
    refusal: str = ""


@dataclass
class Patcher:
    """Changes the target of one session.

    Attributes:
        no_stop: sites that could only be changed in a stop of all threads are refused; they are still restored in one.
        membarrier: whether the target may make this system call, if that is known more precisely than by whether it has
            a seccomp filter.
    """

    session: Session
    target: Target
    stops: Stops = field(default_factory=Stops)
    live: Live = field(default_factory=Live)
    no_stop: bool = False
    membarrier: bool | None = None
    left: dict[int, str] = field(default_factory=dict)  # claimed changes of an earlier monitor not undone, and why
    _is_registered: bool = False

    def arm(self, probes: Sequence[Probe]) -> tuple[list[Probe], dict[str, int]]:
        """Arms probes.

        Returns the armed probes, and the number of refused ones by reason.
        """
        for probe in probes:
            entry = self.session.probe(probe.id)
            if entry.kind != lib.NFP_SITE_GOT:
                entry.kind = lib.NFP_SITE_SINGLE if probe.request.plan.single else lib.NFP_SITE_CODE
            self.session.patches.mark(probe.id, True)
            self.session.patches.claimed.discard(probe.id)
        slots = [probe.id for probe in probes if probe.request.plan.is_slot]
        code = [probe for probe in probes if not probe.request.plan.is_slot]
        single = [probe.id for probe in code if probe.request.plan.single]
        left, failed = self._change_live(single, True)
        moves = {probe.id: probe.moves for probe in code}
        stopped = left + [probe.id for probe in code if not probe.request.plan.single]
        reasons = dict.fromkeys(failed, BYTES_DIFFER)
        if self.no_stop:
            reasons |= dict.fromkeys(stopped, f"{self.live.refusal or NEEDS_STOP}, and --no-stop was given")
        else:
            reasons |= dict.fromkeys(self._change_stopped(stopped, True, moves), BYTES_DIFFER)
        reasons |= {index: BYTES_DIFFER for index in slots if not self._change_slot(index, True)}
        refused: dict[str, int] = {}
        for probe_id, reason in reasons.items():
            self.session.patches.mark(probe_id, False)
            refused[reason] = refused.get(reason, 0) + 1
        return [probe for probe in probes if probe.id not in reasons], refused

    def disarm(self, only: Iterable[int] | None = None) -> list[int]:
        """Restores every changed byte, or those of some probes.

        Changes of a killed monitor are undone where the target's files agree; the rest is in `left`. Returns probes
        whose bytes were not found.
        """
        indexes = range(self.session.probe_count) if only is None else only
        armed = [index for index in indexes if index not in self.left and self.session.probe(index).armed]
        armed = self._filter_doubtful(armed)
        code = [index for index in armed if self.session.probe(index).kind in CODE_KINDS]
        slots = [index for index in armed if self.session.probe(index).kind == lib.NFP_SITE_GOT]
        missing = [index for index in slots if not self._change_slot(index, False) and not self._is_overwritten(index)]
        # A monitor that was killed between the table and the change has marked probes that are not in place.
        in_place = [index for index in code if self._stands(index, armed=True)]
        gone = set(code).difference(in_place)
        missing += [index for index in gone if not self._stands(index, armed=False)]
        single = [index for index in in_place if self._is_single(index)]
        left, failed = self._change_live(single, False)
        stopped = left + [index for index in in_place if not self._is_single(index)]
        missing += failed + self._change_stopped(stopped, False, {})
        self._restore_islands([index for index in code if self._island_stands(index)])
        for index in armed:
            self.session.patches.mark(index, False)
        return missing

    def _filter_doubtful(self, armed: list[int]) -> list[int]:
        """Returns the entries that may be restored."""
        claimed = [index for index in armed if index in self.session.patches.claimed]
        kinds = (*CODE_KINDS, lib.NFP_SITE_GOT)
        strange = {index: f"probe {index}: its kind is invalid" for index in claimed if self._kind(index) not in kinds}
        standing = [index for index in claimed if self._stands(index, armed=True) or self._island_stands(index)]
        doubts = strange | (find_doubts(self.target, self.session.patches, standing) if standing else {})
        self.left.update(doubts)
        return [index for index in armed if index not in doubts]

    def tell_left(self) -> list[str]:
        """Returns sentences about the entries in `left`, a limited number."""
        told = [f"not restored: {doubt}." for doubt in list(self.left.values())[:LEFT_TOLD_MAX]]
        more = len(self.left) - len(told)
        return told + ([f"not restored: {more} more."] if more else [])

    # ---- the probe table -----------------------------------------------------------------------------------

    def is_in_place(self, index: int) -> bool:
        """Returns whether the changed bytes of a probe are in the target."""
        return self._stands(index, armed=True)

    def is_left_behind(self, index: int) -> bool:
        """Returns whether the jump in a probe's island is left although the site is restored."""
        return self._island_stands(index)

    def _kind(self, index: int) -> int:
        return int(self.session.probe(index).kind)

    def _is_single(self, index: int) -> bool:
        return self._kind(index) == lib.NFP_SITE_SINGLE

    def _stands(self, index: int, armed: bool) -> bool:
        entry = self.session.probe(index)
        return self._holds(int(entry.site), entry.new_bytes if armed else entry.old_bytes, min(int(entry.length), 32))

    def _island_stands(self, index: int) -> bool:
        """Returns whether a restored site still has the jump in its island."""
        entry = self.session.probe(index)
        is_there = bool(entry.island) and self._holds(int(entry.island), entry.island_new, ISLAND_BYTES)
        return is_there and self._stands(index, armed=False)

    def _holds(self, address: int, content: Any, length: int) -> bool:
        try:
            return self.target.read(address, length) == bytes(ffi.buffer(content))[:length]
        except NfprobeError:
            return False

    def _is_overwritten(self, index: int) -> bool:
        """Returns whether a slot contains its old value, or the dynamic linker has bound it over the probe."""
        if self._stands(index, armed=False):
            return True
        entry = self.session.probe(index)
        try:
            return self.target.read_word(int(entry.site)) == int(entry.function)
        except NfprobeError:
            return False

    # ---- code ----------------------------------------------------------------------------------------------

    def _changes(self, indexes: Sequence[int], arm: bool, moves: Moves) -> tuple[Any, Any]:
        """Builds arrays of struct nfp_change and struct nfp_move."""
        changes = ffi.new("struct nfp_change[]", len(indexes))
        flat: list[tuple[int, int]] = []
        for change, index in zip(changes, indexes, strict=True):
            entry = self.session.probe(index)
            own = list(moves.get(index, ()))
            change.address, change.bytes = entry.site, min(int(entry.length), 32)
            change.trampoline, change.island = entry.trampoline, entry.island
            change.first_move, change.moves = len(flat), len(own)
            ffi.memmove(change.expected, entry.old_bytes if arm else entry.new_bytes, 32)
            ffi.memmove(change.replacement, entry.new_bytes if arm else entry.old_bytes, 32)
            ffi.memmove(change.island_expected, entry.island_old if arm else entry.island_new, 8)
            ffi.memmove(change.island_replacement, entry.island_new if arm else entry.island_old, 8)
            flat += own
        return changes, ffi.new("struct nfp_move[]", flat or [(0, 0)])

    def _change_live(self, indexes: Sequence[int], arm: bool) -> tuple[list[int], list[int]]:
        """Changes sites while the target runs.

        Returns those left unchanged, because it is not possible in this target now, and those whose bytes differ.
        """
        if not indexes or not self._may_change_live():
            return list(indexes), []
        indexes = sorted(indexes, key=self._site)
        changes, _ = self._changes(indexes, arm, {})
        live = ffi.new("struct nfp_live *", {**self._where(), "restores": not arm, "patience_ns": SYNC_PATIENCE_NS})
        if lib.nfp_change_live(live, self.session.header, changes, len(indexes)) != 0:
            self.live.refusal = ffi.string(live.message).decode(errors="replace")
        self.live.changed += int(live.changed)
        self.live.traps += int(live.traps)
        self.live.children += int(live.children)
        if live.stops:
            self.stops.add(int(live.stopped_ns), int(live.moved))
        results = dict(zip(indexes, [int(change.failed) for change in changes], strict=True))
        left = [index for index, result in results.items() if result == lib.NFP_CHANGE_LEFT]
        differ = (lib.NFP_CHANGE_UNEXPECTED, lib.NFP_CHANGE_UNREAD)
        return left, [index for index, result in results.items() if result in differ]

    def _may_change_live(self) -> bool:
        if not self.session.helper_is_there:
            self.live.refusal = NO_HELPER
            return False
        if not self._is_registered:
            allowed = self.membarrier
            if allowed is None:
                allowed = read_status(self.target.pid).get("Seccomp", "0") == "0"
            self._is_registered = allowed and self.session.ask(lib.NFP_COMMAND_SYNC_CORE, lib.NFP_SYNC_REGISTER) == 0
            if not self._is_registered:
                self.live.refusal = NO_MEMBARRIER
        return self._is_registered

    def _change_stopped(self, indexes: Sequence[int], arm: bool, moves: Moves) -> list[int]:
        """Changes sites in as many stops as needed to keep each short. Returns those whose bytes differ."""
        indexes = sorted(indexes, key=self._site)
        failed: list[int] = []
        for start in range(0, len(indexes), STOP_CHANGES_MAX):
            chunk = indexes[start : start + STOP_CHANGES_MAX]
            changes, flat = self._changes(chunk, arm, moves)
            self._stop_and_change(changes, len(chunk), flat)
            failed += [index for change, index in zip(changes, chunk, strict=True) if change.failed]
        return failed

    def _restore_islands(self, indexes: Sequence[int]) -> None:
        """Restores islands of restored sites, left when a thread could not be visited or a monitor was killed."""
        if not indexes:
            return
        changes = ffi.new("struct nfp_change[]", len(indexes))
        moves = ffi.new("struct nfp_move[]", len(indexes))
        for position, index in enumerate(sorted(indexes, key=lambda index: int(self.session.probe(index).island))):
            entry, change = self.session.probe(index), changes[position]
            change.address, change.bytes = entry.island, ISLAND_BYTES
            change.first_move, change.moves = position, 1
            moves[position] = (entry.island, entry.trampoline)
            ffi.memmove(change.expected, entry.island_new, 8)
            ffi.memmove(change.replacement, entry.island_old, 8)
        self._stop_and_change(changes, len(indexes), moves)

    def _where(self) -> dict[str, int]:
        return {"pid": self.target.pid, "memory_fd": self.target.memory.descriptor}

    def _site(self, index: int) -> int:
        return int(self.session.probe(index).site)

    def _stop_and_change(self, changes: Any, count: int, moves: Any) -> None:
        stop = ffi.new("struct nfp_stop *", self._where())
        for attempt in range(STOP_ATTEMPTS):
            result = lib.nfp_stop_and_change(stop, changes, count, moves, STOP_PATIENCE_NS)
            self.stops.add(int(stop.stopped_ns), int(stop.moved))
            if result == 0:
                return
            if result == -errno.ESTALE or not os.path.exists(f"/proc/{self.target.pid}"):
                break
            time.sleep(0.001 * (attempt + 1))
        sentence = ffi.string(stop.message).decode(errors="replace")
        raise NfprobeError(
            f"The code of process {self.target.pid} was not changed: {sentence}.", f"nfprobe doctor {self.target.pid}"
        )

    def lead(self, slot: int, expected: int, replacement: int) -> bool:
        """Changes a slot that belongs to no probe, for the life of the target. Returns whether it contained the
        expected value.
        """
        return bool(lib.nfp_change_word(self.target.memory.descriptor, slot, expected, replacement) == 0)

    def _change_slot(self, index: int, arm: bool) -> bool:
        entry = self.session.probe(index)
        (old,) = struct.unpack("<Q", bytes(ffi.buffer(entry.old_bytes, 8)))
        (new,) = struct.unpack("<Q", bytes(ffi.buffer(entry.new_bytes, 8)))
        expected, replacement = (old, new) if arm else (new, old)
        return bool(lib.nfp_change_word(self.target.memory.descriptor, int(entry.site), expected, replacement) == 0)


def text_digests(target: Target, modules: Iterable[Module]) -> dict[str, str]:
    """Returns a digest of the executable bytes of each module in the target, by path and address."""
    digests = {}
    for module in modules:
        for start, end in module.executable_ranges:
            body = target.read(start, end - start)
            digests[f"{module.path}@{start:#x}"] = hashlib.blake2b(body, digest_size=16).hexdigest()
    return digests


# ---- what code was before -------------------------------------------------------------------------------------------
# CodeDigests: digests of each module's code before it is changed, to prove afterwards that it is as it was.


class CodeDigests:
    """The code of the modules of one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before: dict[int, tuple[Module, dict[str, str]]] = {}

    def keep(self, module: Module) -> None:
        """Stores the digest of a module's code; may be called repeatedly.

        Raises:
            NfprobeError: it is no longer mapped.
        """
        if id(module) not in self._before:
            # Reading the memory map again replaces the ranges of a module; those that are compared must stay.
            same = replace(module, executable_ranges=list(module.executable_ranges))
            self._before[id(module)] = (same, text_digests(self._target, [same]))

    def adopt(self, parent: CodeDigests) -> None:
        """Takes over the digests of the process that this one was forked from: code here may already be changed."""
        self._before.update(parent._before)

    def differing(self, modules: Iterable[Module]) -> list[str]:
        """Returns places, as path@address, where the code of these modules differs from the original.

        Raises:
            NfprobeError: a module is no longer mapped.
        """
        found = []
        for module in modules:
            if id(module) in self._before:
                same, before = self._before[id(module)]
                after = text_digests(self._target, [same])
                found += [place for place in before if after.get(place) != before[place]]
        return found
