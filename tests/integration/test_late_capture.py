# SPDX-License-Identifier: Apache-2.0
"""Late capture (`--packets slow`): exactly the packets that deserve it, each in its own batch."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from otel_nfprobe.adapters.base import RoleFunction
from otel_nfprobe.adapters.described import DescribedAdapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import TRANSMITTED, BatchFlag, Columns, concatenate, latency_ticks
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.latecapture import SLOW, CapturePolicy
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import ROOM, assert_nothing_missing, check_recording, wait_until_armed
from tests.support.probed import Talker, wait_until
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.integration, pytest.mark.target("late"), pytest.mark.shared]

BATCH = 20  # of tests/targets/late.c
DESCRIPTION = """
name: late
receive: [{function: "*:late_receive", pointers: 0, requested: 1, count: return}]
transmit: [{function: "*:late_transmit", pointers: 0, requested: 1, count: return}]
buffer: {data: 0, length: {offset: 8, bytes: 4}, segment_length: {offset: 12, bytes: 2}}
"""
EVERYTHING = CapturePolicy(None, None, 1.0)


class Pooled(DescribedAdapter):
    """Says that packets stay readable, and that it is to be trusted, as the adapters of DPDK do."""

    def roles(self, target: Target) -> list[RoleFunction]:
        trusted = {"pooled": 1, "checked": 0, "plain": 1}
        return [replace(role, program={**role.program, **trusted}) for role in super().roles(target)]


class DescribedPool(DescribedAdapter):
    """A person says that packets stay readable."""

    def __init__(self, path: str, description: dict[str, Any]) -> None:
        super().__init__(path, {**description, "buffer": {**description["buffer"], "pooled": True}})


class Late:
    """A session on tests/targets/late.c, whose columns are kept."""

    def __init__(
        self,
        talker: Talker,
        policy: CapturePolicy,
        kind: type[DescribedAdapter] = DescribedAdapter,
        ring_bytes: int = 64 << 20,
    ) -> None:
        target = Target(talker.pid)
        adapter = kind("late.yaml", yaml.safe_load(DESCRIPTION))
        self.said: list[str] = []
        choice = choose(target, adapter, [], [])
        self.monitor = Monitor(Attachment(target, choice, ring_bytes, self.said.append), SLOW, policy=policy)
        self.talker = talker
        self.parts: list[Columns] = []
        self.talking: Callable[[], bool] = lambda: True  # what is waited for before the session ends

    def ask(self, *commands: str) -> str:
        """Runs commands with the probes on. Returns the last answer."""
        self.monitor.attachment.attach()
        clock = Clock.start()
        self.monitor.start(clock, None, None)
        statistics = self.monitor.drain.statistics
        add = statistics.add
        statistics.add = lambda columns: (self.parts.append(columns), add(columns))[1]  # type: ignore[method-assign]
        thread = threading.Thread(target=self.monitor.run, args=(None, lambda: None))
        thread.start()
        answer = [self.talker.ask(command) for command in commands][-1]
        assert self.talking()
        self.monitor.attachment.stopping.set()
        thread.join()
        self.monitor.detach()
        self.columns = concatenate(self.parts)
        self.counts = self.monitor.drain.pipeline.counts()
        late = self.monitor.attachment.session.threads.late_counts()
        self.identified = sum(count.identified for count in late)
        self.differing = sum(count.differing for count in late)
        self.unheld = sum(count.unheld for count in late)
        self.copied = [count.copying for count in late]
        self.threads = self.monitor.attachment.session.threads.counts()
        self.monitor.attachment.close()
        assert sum(sum(count.lost) for count in self.threads) == 0
        assert self.monitor.attachment.not_restored == []
        return answer

    def numbers(self) -> np.ndarray[Any, Any]:
        """The number of each identified packet's batch, times its size, plus its place there: its own number."""
        rank = np.argsort(np.argsort(self.columns.batches["start_ticks"]))
        return rank[self.columns.packets["batch"]] * BATCH + self.columns.packets["index"]

    def assert_all_right(self, batches: int) -> None:
        """Every packet, once, in its own batch, with its own headers."""
        packets = self.columns.packets
        assert len(self.columns.batches) == batches
        assert len(packets) == batches * BATCH
        assert sorted(self.numbers().tolist()) == list(range(batches * BATCH))
        assert np.array_equal(packets["ip_id"], self.numbers() & 0xFFFF)
        assert np.all(packets["length"] == 74)
        assert np.all(packets["disposition"] == TRANSMITTED)
        assert np.all(packets["flags"] == 0)
        assert (self.counts.unplaced, self.counts.unknown, self.counts.invalid) == (0, 0, 0)
        assert self.counts.received == self.counts.transmitted == batches * BATCH


