# SPDX-License-Identifier: Apache-2.0
"""Runs inside a Python with tests/targets/moments.c preloaded: a session for each moment of attach and detach, whose
target executes another program at that moment. Prints one JSON object a session.

exec_moments.py LIBRARY HOW COUNT -- COMMAND...      HOW: attached or launched

Half of the moments are of the attach, half of the detach; an attached program executes from its main thread and from
another one in turns (the last word of its command).
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.launch import Launch
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.shm.session import Session
from otel_nfprobe.target.target import Target
from tests.support.probed import Talker

TRIGGER = 9
ABOVE = 20  # descriptors from here on are nobody's by accident
EXEC_PATIENCE_MS = 60_000
REHEARSALS = 2  # how many moments there are depends a little on what the threads do
PROBED = ["count_up", "call_twice", "begin_long", "in_loop", "with_frame"]
RING_BYTES = 1 << 16

Plan = tuple[int, int]  # the moment of the attach and of the detach, the first is 1; 0: none


class Moments:
    """The preloaded library's counter."""

    def __init__(self, library: str) -> None:
        loaded = ctypes.CDLL(library)
        self._passed = ctypes.c_long.in_dll(loaded, "moments_passed")
        self._chosen = ctypes.c_long.in_dll(loaded, "moments_chosen")
        self._made = ctypes.c_int.in_dll(loaded, "moments_made")
        self._trigger = ctypes.c_int.in_dll(loaded, "moments_trigger")
        ask = Session.ask

        def ask_at_a_moment(session: Session, command: int, *arguments: int) -> int:
            loaded.moment()
            return ask(session, command, *arguments)

        Session.ask = ask_at_a_moment  # type: ignore[method-assign]

    def begin(self, chosen: int, trigger: int) -> None:
        """Counts from now on; at the chosen moment, the first is 1, the target executes. 0: at none."""
        self._passed.value, self._chosen.value, self._trigger.value = 0, chosen, trigger
        if trigger < 0:
            self._made.value = 0

    @property
    def was_made(self) -> bool:
        """Whether the target was made to execute since the trigger was there."""
        return self._made.value != 0

    @property
    def passed(self) -> int:
        """How many there were."""
        return self._passed.value


def make_pipe() -> tuple[int, int]:
    """A pipe whose ends keep out of the way of TRIGGER."""
    ends = os.pipe()
    above = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, ABOVE) for end in ends]
    for end in ends:
        os.close(end)
    return above[0], above[1]


