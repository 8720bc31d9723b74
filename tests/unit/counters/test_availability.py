# SPDX-License-Identifier: Apache-2.0
"""Why counters cannot be had: one sentence for each reason, on a kernel that says what a test wants it to."""

import errno
from pathlib import Path

import pytest

from otel_nfprobe.counters.availability import Surroundings, find_refusal, find_software_refusal
from otel_nfprobe.counters.choice import Counter, CounterChoice
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.counters.perf import Kernel

CHOICE = CounterChoice(counters=tuple(Counter(name, (Event(0, config),)) for config, name in enumerate("abc")))


class FakeKernel(Kernel):
    """Gives out at most `room` counters in a group; `errors` by the config of an event."""

    def __init__(self, room: int = 9, errors: dict[int, int] | None = None) -> None:
        self.room, self.errors = room, errors or {}
        self.open_now: dict[int, bool] = {}
        self.count: tuple[int, int, int] | None = (5, 100, 100)
        self.rdpmc = True
        self.calls: list[str] = []

    def open(self, counter: Counter, event: Event, tid: int, group: int = -1, disabled: bool = True) -> int:
        assert tid == 0
        if event.config in self.errors:
            raise OSError(self.errors[event.config], "refused")
        if group >= 0 and len(self.open_now) >= self.room:
            raise OSError(errno.EINVAL, "does not fit")
        self.open_now[100 + len(self.calls)] = True
        self.calls.append(str(event.config))
        return 99 + len(self.calls)

    def enable(self, leader: int) -> None:
        self.calls.append("enable")

    def disable(self, leader: int) -> None:
        self.calls.append("disable")

    def read(self, descriptor: int) -> tuple[int, int, int] | None:
        return self.count

    def may_read_directly(self, descriptor: int) -> bool:
        return self.rdpmc

    def close(self, descriptor: int) -> None:
        del self.open_now[descriptor]


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    device = tmp_path / "sys/bus/event_source/devices/cpu"
    device.mkdir(parents=True)
    (device / "type").write_text("4\n")
    (device / "rdpmc").write_text("1\n")
    proc = tmp_path / "proc"
    (proc / "sys/kernel").mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "sys/kernel/perf_event_paranoid").write_text("2\n")
    (proc / "sys/kernel/nmi_watchdog").write_text("0\n")
    (proc / "cpuinfo").write_text("flags\t\t: fpu tsc\n")
    (proc / "self/status").write_text("Name:\tx\nSeccomp:\t0\n")
    return Surroundings(tmp_path / "sys", proc)


def reason(kernel: FakeKernel, around: Surroundings) -> str:
    refusal = find_refusal(CHOICE, kernel, around)
    assert kernel.open_now == {}  # everything was given back
    return "" if refusal is None else f"{refusal.reason} -> {refusal.advice}"


def test_what_can_be_had_is_not_refused(around: Surroundings) -> None:
    kernel = FakeKernel()
    assert reason(kernel, around) == ""
    assert kernel.calls == ["0", "1", "2", "enable", "disable"]
    assert find_refusal(CounterChoice(), FakeKernel(), around) is None


def test_no_counters_at_all(around: Surroundings) -> None:
    for file in (around.sysfs / "bus/event_source/devices/cpu").iterdir():
        file.unlink()
    kernel = FakeKernel(errors={0: errno.ENOENT})
    assert "no performance monitoring unit: the kernel exposes none" in reason(kernel, around)
    (around.proc / "cpuinfo").write_text("flags\t\t: fpu hypervisor\n")
    assert "this virtual machine's hypervisor exposes none" in reason(kernel, around)


def test_one_event_is_absent(around: Surroundings) -> None:
    (around.proc / "cpuinfo").write_text("flags\t\t: hypervisor\n")
    found = reason(FakeKernel(errors={1: errno.ENOENT}), around)
    assert found == "the processor cannot count b (a virtual machine may have some counters only) -> perf list"


