# SPDX-License-Identifier: Apache-2.0
"""Attach and detach again and again on a forwarder under full load: it forwards on, and is left as it was."""

from __future__ import annotations

import gc
import subprocess
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.target.target import Target
from tests.support.probed import has_started, wait_until
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = pytest.mark.integration

ROUNDS = 80
ROUNDS_LONG = 2000
ROUNDS_OF_MANY = 10_000
MANY = 1000
MANY_OF = ("librte_eal.so*:*", "librte_ethdev.so*:*", "librte_m*.so*:*", "librte_net_pcap.so*:*")
PATIENCE_S = 60.0
LOOK_EVERY = 10  # rounds; what was not restored would still be seen then
# testpmd makes a thread for each question to its telemetry. One that still lives while the helper thread begins makes
# the C library map one more stack and arena, which it keeps for the next: that many threads at once, not more.
GROWTHS_MAX = 3
SOME = ("librte_ethdev.so*:rte_eth_dev_*", "libc.so*:memc*")


def memory_kib(pid: int) -> tuple[int, int]:
    """Virtual and resident size."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmSize"].split()[0]), int(status["VmRSS"].split()[0])


def count_growths(sizes: list[int]) -> int:
    """How often a size exceeded every one before it: a leak does so as often as it leaks, whatever its bytes."""
    highest, growths = sizes[0], 0
    for size in sizes:
        growths += size > highest
        highest = max(highest, size)
    return growths


def slot_values(target: Target, modules: list[Module]) -> dict[int, int]:
    """Every GOT slot that is bound, and where it leads; a lazy one, which leads to its own module, may change."""
    found = {}
    for module in modules:
        for slot in module.image.slots:
            value = target.read_word(module.base + slot.address)
            if not module.low <= value < module.high:
                found[module.base + slot.address] = value
    return found


def one_session(target: Target, choice: Choice, seconds: float) -> int:
    """Attaches, measures until something was received, at least for `seconds`, detaches. Returns how much that was."""
    monitor = Monitor(Attachment(target, choice, 1 << 20, print), "all")
    monitor.attachment.attach()
    monitor.start(Clock.start(), None, None)
    deadline = time.monotonic() + PATIENCE_S

    def stop_when_something_came() -> None:
        received = any(count.received for count in monitor.attachment.session.threads.counts())
        if time.monotonic() > (monitor.started_at + seconds if received else deadline):
            monitor.attachment.stopping.set()

    monitor.run(None, stop_when_something_came)
    monitor.detach()
    received = sum(count.received for count in monitor.attachment.session.threads.counts())
    assert monitor.attachment.not_restored == []
    monitor.attachment.close()
    return received


def choose_many(target: Target) -> Choice:
    """A thousand functions of DPDK's libraries."""
    choice = choose(target, choose_adapter("auto", target), MANY_OF, [])
    plans = [plan for plan in choice.plans if plan.strategy is not None and not plan.is_slot]
    roles = {role.address for role in choice.roles}
    plans.sort(key=lambda plan: plan.address not in roles)
    return Choice(choice.adapter, choice.roles, plans[:MANY])


def run_rounds(testpmd: Testpmd, rounds: int, many: bool = False) -> None:
    target = Target(testpmd.pid)
    check_target(target)
    modules = target.modules()
    choice = choose_many(target) if many else choose(target, choose_adapter("auto", target), SOME, [])
    text, slots = text_digests(target, modules), slot_values(target, modules)
    sizes = []
    for number in range(rounds):
        packets = testpmd.telemetry()[1]
        received = one_session(target, choice, 0.02)
        testpmd.drain_output()
        assert received > 0, f"nothing seen in round {number}"
        assert wait_until(lambda: testpmd.telemetry()[1] > packets), f"testpmd stands still after round {number}"  # noqa: B023
        if number % LOOK_EVERY == 0 or number == rounds - 1:
            assert text_digests(target, modules) == text
            after = slot_values(target, modules)
            assert {address: after.get(address) for address in slots} == slots
        sizes.append(memory_kib(testpmd.pid))
        if number % 500 == 499:
            print(f"{number + 1} rounds, {sizes[-1][1]} KiB resident", flush=True)
        time.sleep(0.002)
    assert testpmd.process.poll() is None
    warm = sizes[min(9, rounds - 1) :]
    early, late = warm[0], warm[-1]
    assert count_growths([virtual for virtual, _ in warm]) <= GROWTHS_MAX, "address space grows with each attach"
    # The kernel counts resident pages per CPU and folds them in late: some are noise, one a round would be a leak.
    assert late[1] - early[1] < 4 * (rounds - 10), "memory grows with each attach"


def test_eighty_rounds(capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]) -> None:
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False)
    run_rounds(testpmd, ROUNDS)


@pytest.mark.long
def test_two_thousand_rounds(capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]) -> None:
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False)
    run_rounds(testpmd, ROUNDS_LONG)


@pytest.mark.long
def test_ten_thousand_rounds_of_a_thousand_functions(
    capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False)
    run_rounds(testpmd, ROUNDS_OF_MANY, many=True)


def test_a_session_that_is_over_is_forgotten(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """Without a garbage collection: whoever measures one process after the other must not pile up their rings."""
    process = spawn("sleep", 600)
    assert wait_until(lambda: has_started(process.pid))
    target = Target(process.pid)
    check_target(target)
    choice = choose(target, None, ["libc.so*:mem*"], [])
    gc.disable()
    try:
        monitor = Monitor(Attachment(target, choice, 1 << 20, print), "none")
        monitor.attachment.attach()
        monitor.start(Clock.start(), None, None)
        monitor.run(0.05, lambda: None)
        monitor.detach()
        monitor.attachment.close()
        kept = [
            weakref.ref(part)
            for part in (monitor, monitor.attachment.session, monitor.attachment.follower, monitor.drain)
        ]
        del monitor
        assert [part() for part in kept] == [None] * len(kept)
    finally:
        gc.enable()
