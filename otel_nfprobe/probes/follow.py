# SPDX-License-Identifier: Apache-2.0
"""Follow: what the target loads, unloads and binds while it is measured, and the resulting probes.

A thread of the monitor checks ten times a second, and soon after probes were armed:
    loader's list changed -> new modules: plan, trampolines, register the function IDs with the drain, arm
                          -> unloaded modules: their probes are gone; nothing is ever written to their addresses
    adapter, at intervals -> functions that only now receive or transmit (a port was started): the same; those that it
                             knows beforehand are judged before they run, when there is time
    slots we changed      -> the dynamic linker bound a function over a probe: probed again
    code we changed       -> the same module unloaded and loaded again between two checks: armed again

The thread writes through patch.py only. It ends before a detach begins.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile

from otel_nfprobe._core import ffi
from otel_nfprobe.adapters.base import ForeseeingAdapter
from otel_nfprobe.adapters.ethdev import module_at
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, function_at
from otel_nfprobe.probes.analysis import FunctionPlan, plan_functions
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.probes.slots import changed_slots
from otel_nfprobe.probes.trampoline import Probe, ProbeRequest, Trampolines
from otel_nfprobe.probes.unwinders import tell_unwinders
from otel_nfprobe.target.linkmap import LinkMap, Listed
from otel_nfprobe.target.liveness import Liveness
from otel_nfprobe.target.target import Target

# ---- functions that may run later -----------------------------------------------------------------------------------
# Expected functions: those that an adapter may find while the target is measured, analysed before they run.
#
# The first plan of a module scans all of its code. With it done ahead, a node that runs for the first time gets its
# probe as soon as it is seen, and the next attach finds all plans on disk. Changes nothing in the target.


def analyse_ahead(choice: Choice, target: Target, is_wanted: Callable[[], bool]) -> Iterator[None]:
    """Judges them, one module per step, the one with the most first; nothing if the adapter expects none.

    Functions that cannot be judged are refused when they run, with their reason.

    Args:
        is_wanted: checked before each of them; a session that is ending does not wait for them.
    """
    if not isinstance(choice.adapter, ForeseeingAdapter):
        return
    by_module: dict[int, list[Function]] = {}
    with suppress(NfprobeError):
        modules = target.modules()
        for address in choice.adapter.possible_functions():
            module = module_at(modules, address)
            function = None if module is None else function_at(module, address - module.base)
            if function is not None and function.address == address:
                by_module.setdefault(id(module), []).append(function)
    for functions in sorted(by_module.values(), key=len, reverse=True):
        with suppress(NfprobeError):
            plan_functions(takewhile(lambda _: is_wanted(), functions), target, choice.request.strategy)
        yield


# ---- modules that come and go ---------------------------------------------------------------------------------------


LOOK_S = 0.1
FIRST_LOOK_S = 0.01  # after arming: a thread inside the dynamic linker stores what it had resolved before
UNSETTLED_S = 1.0  # a module is relocated after it was listed; a list that never becomes idle is taken as it is
ROLES_LOOK_S = 0.5  # maximum interval of asking the adapter ...
ROLES_PAUSE_RATIO = 20  # ... or this multiple of the CPU time of the last query
SITE_BYTES_MAX = 32
IN_PLACE, AS_BEFORE, CHANGED = "in place", "as before", "changed"  # state of a site


def _introduce_nobody(_added: Sequence[Probe]) -> bool:
    return False  # nothing is armed that nobody measures


@dataclass
class Follower:
    """Keeps the probes of one session in step with the modules of its target.

    Attributes:
        introduce: registers the IDs of new probes with the readers of records; False: the session is ending.
        protect: receives each module before code in it is changed.
        placed: armed probes, by ID.
        modules: loaded modules, as far as known.
        loaded, closed: modules with probes that were loaded and unloaded.
        rebound: slots that the dynamic linker had bound over a probe.
        write_programs: writes the capture programs for all functions of the adapter.
    """

    target: Target
    liveness: Liveness
    choice: Choice
    patcher: Patcher
    trampolines: Trampolines
    protect: Callable[[Module], None]
    notify: Callable[[str], None]
    write_programs: Callable[[], None]
    introduce: Callable[[Sequence[Probe]], bool] = _introduce_nobody
    placed: dict[int, Probe] = field(default_factory=dict)
    loaded: int = 0
    closed: int = 0
    rebound: int = 0

    def __post_init__(self) -> None:
        self._roles_at = 0.0
        self._ahead: Iterator[None] = analyse_ahead(self.choice, self.target, self._is_running)
        self._later: list[ProbeRequest] = []  # for functions of the adapter without a probe so far
        self._link_map = LinkMap(self.target)
        self._list: Listed | None = None
        self._unsettled_until = 0.0
        self.modules: list[Module] = list(self.choice.modules)
        self._holders: dict[int, Module] = {}  # by probe ID: the module whose memory is changed
        self._tried: set[int] = set()  # sites already tried
        self._unwanted: deque[int] = deque()  # probes to be removed
        self._witnesses: dict[int, int] = {}  # one armed probe in the code of each module
        self._slots: dict[int, int] = {}  # expected value of each slot of an armed probe
        self._slot_probes: dict[int, int] = {}  # probe ID by slot
        self._said: set[str] = set()
        self.turn = threading.Lock()  # held while the target is changed, and the helper thread has commands
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def place(self, probes: Sequence[Probe]) -> None:
        """Takes charge of armed probes."""
        for probe in probes:
            site, plan = probe.request.plan.site, probe.request.plan
            self.placed[probe.id] = probe
            self._holders[probe.id] = self._holder(probe)
            self._tried.add(site)
            if plan.is_slot:
                self._slots[site], self._slot_probes[site] = probe.trampoline, probe.id
            else:
                self._witnesses[id(plan.module)] = probe.id

    def _holder(self, probe: Probe) -> Module:
        plan = probe.request.plan
        around = (module for module in self.modules if plan.is_slot and module.low <= plan.site < module.high)
        return next(around, plan.module)

    def take_out(self, indexes: Sequence[int]) -> None:
        """Removes probes from the target soon; their function IDs keep their meaning."""
        self._unwanted.extend(indexes)

    # ---- the thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def end(self, meanwhile: Callable[[], None]) -> None:
        """Ends the thread; calls `meanwhile` until its current work is finished."""
        self._stopping.set()
        while self._thread.is_alive():
            meanwhile()
        # These are the monitor's own methods: a reference to them would keep it, and all that it holds, alive until a
        # garbage collection.
        self.introduce, self.write_programs, self._ahead = _introduce_nobody, lambda: None, iter(())

    def _run(self) -> None:
        pause_s = FIRST_LOOK_S
        while not self._stopping.wait(pause_s):
            before = len(self.placed)
            try:
                with self.turn:
                    self.look()
                next(self._ahead, None)  # takes a while and changes nothing: done without the lock
            except NfprobeError as error:
                self._report_once(error.sentence)
            except OSError as error:
                self._report_once(f"Process {self.target.pid} cannot be inspected: {error.strerror}.")
            pause_s = LOOK_S if len(self.placed) == before else FIRST_LOOK_S

    def _is_running(self) -> bool:
        return not self._stopping.is_set()

    def _report_once(self, sentence: str) -> None:
        if sentence not in self._said and not self.liveness.is_gone:
            self._said.add(sentence)
            self.notify(sentence)

    def between_looks(self, work: Callable[[], None]) -> None:
        """Runs work that needs the helper thread, unless a check is using it."""
        if self.turn.acquire(blocking=False):
            try:
                work()
            finally:
                self.turn.release()

    # ---- one look ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compares the target with its known state, and updates the probes.

        Raises:
            NfprobeError: it cannot be read or changed at this moment; the next check retries.
        """
        at_rest, listed = self._link_map.read()
        now = time.monotonic()
        if listed != self._list:
            if not at_rest and self._unsettled_until == 0.0:
                self._unsettled_until = now + UNSETTLED_S
            if at_rest or now > self._unsettled_until:
                self._list, self._unsettled_until = listed, now + UNSETTLED_S
                self._follow_modules()
        elif now < self._unsettled_until:
            slots = self.choice.new_slots(self.target, self._tried)
            if self._put(self.choice.requests(slots)) is None:
                self._tried.difference_update(plan.site for plan in slots)
        else:
            self._unsettled_until = 0.0
        self._follow_roles()
        self._take_out()
        self._rearm_code()
        self._rearm_slots()

    def _follow_modules(self) -> None:
        current = self.target.modules()
        self._forget(current)
        fresh = [module for module in current if not _is_in(module, self.modules)]
        fresh.sort(key=_code_bytes)  # a large one takes seconds
        self.modules = current
        if fresh:
            tell_unwinders(self.target, self.patcher, fresh)
        placed: list[Probe] = []
        for turn, module in enumerate(fresh):  # one by one: while a large one is planned, others are loaded
            if self._stopping.is_set():
                break
            if not self._add(placed, self.choice.add_modules(self.target, [module])):
                self._list = None
                self._tell_loaded(fresh[:turn], placed)
                self._forget([known for known in current if not _is_in(known, fresh[turn:])])
                return
        if not self._add(placed, self.choice.new_slots(self.target, self._tried)):
            self._list = None
        self._tell_loaded(fresh, placed)

    def _tell_loaded(self, modules: Sequence[Module], placed: Sequence[Probe]) -> None:
        for module in modules:
            count = sum(_is_in(module, (probe.request.plan.module, self._holders[probe.id])) for probe in placed)
            if count:
                self.loaded += 1
                self._report_once(f"{module.name} was loaded: {count} more functions or GOT slots are probed.")

    def _add(self, placed: list[Probe], plans: Sequence[FunctionPlan]) -> bool:
        """Arms these. False: a module was unloaded in the meantime, so planned addresses may be stale."""
        found = self._arm_if_possible(self.choice.requests(plans))
        if found is None:
            self._tried.difference_update(plan.site for plan in plans)
            return False
        placed += found
        return True

    def _follow_roles(self) -> None:
        if time.monotonic() >= self._roles_at:
            before_s = time.thread_time()
            fresh = self.choice.add_roles(self.target)
            self._later += self.choice.requests(fresh)
            if unprobed := self.choice.tell_unprobed(fresh):
                self.notify(unprobed)
            pause_s = ROLES_PAUSE_RATIO * (time.thread_time() - before_s)
            # Where one was found others follow: packets on another path reach several new functions. There are not
            # many.
            self._roles_at = time.monotonic() + (0.0 if fresh else min(pause_s, ROLES_LOOK_S))
        if not self._later:
            return
        self.write_programs()
        placed = self._put(self._later)
        if placed is not None:  # otherwise the list of modules has changed: the next check retries
            self._later = []
        if placed:
            names = ", ".join(probe.request.plan.function.label for probe in placed)
            self.notify(f"{len(placed)} more functions receive or transmit now and are probed: {names}.")

    def _arm_if_possible(self, requests: Sequence[ProbeRequest]) -> list[Probe] | None:
        try:
            return self._put(requests)
        except NfprobeError:
            if self._link_map.still_holds(self._list):
                raise
            return None  # a module was unloaded in the meantime

    def _put(self, requests: Sequence[ProbeRequest]) -> list[Probe] | None:
        """Creates and arms probes. Returns those that were armed; None: nothing was done, retry."""
        if not requests or self._stopping.is_set():
            return []
        self._tried.update(request.plan.site for request in requests)
        made, refused = self.trampolines.make(requests)
        for module in {id(probe.request.plan.module): probe.request.plan.module for probe in made}.values():
            self.protect(module)
        if not made or not self.introduce(made):
            return []
        if not self._link_map.still_holds(self._list):
            return None
        placed, differ = self.patcher.arm(made)
        self.place(placed)
        self.choice.refuse(refused, differ)
        return placed

    def _take_out(self) -> None:
        indexes = [self._unwanted.popleft() for _ in range(len(self._unwanted))]
        indexes = [index for index in indexes if index in self.placed]
        if not indexes:
            return
        try:
            self.patcher.disarm(indexes)
        except NfprobeError:
            self._unwanted.extend(indexes)  # the target cannot be changed at this moment: the next check retries
            raise
        for index in indexes:
            probe = self.placed.pop(index)
            self._slots.pop(probe.request.plan.site, None)
            del self._holders[index]
        self._witnesses = {
            id(probe.request.plan.module): index
            for index, probe in self.placed.items()
            if not probe.request.plan.is_slot
        }

    # ---- modules that are closed ---------------------------------------------------------------------------

    def forget_closed(self) -> None:
        """Marks the probes of unloaded modules: the contents of their addresses are no longer ours."""
        try:
            self._forget(self.target.modules())
        except NfprobeError as error:
            self._report_once(error.sentence)

    def is_placed(self, index: int) -> bool:
        """Returns whether the memory changed by probe `index` still belongs to its module."""
        return index in self._holders

    def _forget(self, current: Sequence[Module]) -> None:
        gone = [module for module in self.modules if not _is_in(module, current)]
        self.modules = [module for module in self.modules if _is_in(module, current)]
        for module in gone:
            lost = [index for index, holder in self._holders.items() if holder is module]
            for index in lost:
                self.patcher.session.patches.mark(index, False)
                site = self.placed[index].request.plan.site
                self._slots.pop(site, None)
                del self._holders[index], self.placed[index]
            self.closed += bool(lost)
            self._witnesses.pop(id(module), None)
            self._tried = {site for site in self._tried if not module.low <= site < module.high}
            self.choice.forget_module(module)

    # ---- what was put in place and is not any more ---------------------------------------------------------

    def _rearm_code(self) -> None:
        """A module that was unloaded and loaded again since the last check has its original code at the same place."""
        differing = [index for index in self._witnesses.values() if self._stands(index) != IN_PLACE]
        if not differing:
            return
        self._forget(self.target.modules())
        for index in differing:
            if index not in self.placed:
                self._list = None  # its replacement is checked next, even if the list looks the same
                continue
            holder = self._holders[index]
            found = {number: self._stands(number) for number, module in self._holders.items() if module is holder}
            if IN_PLACE not in found.values():
                self.patcher.arm([self.placed[number] for number in found if found[number] == AS_BEFORE])
            if found[index] == CHANGED:  # by another party, whose bytes stay
                del self._witnesses[id(holder)]

    def _stands(self, index: int) -> str:
        """Returns the state of a probe's site; "" if it cannot be read, or is a slot."""
        entry = self.patcher.session.probe(index)
        length = min(int(entry.length), SITE_BYTES_MAX)
        if self.placed[index].request.plan.is_slot:
            return ""
        try:
            found = self.target.read(int(entry.site), length)
        except NfprobeError:
            return ""
        if found == bytes(ffi.buffer(entry.new_bytes, SITE_BYTES_MAX))[:length]:
            return IN_PLACE
        return AS_BEFORE if found == bytes(ffi.buffer(entry.old_bytes, SITE_BYTES_MAX))[:length] else CHANGED

    def _rearm_slots(self) -> None:
        again: list[Probe] = []
        for site, value in changed_slots(self.target, self._slots).items():
            probe = self.placed[self._slot_probes[site]]
            entry = self.patcher.session.probe(probe.id)
            if value in (int(entry.function), int.from_bytes(bytes(ffi.buffer(entry.old_bytes, 8)), "little")):
                ffi.buffer(entry.old_bytes, 8)[:] = value.to_bytes(8, "little")
                again.append(probe)
        if again:
            self.rebound += len(self.patcher.arm(again)[0])


def _code_bytes(module: Module) -> int:
    return sum(end - start for start, end in module.executable_ranges)


def _is_in(module: Module, modules: Sequence[Module]) -> bool:
    return any(module is other for other in modules)
