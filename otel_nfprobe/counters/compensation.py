# SPDX-License-Identifier: Apache-2.0
"""Compensation: what the probes themselves add to counters, measured in the target with the session's own counters.

The helper thread briefly gets the counters and calls functions that do nothing, with and without a probe, through each
real template. Of what a probe adds, `inside` lies between its two readings and is subtracted from the function's own
counts; the rest up to `whole` is subtracted from those of the calls around it (native/core/counters.h). A poll that
returns nothing leaves no record: the counts of its probe are already excluded from the readings
(native/probe/counter.c).

A function's own counts are those of its instructions, including its return, as a processor would count them without
probes. Of an event that call and return cause together, one half is attributed to the return, which is exact for
instructions and branches. `calibrate_counters` is the only function here that changes anything in a target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from otel_nfprobe._core import lib
from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.columns import Rows, counter_cost_rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.arena import Arenas
from otel_nfprobe.probes.calibration import ALIGNMENT_BYTES, ROOM_BYTES, empty_function, write_probed
from otel_nfprobe.probes.template import NO_ARGUMENT
from otel_nfprobe.probes.trampoline import COPY_SHAPES, Probe
from otel_nfprobe.shm.session import PROGRAM_COUNT, Session

SPARE_PROGRAM = PROGRAM_COUNT - 1
ROUNDS = 21  # the median counts
COUNT_MAX = 1 << 29  # per call; sums of a few such counts still fit a signed 32-bit number
# All templates that read counters.
SHAPES: Sequence[int] = (
    lib.NFP_SHAPE_CALL,
    lib.NFP_SHAPE_ENTER,
    lib.NFP_SHAPE_MARK,
    lib.NFP_SHAPE_COPY_0,
    *COPY_SHAPES.values(),
    lib.NFP_SHAPE_CALL_VALUE,
    lib.NFP_SHAPE_ENTER_VALUE,
    lib.NFP_SHAPE_PACKETS,
    lib.NFP_SHAPE_RECEIVE,
)
Counts = tuple[int, ...]  # one per counter


class CounterCost(NamedTuple):
    """What the probes of one call add to counters: between its two readings, and in total."""

    inside: Counts
    whole: Counts


@dataclass(frozen=True)
class Compensation:
    """What each template adds to counters.

    Attributes:
        by_shape: by enum nfp_shape.
        jump: counts of the jump at a patch site.
        empty_poll: total counts of a receive function's template when the function returns nothing.
    """

    by_shape: Mapping[int, CounterCost] = field(default_factory=dict)
    jump: Counts = ()
    empty_poll: Counts = ()

    def of(self, probe: Probe) -> CounterCost | None:
        """Returns what the probe of a call of the probe's function adds; None: unknown."""
        cost = self.by_shape.get(probe.request.template)
        if cost is None:
            return None
        return CounterCost(cost.inside, self._with_jumps(cost.whole, probe))

    def of_empty_polls(self, probes: Iterable[Probe]) -> Counts:
        """Returns the total counts of the probe of an empty poll. Receive functions can differ by a jump: the
        majority's.
        """
        receiving = [probe for probe in probes if probe.request.template == lib.NFP_SHAPE_RECEIVE]
        found = Counter(self._with_jumps(self.empty_poll, probe) for probe in receiving if self.empty_poll)
        return found.most_common(1)[0][0] if found else self.empty_poll

    def _with_jumps(self, counts: Counts, probe: Probe) -> Counts:
        plan = probe.request.plan
        jumps = -1 if plan.is_slot else 1 if plan.island else 0  # a slot has no jump, an island has one more
        return tuple(total + jumps * jump for total, jump in zip(counts, self.jump, strict=True))


def costs_of(probes: Iterable[Probe], compensation: Compensation) -> Rows:
    """Returns what the probes of a call of each function add (dtype COUNTER_COST, by function ID); 0 where unknown."""
    known = {probe.id: compensation.of(probe) for probe in probes}
    return counter_cost_rows({id: cost for id, cost in known.items() if cost is not None})


