# SPDX-License-Identifier: Apache-2.0
"""The profile of one session: has its threads sampled, and resolves the sampled addresses to names at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.counters.software import SoftwareCounters
from otel_nfprobe.counters.threads import ThreadCounters
from otel_nfprobe.monitor.drain import Drain
from otel_nfprobe.probes.codemap import CodePart
from otel_nfprobe.profiling.address_map import PlaceFinder
from otel_nfprobe.target.target import Target

if TYPE_CHECKING:
    from otel_nfprobe.profiling.profiler import Counted, Profiler

LOOK_S = 1.0  # interval of reading the target's modules


class Profile:
    """The profiling of a session; does nothing if it is off.

    Args:
        drain: receives the samples.
        target: whose threads are sampled.
        hertz: samples per second of a thread's running time; 0: no profile.
        notify: reports to the user, once, that there is no profile, and which counters samples contain.
        counting, software: the counters of the session, which may change while it runs.
    """

    def __init__(
        self,
        drain: Drain,
        target: Target,
        hertz: int,
        notify: Callable[[str], None],
        counting: ThreadCounters,
        software: SoftwareCounters,
    ) -> None:
        self._drain = drain
        self._hertz = hertz
        self._profiler: Profiler | None = None
        self._counting, self._software = counting, software
        self._due_at = 0.0
        if not hertz:
            return
        from otel_nfprobe.profiling.profiler import Counted, Profiler  # slow to import, and few sessions have a profile

        self._counted = Counted
        profiler = Profiler(drain.clock, hertz, drain.session.holds_thread, self._find_counted, notify)
        try:
            profiler.watch(thread.tid for thread in target.threads())
        except NfprobeError as error:
            profiler.close()
            notify(error.sentence)
            return
        self._profiler = drain.profiler = profiler
        counting.relieve = profiler.relieve
        self._places = PlaceFinder(target)
        drain.note_samples = self._places.add
        self.follow()

    def _find_counted(self) -> Counted:
        return self._counted(self._counting.groups(), self._counting.counters, self._software.counters)

    def follow(self) -> None:
        """Reads what the target has loaded, when due."""
        if self._profiler is not None and time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + LOOK_S
            found = self._places.look()
            self._drain.write(lambda recording: recording.places(found))

    def finish(self, parts: Iterable[CodePart]) -> None:
        """Ends the profile: writes the names of the addresses to the recording. `parts`: injected code."""
        if self._profiler is not None and self._drain.recording is not None:
            found = self._places.find(parts)
            self._drain.write(lambda recording: recording.places(found))

    def describe(self) -> dict[str, Any] | None:
        """Returns the profile for the summary; None without one."""
        profiler = self._profiler
        if profiler is None:
            return None
        event = profiler.source.name if profiler.source else None
        counters = {"counters": profiler.counters, "counted": profiler.counted}
        return {"hertz": self._hertz, "event": event, "samples": profiler.taken, "lost": profiler.lost, **counters}