def test_everything_is_what_all_gives(
    nfprobe: Any,
    capture: Callable[[int], Path],
    start_testpmd: Callable[..., Testpmd],
    tmp_path: Path,
) -> None:
    count = 49_999
    testpmd = start_testpmd(pcap_device(capture(count)))
    recording = tmp_path / "slow.nfprobe"
    options = ("--trial", "0s", "--packets", "slow", "--slower-than", "0us", *ROOM, "--record", recording, "--json")
    monitor = nfprobe.start("attach", testpmd.pid, *options)
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    testpmd.command("start")
    testpmd.wait_for_packets(count)
    testpmd.command("stop")
    summary = nfprobe.end(monitor)
    assert summary["packets"] == {"received": count, "transmitted": count, "dropped": 0, "unknown": 0}
    identified = summary["identified"]
    assert (identified["packets"], identified["unplaced"], identified["unheld"]) == (count, 0, 0)
    assert identified["checked"] > 500  # of the first calls, and one in so many later
    assert (identified["differing"], identified["copying"]) == (0, [])
    assert_nothing_missing(summary)
    check_recording(recording, capture(count), count)


@pytest.mark.parametrize("kind", [DescribedAdapter, DescribedPool, Pooled])
def test_each_packet_in_its_own_batch(talker: Talker, kind: type[DescribedAdapter]) -> None:
    late = Late(talker, EVERYTHING, kind)
    assert late.ask("plain 320", "delaying 320", "holding 320", "splitting 320") == str(1280 * BATCH)
    late.assert_all_right(1280)
    assert late.differing == late.unheld == 0
    assert np.all(late.columns.batches["flags"] & BatchFlag.DRAWN)


@pytest.mark.parametrize(("command", "calls_missed"), [("sorting", 0), ("clearing", 2)])
def test_arrays_that_are_not_what_they_look_like(talker: Talker, command: str, calls_missed: int) -> None:
    """They begin and end as a batch, or hold its packets when the call begins: what was believed is counted once. The
    first checks see that the order of packets changes, only use that an array does not last.
    """
    late = Late(talker, EVERYTHING, Pooled)
    assert late.ask(f"{command} 640") == str(640 * BATCH)
    numbers = late.numbers()
    assert late.unheld == calls_missed * BATCH
    assert len(set(numbers.tolist())) == len(numbers) == 640 * BATCH - late.unheld
    assert np.array_equal(late.columns.packets["ip_id"], numbers & 0xFFFF)
    assert late.differing == late.counts.unplaced == 0
    assert late.counts.received == late.counts.transmitted == 640 * BATCH


@pytest.mark.parametrize(
    ("commands", "calls_missed"),
    [
        (("plain 2500", "sorting 640", "plain 640"), 1),
        (("plain 2500", "clearing 640", "plain 640"), 3),
        (("plain 2500", "splitting 640", "holding 640", "plain 2500", "delaying 640"), 0),
    ],
)
def test_arrays_that_were_trusted(talker: Talker, commands: tuple[str, ...], calls_missed: int) -> None:
    """Calls are not looked at when they begin, after many that needed no look; then the target changes its ways."""
    late = Late(talker, EVERYTHING, Pooled)
    batches = sum(int(command.split()[1]) for command in commands)
    assert late.ask(*commands) == str(batches * BATCH)
    numbers = late.numbers()
    assert late.unheld == calls_missed * BATCH
    assert len(set(numbers.tolist())) == len(numbers) == batches * BATCH - late.unheld
    assert np.array_equal(late.columns.packets["ip_id"], numbers & 0xFFFF)
    assert late.differing == late.counts.unplaced == 0
    assert late.counts.received == late.counts.transmitted == batches * BATCH


def test_sessions_of_other_ring_sizes(talker: Talker) -> None:
    """What a thread has learnt in an earlier session is forgotten with it."""
    for session, ring_bytes in enumerate((64 << 20, 32 << 20, 32 << 20, 64 << 20)):
        late = Late(talker, EVERYTHING, Pooled, ring_bytes)
        assert late.ask("plain 1000", "splitting 200") == str((session + 1) * 1200 * BATCH)
        numbers = late.numbers() + session * 1200 * BATCH
        assert len(set(numbers.tolist())) == len(numbers) == 1200 * BATCH
        assert np.array_equal(late.columns.packets["ip_id"], numbers & 0xFFFF)
        assert late.unheld == late.differing == late.counts.unplaced == 0