def test_a_device_that_counts_for_nobody(around: Surroundings) -> None:
    choice = CounterChoice(counters=(Counter("uncore_imc_0/clockticks/", (Event(13, 0xFF),)),))
    refusal = find_refusal(choice, FakeKernel(errors={0xFF: errno.EINVAL}), around)
    assert refusal is not None
    assert refusal.reason == "uncore_imc_0 counts for the whole machine, not per thread"


def test_more_than_fit(around: Surroundings) -> None:
    assert "so many at once: no counter is left for c" in reason(FakeKernel(room=2), around)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES])
def test_paranoid(around: Surroundings, number: int) -> None:
    (around.proc / "sys/kernel/perf_event_paranoid").write_text("3\n")
    (around.proc / "self/status").write_text("Seccomp:\t2\n")
    found = reason(FakeKernel(errors={0: number}), around)
    assert found == ("this user may not count (kernel.perf_event_paranoid is 3) -> sysctl kernel.perf_event_paranoid=2")


def test_seccomp(around: Surroundings) -> None:
    (around.proc / "self/status").write_text("Seccomp:\t2\n")
    assert "a seccomp filter around nfprobe forbids" in reason(FakeKernel(errors={0: errno.EPERM}), around)
    assert "has no perf_event_open" in reason(FakeKernel(errors={0: errno.ENOSYS}), around)


@pytest.mark.parametrize("watchdog", [True, False])
@pytest.mark.parametrize("how", ["error state", "multiplexed", "busy"])
def test_held_by_others(around: Surroundings, how: str, watchdog: bool) -> None:
    (around.proc / "sys/kernel/nmi_watchdog").write_text(str(int(watchdog)))
    kernel = FakeKernel(errors={2: errno.EBUSY} if how == "busy" else {})
    kernel.count = {"error state": None, "multiplexed": (5, 100, 60)}.get(how, kernel.count)
    found = reason(kernel, around)
    assert ("NMI watchdog uses one" in found) == watchdog
    assert ("another program" in found) != watchdog


def test_rdpmc_is_switched_off(around: Surroundings) -> None:
    (around.sysfs / "bus/event_source/devices/cpu/rdpmc").write_text("0\n")
    kernel = FakeKernel()
    kernel.rdpmc = False
    assert "rdpmc setting is 0" in reason(kernel, around)
    (around.sysfs / "bus/event_source/devices/cpu/rdpmc").write_text("1\n")
    assert "cannot be read by rdpmc here" in reason(kernel, around)


def test_the_real_kernel_counts_software_events() -> None:
    clock = Counter("task-clock", (Event(1, 1),))
    kernel = Kernel()
    descriptor = kernel.open(clock, clock.events[0], 0)
    try:
        assert kernel.read(descriptor) == (0, 0, 0)
        kernel.enable(descriptor)
        sum(range(10000))
        found = kernel.read(descriptor)
        assert found is not None
        assert found[0] > 0
        assert found[1] == found[2]
        assert not kernel.may_read_directly(descriptor)  # software is never read by rdpmc
    finally:
        kernel.close(descriptor)


def test_software_counters_that_would_be_0(around: Surroundings) -> None:
    """What happens in the kernel is asked for in its mode; what cannot be had is said, not shown as 0."""

    class Paranoid(FakeKernel):
        def open(self, counter: Counter, event: Event, tid: int, group: int = -1, disabled: bool = True) -> int:
            if counter.kernel:
                raise PermissionError(errno.EACCES, "refused")
            return super().open(counter, event, tid, group, disabled)

    faults = CounterChoice(counters=(Counter("page-faults", (Event(1, 2),)),))
    switches = CounterChoice(counters=(*faults.counters, Counter("context-switches", (Event(1, 3),))))
    assert find_software_refusal(faults, Paranoid(), around) is None
    assert find_software_refusal(switches, FakeKernel(), around) is None
    refusal = find_software_refusal(switches, Paranoid(), around)
    assert refusal is not None
    assert refusal.reason == "context-switches: this user may not count (kernel.perf_event_paranoid is 2)"
    assert refusal.advice == "sysctl kernel.perf_event_paranoid=1"