def calibrate_counters(
    session: Session,
    arenas: Arenas,
    module: Module,
    count: int,
    shapes: Iterable[int] = SHAPES,
    rounds: int = ROUNDS,
    meanwhile: Callable[[], object] = lambda: None,
) -> Compensation:
    """Measures the templates on the helper thread, which has the counters during the measurement.

    Args:
        module: any module with trampolines nearby.
        count: number of counters.
        shapes: enum nfp_shape.
        rounds: number of measurements, of which the median counts.
        meanwhile: called between measurements, which take a moment in total.

    Raises:
        NfprobeError: nothing can be measured.
    """
    with _Bench(session, arenas, module, count, rounds, meanwhile) as bench:
        host, bare = of_host(), empty_function()
        alone, _ = bench.measure(bare)
        nested = host.encode_call(bench.address, bench.bare_address) + host.return_code
        own = _own(alone, bench.measure(host.no_operation + bare)[0], bench.measure(nested)[0])
        hop, _ = bench.measure(host.encode_jump(bench.address, bench.bare_address))
        by_shape = {}
        for shape in shapes:
            _write_spare_program(session, shape)
            probed = write_probed(session, shape, bench.address, program=SPARE_PROGRAM)
            in_all, between = bench.measure(probed)
            has_exit = shape != lib.NFP_SHAPE_MARK
            inside = _minus(between, own) if has_exit else (0,) * count
            by_shape[shape] = CounterCost(inside, _minus(in_all, alone))
        empty_poll: Counts = ()
        if lib.NFP_SHAPE_RECEIVE in by_shape:
            polled = write_probed(session, lib.NFP_SHAPE_RECEIVE, bench.address, is_empty=True)
            empty_poll = _minus(bench.measure(polled)[0], alone)
        return Compensation(by_shape, _minus(hop, alone), empty_poll)


class _Bench:
    """Space in the target for a function that does nothing, followed by the one to be measured.

    Attributes:
        bare_address: of the function that does nothing.
        address: of the function to be measured.
    """

    def __init__(
        self,
        session: Session,
        arenas: Arenas,
        module: Module,
        count: int,
        rounds: int,
        meanwhile: Callable[[], object],
    ) -> None:
        self._session, self._count, self._rounds, self._meanwhile = session, count, rounds, meanwhile
        arena = arenas.near(module, ROOM_BYTES, in_file=False)
        self._entry, self._mapping = arenas.entry(arena), arenas.mapping(arena)
        self._used = int(self._entry.used)
        self._start = -(-self._used // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.bare_address = int(self._entry.address) + self._start
        self.address = self.bare_address + ALIGNMENT_BYTES

    def __enter__(self) -> _Bench:
        self._entry.used = self._start + ROOM_BYTES  # reserved until the helper thread has finished
        bare = empty_function()
        self._mapping[self._start : self._start + len(bare)] = bare
        return self

    def __exit__(self, *_: object) -> None:
        self._entry.used = self._used
        self._session.program(SPARE_PROGRAM).role = self._session.program(SPARE_PROGRAM).plain = 0

    def measure(self, code: bytes) -> tuple[Counts, Counts]:
        """Returns the counts of one call of this code, in total and between the readings of its probe."""
        place = self._start + ALIGNMENT_BYTES
        self._mapping[place : place + len(code)] = code
        self._meanwhile()
        result = self._session.ask(lib.NFP_COMMAND_CALIBRATE_COUNTERS, self.address, self._rounds)
        header = self._session.header
        calls = int(header.counted_calls)
        if result != 0 or not calls:
            raise NfprobeError("they were not counting without interruption for long enough")
        in_all = tuple(round(int(header.counted_in_all[i]) / calls) for i in range(self._count))
        between = tuple(round(int(header.counted_between[i]) / calls) for i in range(self._count))
        if max(in_all + between) > COUNT_MAX:
            raise NfprobeError("the target reports impossible counts")
        return in_all, between


def _own(bare: Counts, twice: Counts, nested: Counts) -> Counts:
    """Returns the counts of the function that does nothing, without a probe.

    Args:
        bare: a call of it.
        twice: the same with its only instruction repeated.
        nested: a call of a function that only calls it.
    """
    return tuple(two - one + (more - one) // 2 for one, two, more in zip(bare, twice, nested, strict=True))


def _minus(first: Counts, second: Counts) -> Counts:
    return tuple(one - other for one, other in zip(first, second, strict=True))


def _write_spare_program(session: Session, shape: int) -> None:
    # Reads no packet, and counts one received and none transmitted: what remains is the work of every probe of a
    # receive, transmit or drop function.
    receives = shape == lib.NFP_SHAPE_RECEIVE
    program = session.program(SPARE_PROGRAM)
    program.role = lib.NFP_ROLE_RECEIVE if receives else lib.NFP_ROLE_TRANSMIT
    program.when = lib.NFP_WHEN_ALWAYS if receives else lib.NFP_WHEN_NONZERO
    program.count_from = lib.NFP_COUNT_FIXED
    program.count_argument = int(receives)
    program.requested_argument = program.pointers_argument = NO_ARGUMENT
    program.count_width = program.verdict = 0
    program.plain = 1  # as for most functions