@pytest.mark.parametrize("kind", [DescribedAdapter, DescribedPool, Pooled])
def test_transmit_that_rewrites_its_packets(talker: Talker, kind: type[DescribedAdapter]) -> None:
    """The adapter says that packets stay as they are, which is wrong: the live check finds out at once."""
    late = Late(talker, EVERYTHING, kind)
    assert late.ask("rewriting 640") == str(640 * BATCH)
    late.assert_all_right(640)
    assert late.differing == BATCH
    (sentence,) = [sentence for sentence in late.said if "Packets change before" in sentence]
    assert f"thread {talker.pid} " in sentence


def slower_than_half_a_slow_call() -> CapturePolicy:
    """A little more than the target calls late: its clocks are not where the probes' are."""
    return CapturePolicy(round(15_900_000 * 1e9 / Clock.start().ticks_per_second), None, 0.0)


def read_slow(answer: str) -> tuple[set[int], set[int]]:
    """Batches that took longer by the outer clock, and by the inner one."""
    *slow, threshold_ticks = answer.split()
    assert threshold_ticks == "15000000"
    words = [word.split(":") for word in slow]
    return {int(number) for number, _ in words}, {int(number) for number, inner in words if inner == "1"}


@pytest.mark.parametrize(
    ("command", "kind"),
    [("slow", DescribedAdapter), ("slow", DescribedPool), ("slow", Pooled), ("freeing", DescribedAdapter)],
)
def test_only_what_is_late(talker: Talker, command: str, kind: type[DescribedAdapter]) -> None:
    """By two clocks of the target itself: what is late by the inner one must be there, by the outer one may be. What
    makes it late is the transmit call, so nobody knows when that begins; a buffer that is freed then keeps its bytes.
    """
    first, batches = 80, 640  # of the first 64 calls checks of a description take most of the time
    late = Late(talker, slower_than_half_a_slow_call(), kind)
    may, must = read_slow(late.ask(f"plain {first}", f"{command} {batches}"))
    assert len(must) >= batches // 100
    found = set((late.numbers() // BATCH).tolist())
    others = {number - first for number in found if number > first}  # that one may have come long before
    assert must - {0} <= others <= may
    assert late.identified == len(late.columns.packets) == BATCH * len(found)
    assert late.unheld == late.differing == 0
    assert np.array_equal(late.columns.packets["ip_id"], late.numbers())
    assert np.all(late.columns.packets["length"] == 74)
    assert np.all(latency_ticks(late.columns) > 14_000_000)
    assert late.counts.transmitted == late.counts.received == (first + batches) * BATCH


@pytest.mark.parametrize("kind", [DescribedAdapter, DescribedPool, Pooled])
def test_calls_that_write_new_addresses(talker: Talker, kind: type[DescribedAdapter]) -> None:
    """As a router's: only what changes is copied, and what is late because of the call itself is there, whole batches
    that were young when it began, too.
    """
    batches = 640
    late = Late(talker, slower_than_half_a_slow_call(), kind)
    _, must = read_slow(late.ask(f"readdressing {batches}"))
    assert len(must) >= batches // 100
    assert must <= set((late.numbers() // BATCH).tolist())
    assert late.copied == [16]
    assert late.differing == BATCH
    assert late.unheld == 0
    assert np.array_equal(late.columns.packets["ip_id"], late.numbers() & 0xFFFF)
    assert np.all(late.columns.packets["length"] == 74)
    assert np.all(late.columns.packets["flags"] == 0)


def test_bytes_that_do_not_stay_are_not_told(talker: Talker) -> None:
    """They stayed as long as they were checked; then transmit overwrites them. What is late is counted, not guessed,
    and copied from then on.
    """
    batches = 320
    late = Late(talker, slower_than_half_a_slow_call())
    _, must = read_slow(late.ask(f"slow {batches}", f"overwriting {batches}"))
    assert must
    numbers = late.numbers()
    assert np.array_equal(late.columns.packets["ip_id"], numbers & 0xFFFF)
    assert len(numbers)
    assert late.unheld == BATCH
    assert late.copied == [128]
    assert must - {min(must)} <= {number - batches for number in (numbers // BATCH).tolist()}
    assert late.counts.transmitted == late.counts.received == 2 * batches * BATCH


def test_the_sample_is_fair(talker: Talker) -> None:
    late = Late(talker, CapturePolicy(None, None, 0.25))
    late.ask("plain 2000")
    drawn = (late.columns.batches["flags"] & BatchFlag.DRAWN) != 0
    assert 380 <= drawn.sum() <= 620
    assert len(late.columns.packets) == late.identified == BATCH * drawn.sum()
    order = np.argsort(late.columns.batches["start_ticks"])
    for period in (2, 4, 5):  # whatever repeats in the NF has its share
        shares = [drawn[order][first::period].mean() for first in range(period)]
        assert all(0.15 <= share <= 0.35 for share in shares)


def test_what_another_thread_received_is_not_placed(talker: Talker) -> None:
    late = Late(talker, CapturePolicy(0, None, 0.0), Pooled)
    assert late.ask("handing 60", "handing 60", "handing 60") == str(180 * BATCH)
    assert late.identified == late.counts.unplaced == late.counts.transmitted == 180 * BATCH
    assert len(late.columns.packets) == 0
    assert sum(count.transmitted for count in late.threads) == 180 * BATCH


class Stopping(Talker):
    """A target that is stopped for a while in the middle of each command."""

    def ask(self, line: str) -> str:
        self.say(line)
        os.kill(self.pid, signal.SIGSTOP)
        assert wait_until(lambda: is_stopped(self.pid))
        os.kill(self.pid, signal.SIGCONT)
        return self.hear()


def is_stopped(pid: int) -> bool:
    try:
        states = [(task / "stat").read_text().rpartition(")")[2] for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # a thread has just ended: the others are not all stopped yet
        return False
    return all(state.split()[0] == "T" for state in states)


@pytest.mark.parametrize("kind", [DescribedAdapter, Pooled])
def test_a_target_that_is_stopped_meanwhile(
    kind: type[DescribedAdapter], compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    late = Late(Stopping(spawn(compile_target("late"), stdin=subprocess.PIPE)), EVERYTHING, kind)
    late.ask("slow 320", "slow 320")
    late.assert_all_right(640)


def test_a_monitor_that_is_stopped_meanwhile(talker: Talker, nfprobe: Any, tmp_path: Path) -> None:
    """The ring runs full: what is lost is counted, and what is not is right, packet by packet."""
    batches, recording = 3000, tmp_path / "nfp"
    (tmp_path / "late.yaml").write_text(DESCRIPTION)
    options = ("--adapter", tmp_path / "late.yaml", "--sample", "1", "--ring-size", "1MiB", "--record", recording)
    monitor = nfprobe.start("attach", talker.pid, *options, "--json")
    wait_until_armed(nfprobe, talker.pid, monitor)
    assert talker.ask("plain 100") == str(100 * BATCH)
    monitor.send_signal(signal.SIGSTOP)
    assert wait_until(lambda: is_stopped(monitor.pid))
    assert talker.ask(f"plain {batches - 200}") == str((batches - 100) * BATCH)
    monitor.send_signal(signal.SIGCONT)
    assert talker.ask("plain 100") == str(batches * BATCH)
    summary = nfprobe.end(monitor)
    assert summary["packets"] == {
        "received": batches * BATCH,
        "transmitted": batches * BATCH,
        "dropped": 0,
        "unknown": 0,
    }
    assert sum(summary["records"]["lost"].values()) > 0
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(list(replay(reader, facts, pipeline)))
    packets = columns.packets
    assert BATCH * 100 <= len(packets) < batches * BATCH
    of_batch = (packets["ip_id"].astype(np.int64) - packets["index"]) // BATCH  # which batch of the target it is
    assert np.all((packets["ip_id"] - packets["index"]) % BATCH == 0)
    pairs = np.unique(np.column_stack((packets["batch"], of_batch)), axis=0)
    assert len(pairs) == len(np.unique(packets["batch"])) == len(np.unique(of_batch))
    starts = columns.batches["start_ticks"][pairs[:, 0]]
    assert np.all(np.diff(pairs[:, 1][np.argsort(starts)]) > 0)


def test_handing_to_another_thread_is_told_once(talker: Talker) -> None:
    late = Late(talker, CapturePolicy.choose(None, None, None))
    late.talking = lambda: wait_until(lambda: any("transmitted or dropped by another" in text for text in late.said))
    assert late.ask("handing 60", "handing 60") == str(120 * BATCH)
    (sentence,) = [sentence for sentence in late.said if "transmitted or dropped by another" in sentence]
    assert sentence.endswith(f"To identify them: nfprobe attach {talker.pid} --packets all")
    plain = Late(talker, CapturePolicy.choose(None, None, None))
    plain.ask("plain 320", "holding 320")
    assert plain.said == []
