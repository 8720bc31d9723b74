# SPDX-License-Identifier: Apache-2.0
"""Probes that are put in place and taken away while the target runs, and when that cannot be done."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.probes.trampoline import Probe
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.target("patching")]

SITES = ["patching-*:long_*", "patching-*:short_*"]
FUTEX = "202 "


def single_sites(probed: Probed) -> int:
    return sum(plan.single for plan in probed.choice.plans if plan.strategy is not None)


def test_single_sites_need_no_stop(talker: Talker) -> None:
    """Sessions on busy threads, one after the other: every site is changed while they run."""
    assert talker.ask("start 2") == "started"
    for _ in range(3):
        with Probed(talker.pid, SITES, ring_bytes=64 << 10) as probed:
            in_place = [probe for probe in probed.monitor.attachment.probes if probe.request.plan.single]
            assert len(in_place) == single_sites(probed) > 0
            assert probed.monitor.attachment.patcher.live.changed == len(in_place)
        assert probed.not_restored == []
        live = probed.monitor.attachment.patcher.live
        assert (live.changed, live.refusal) == (2 * len(in_place), "")
        others = len(probed.monitor.attachment.probes) - len(in_place)
        assert probed.monitor.attachment.patcher.stops.count == (2 if others else 0)
    assert talker.ask("stop") == "right"


def test_blocked_trap_takes_the_stop(talker: Talker) -> None:
    assert talker.ask("block 1") == "done"
    assert talker.ask("start 2") == "started"
    with Probed(talker.pid, SITES, ring_bytes=64 << 10) as probed:
        live = probed.monitor.attachment.patcher.live
        assert live.changed == 0
        assert "blocks SIGTRAP" in live.refusal
        assert len(probed.monitor.attachment.probes) >= single_sites(probed)
        assert probed.monitor.attachment.patcher.stops.count > 0
    assert probed.not_restored == []
    assert talker.ask("stop") == "right"


def test_blocked_trap_is_refused_without_a_stop(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Patcher.arm

    def arm_without_stop(patcher: Patcher, probes: list[Probe]) -> tuple[list[Probe], dict[str, int]]:
        patcher.no_stop = True
        return real(patcher, probes)

    monkeypatch.setattr(Patcher, "arm", arm_without_stop)
    assert talker.ask("block 1") == "done"
    probed = Probed(talker.pid, ["patching-*:long_*"])
    with pytest.raises(NfprobeError, match="blocks SIGTRAP, and --no-stop was given"):
        probed.monitor.attachment.attach()
    assert probed.monitor.attachment.patcher.stops.count == 0


def test_thread_that_sleeps_inside_across_removal(talker: Talker) -> None:
    def is_asleep() -> bool:
        tasks = Path(f"/proc/{talker.pid}/task").iterdir()
        try:
            calls = [(task / "syscall").read_text() for task in tasks if (task / "comm").read_text() != "nfprobe\n"]
        except OSError:  # a thread has just ended
            return False
        return any(call.startswith(FUTEX) for call in calls)

    with Probed(talker.pid, ["patching-*:nap"]) as probed:
        assert len(probed.monitor.attachment.probes) == 1
        assert talker.ask("nap") == "started"
        assert wait_until(is_asleep)
    assert probed.not_restored == []
    assert talker.ask("wake") == "woken"
    assert talker.ask("stop") == "right"