def reserve() -> None:
    """Nothing else of this process ever gets the number of TRIGGER, at which targets find their pipe."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    if nothing != TRIGGER:
        os.dup2(nothing, TRIGGER, inheritable=False)
        os.close(nothing)


def start(command: list[str]) -> tuple[Talker, int]:
    """The target, and the end of the pipe that triggers its exec."""
    reader, writer = make_pipe()
    os.dup2(reader, TRIGGER)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=(TRIGGER,), close_fds=True
    )
    os.close(reader)
    reserve()
    talker = Talker.__new__(Talker)
    talker.process, talker.pid, talker._heard = process, process.pid, b""
    assert talker.hear() == "ready"
    return talker, writer


class Measured:
    """What is done to a target, and what was said of it."""

    def __init__(self, pid: int) -> None:
        self.said: list[str] = []
        target = Target(pid)
        check_target(target)
        program = os.path.basename(target.executable)
        choice = choose(target, None, [f"{program}:{name}" for name in PROBED], [])
        self.monitor = Monitor(Attachment(target, choice, RING_BYTES, self.said.append), "none")

    def run(self, moments: Moments, plan: Plan, writer: int, release: Callable[[], None]) -> dict[str, Any]:
        """A session without any length. Returns what came of it."""
        passed = [0, 0]
        began_s = time.monotonic()
        error = ""
        try:
            moments.begin(plan[0], writer)
            self.monitor.attachment.attach()
            release()
            passed[0] = moments.passed
            self.monitor.start(Clock.start(), None, None)
            self.monitor.attachment.stopping.set()
            self.monitor.run(0.0, lambda: None)
            moments.begin(plan[1], writer)
            self.monitor.detach()
            passed[1] = moments.passed
            self.monitor.attachment.close()
        except NfprobeError as refusal:
            error = refusal.sentence
        was_made = moments.was_made
        moments.begin(0, -1)
        left = self.monitor.attachment.not_restored
        found = {"plan": plan, "passed": passed, "made": was_made, "error": error, "said": self.said, "left": left}
        return found | {"took_s": time.monotonic() - began_s}


def attach(moments: Moments, command: list[str], plan: Plan) -> dict[str, Any]:
    """One session on a running program."""
    talker, writer = start(command)
    try:
        found = Measured(talker.pid).run(moments, plan, writer, lambda: None)
        return found | finish(talker, writer, not found["made"])
    finally:
        talker.process.kill()
        talker.process.wait()


def finish(talker: Talker, writer: int, is_to_come: bool) -> dict[str, Any]:
    """What the program that was executed says of itself."""
    if is_to_come:
        os.write(writer, b"x")
    closed = select.poll()
    closed.register(writer, 0)
    assert closed.poll(EXEC_PATIENCE_MS), talker.where()  # its exec closes the other end
    answer = "ready"  # of the new program, and before that of the first one if it came so far
    with suppress(BrokenPipeError):
        talker.say("check")
    while answer == "ready":
        answer = talker.hear()
    os.close(writer)
    return {"answer": answer, "status": talker.process.poll()}


def launch(moments: Moments, command: list[str], plan: Plan) -> dict[str, Any]:
    """One session on a program that is held before its first instruction; a thread of its constructor executes."""
    reader, writer = make_pipe()
    words_in, words_out = make_pipe(), make_pipe()
    with Launch(command) as launched:
        start_held(launched, {0: words_in[0], 1: words_out[1], TRIGGER: reader})
        for file in (reader, words_in[0], words_out[1]):
            os.close(file)
        talker = Talker.__new__(Talker)
        talker.pid, talker._heard = launched.pid, b""
        talker.process = Ends(launched, words_in[1], words_out[0])  # type: ignore[assignment]
        try:
            found = Measured(launched.pid).run(moments, plan, writer, launched.release)
            assert launched.released or launched.is_replaced, found
            return found | finish(talker, writer, not found["made"])
        finally:
            if not launched.has_ended():
                os.kill(launched.pid, signal.SIGKILL)
            launched.wait()


def start_held(launched: Launch, files: dict[int, int]) -> None:
    """Starts a program that finds these files at these descriptors."""
    before = {number: fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, ABOVE) for number in files if number != TRIGGER}
    for number, file in files.items():
        os.dup2(file, number)
    try:
        launched.start()
    finally:
        for number, file in before.items():
            os.dup2(file, number)
            os.close(file)
        reserve()


class Ends:
    """A launched program as Talker sees a process."""

    def __init__(self, launched: Launch, stdin: int, stdout: int) -> None:
        self._launched = launched
        self.stdin = os.fdopen(os.dup(stdin), "w")
        self.stdout = os.fdopen(os.dup(stdout))

    def poll(self) -> int | None:
        """As Popen.poll."""
        return self._launched.wait() if self._launched.has_ended() else None


def choose_plans(of_attach: int, of_detach: int, count: int) -> list[Plan]:
    """Moments spread evenly over both."""
    half = count // 2
    plans = [(1 + number * (of_attach - 1) // (half - 1), 0) for number in range(half)]
    return plans + [(0, 1 + number * (of_detach - 1) // (count - half - 1)) for number in range(count - half)]


def main() -> None:
    library, how, count, _, *command = sys.argv[1:]
    os.environ.pop("LD_PRELOAD")
    reserve()
    moments = Moments(library)

    def measure(number: int, plan: Plan) -> list[int]:
        is_attached = how == "attached"
        words = [*command, ("main", "thread")[number % 2]] if is_attached else command
        found = (attach if is_attached else launch)(moments, words, plan)
        print(json.dumps(found), flush=True)
        return list(found["passed"])

    rehearsed = [measure(number, (0, 0)) for number in range(REHEARSALS)]
    fewest = [min(column) * 4 // 5 for column in zip(*rehearsed, strict=True)]
    for number, plan in enumerate(choose_plans(*fewest, int(count))):
        measure(number, plan)


if __name__ == "__main__":
    main()
