# SPDX-License-Identifier: Apache-2.0
"""Attachment: the probes in one target, from checking its program to restoring its last byte.

Order of an attach: check the target, read its files and plan (nothing is changed) -> inject -> trampolines -> arm in
one batched stop -> follow the modules that the target loads. The session enables recording (monitor.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from otel_nfprobe.base.errors import EndedError, NfprobeError
from otel_nfprobe.base.gc_tuning import collection_paused
from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.counters.compensation import Compensation
from otel_nfprobe.monitor.probe_table import describe_functions, find_names, find_roles
from otel_nfprobe.monitor.reserve import reserves_descriptors
from otel_nfprobe.pipeline.identity import Identity
from otel_nfprobe.probes.calibration import Cost, calibrate
from otel_nfprobe.probes.capture_programs import write_programs
from otel_nfprobe.probes.codemap import CodePart
from otel_nfprobe.probes.follow import Follower
from otel_nfprobe.probes.inherited import remove_inherited
from otel_nfprobe.probes.inject import Injected, inject
from otel_nfprobe.probes.patch import CodeDigests, Patcher
from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.probes.slots import count_stored_pointers
from otel_nfprobe.probes.trampoline import Probe, Trampolines
from otel_nfprobe.probes.unwinders import tell_unwinders
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.shm.session import Session
from otel_nfprobe.target.liveness import Liveness, replaced
from otel_nfprobe.target.target import Target


@reserves_descriptors("attach", "disarm", "abandon")
@dataclass
class Attachment:
    """The probes of one session in one target.

    Attributes:
        target: checked.
        choice: what to probe.
        ring_bytes: size of each thread's ring.
        notify: reports a sentence to the user.
        stopping: set: the session ends, or does not start.
        identity: how packets are identified.
        probes: every probe that ever was in place; a function id keeps its meaning when its module is closed.
        parts: code of ours in the target.
        costs: of a probed call, by strategy.
        uncovered: stored pointers to functions that are probed only by GOT slots.
        has_gone: the process is gone, or runs another program: there is nothing to restore.
        not_restored: what could not be restored.
    """

    target: Target
    choice: Choice
    ring_bytes: int
    notify: Callable[[str], None]
    stopping: threading.Event = field(default_factory=threading.Event)
    identity: Identity = field(default_factory=Identity)
    probes: list[Probe] = field(default_factory=list)
    parts: list[CodePart] = field(default_factory=list)
    costs: dict[str, Cost] = field(default_factory=dict)
    uncovered: int = 0
    has_gone: bool = False
    not_restored: list[str] = field(default_factory=list)
    _abandoned: bool = True  # nothing is injected in the target

    @collection_paused()
    def attach(self) -> None:
        """Injects and arms. Undoes everything before an error propagates.

        Raises:
            NfprobeError: nothing is probed.
        """
        self.check_not_stopped()
        requests = self.choice.requests()
        if not requests:
            raise NfprobeError(
                f"None of the {len(self.choice.plans)} chosen functions can be probed: "
                + ", ".join(f"{count} {reason}" for reason, count in self.choice.refused.items())
                + ".",
                f"nfprobe functions {self.target.pid}",
            )
        self.liveness = Liveness(self.target)
        self.code_digests = CodeDigests(self.target)
        try:
            self.injected: Injected = inject(self.target, self.ring_bytes, self._check_same_program)
        except BaseException as error:
            self.name_replaced(error)
            self.liveness.close()
            raise
        self._abandoned = False
        self.session: Session = self.injected.session
        self.session.memory_fd = self.target.memory.descriptor
        self.patcher = Patcher(
            self.session,
            self.target,
            no_stop=self.choice.request.no_stop,
            membarrier=self.target.may_sync_cores,
        )
        try:
            self.arm()
        except BaseException as error:
            self.name_replaced(error)
            self.abandon()
            raise

    def name_replaced(self, error: BaseException) -> None:
        """Changes an error to say so if the target has started another program in the meantime."""
        if isinstance(error, EndedError):
            self.liveness.await_exec()
        if isinstance(error, NfprobeError) and self.liveness.is_replaced:
            error.sentence = replaced(self.target.pid)

    def arm(self) -> None:
        """Arms the probes.

        Raises:
            NfprobeError: none could be armed.
        """
        remove_inherited(self.session, self.target, self.patcher)
        leftover = self.patcher.disarm()
        if leftover:
            self.notify(f"{len(leftover)} probes of a killed monitor had already been removed.")
        for sentence in self.patcher.tell_left():
            self.notify(sentence)
        requests = self.choice.requests()
        for request in requests:
            self.code_digests.keep(request.plan.module)
        self.write_programs()
        trampolines = Trampolines(self.session, self.target)
        self.parts = trampolines.parts
        made, refused = trampolines.make(requests)
        self.check_not_stopped()
        if made:
            module = made[0].request.plan.module
            self.costs = calibrate(self.session, trampolines.arenas, module, STRATEGIES.values())
        tell_unwinders(self.target, self.patcher, self.target.modules())
        self.probes, differ = self.patcher.arm(made)
        self.choice.refuse(refused, differ)
        if not self.probes:
            raise NfprobeError(
                "No function could be probed: " + ", ".join(self.choice.refused) + ".",
                f"nfprobe functions {self.target.pid}",
            )
        self._count_uncovered()
        if unprobed := self.choice.tell_unprobed(self.choice.plans):
            self.notify(unprobed)
        for glob in self.choice.request.waiting:
            self.notify(f"{glob}: no such module is loaded; its functions will be probed once it is.")
        self.make_follower(trampolines)

    def make_follower(self, trampolines: Trampolines) -> None:
        """Makes what follows the target's modules; the session connects and starts it."""
        self.arenas = trampolines.arenas
        self.follower = Follower(
            self.target,
            self.liveness,
            self.choice,
            self.patcher,
            trampolines,
            self.code_digests.keep,
            self.notify,
            self.write_programs,
        )
        self.follower.place(self.probes)

    def add(self, added: Sequence[Probe]) -> None:
        """Takes further probes, whose ids mean something from now on."""
        known = {probe.id: probe for probe in [*self.probes, *added]}
        self.probes = list(known.values())

    def _check_same_program(self) -> None:
        """Checks that the target still runs the program that the plan was made for."""
        if not self.choice.modules:  # chosen without reading the process
            return
        program = self.choice.modules[0]
        if not any(module is program for module in self.target.modules()):
            raise NfprobeError(replaced(self.target.pid), f"nfprobe attach {self.target.pid}")

    def _count_uncovered(self) -> None:
        by_slot = [probe.request.plan.function for probe in self.probes if probe.request.plan.is_slot]
        if by_slot:
            self.uncovered = count_stored_pointers(self.target, by_slot)
            self.notify(
                f"Functions probed by GOT slots are only seen when called through a slot: {self.uncovered} stored"
                " pointers bypass the slot, and pointers from dlsym cannot be counted."
            )

    def check_not_stopped(self) -> None:
        """Raises NfprobeError if the session is to end before its probes are armed."""
        if self.stopping.is_set():
            raise NfprobeError(
                f"Stopped before the probes were armed; process {self.target.pid} is unchanged.",
                f"nfprobe status {self.target.pid}",
            )

    def write_programs(self) -> None:
        """Writes the capture programs of all role functions into the target."""
        write_programs(self.session, self.choice, self.identity)

    # ---- function IDs
    # -------------------------------------------------------------------------------------------------

    def roles_by_id(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Returns the role (enum nfp_role) of each function ID."""
        return find_roles(self.probes, self.choice, self.probes)

    def names_by_id(self) -> list[str]:
        """Returns the name of each function ID."""
        return find_names(list(self.probes))  # a copy: the follower's thread adds probes

    def describe(self, probes: Sequence[Probe], compensation: Compensation) -> list[FunctionInfo]:
        """Returns the probed functions, for the recording; `compensation`: what the probes of a call add to
        counters.
        """
        roles = find_roles(probes, self.choice, [*self.probes, *probes])
        return describe_functions(probes, roles, self.costs, compensation, self.choice)

    # ---- the end --------------------------------------------------------------------------------------------------

    def has_ended(self) -> bool:
        """Returns whether nothing injected is left in the process. Reports once that its program was replaced."""
        if not self.has_gone and self.liveness.is_gone:
            self.has_gone = True
            if self.liveness.is_replaced:
                self.notify(replaced(self.target.pid))
        return self.has_gone

    def disarm(self) -> None:
        """Disarms the probes; whatever differs from its original bytes is added to `not_restored`.

        Raises:
            NfprobeError: disarming failed.
        """
        self.follower.forget_closed()
        missing = self.patcher.disarm()
        self.follower.forget_closed()  # modules unloaded in the meantime took their probes with them
        for index in missing:
            if self.follower.is_placed(index):
                self.not_restored.append(f"probe {index}: its bytes were changed by another party")
        differing = self.code_digests.differing(self.follower.modules)
        self.not_restored += [f"{place} differs from before" for place in differing]

    def abandon(self) -> None:
        """Undoes an attach that no session follows. Does nothing if nothing was changed."""
        if self._abandoned:
            return
        self._abandoned = True
        try:
            self.patcher.disarm()
        except NfprobeError as error:
            self.notify(error.sentence)
        if not self.liveness.is_gone:
            self.session.leave()
        self.close()

    def close(self) -> None:
        """Unmaps the session and releases its lock."""
        self.session.close()
        self.liveness.close()
