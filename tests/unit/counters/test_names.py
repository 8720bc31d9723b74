# SPDX-License-Identifier: Apache-2.0
"""Names of counters on processors that are not here: trees as the kernel's documentation and sources show them."""

from pathlib import Path

import pytest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.counters.bundles import derive, per_packet
from otel_nfprobe.counters.choice import CounterChoice, choose_counters
from otel_nfprobe.counters.devices import Event, parse_cpus
from otel_nfprobe.counters.namelist import COUNTERS_MAX, split_names
from otel_nfprobe.counters.names import generic_names

INTEL_FORMAT = {
    "event": "config:0-7",
    "umask": "config:8-15",
    "edge": "config:18",
    "inv": "config:23",
    "cmask": "config:24-31",
    "offcore_rsp": "config1:0-63",
    "ldlat": "config1:0-15",
    "frontend": "config1:0-23",
}
INTEL_EVENTS = {
    "cpu-cycles": "event=0x3c",
    "instructions": "event=0xc0",
    "mem-loads": "event=0xcd,umask=0x1,ldlat=3",
    "mem-loads.scale": "4.0",
    "slots": "event=0x00,umask=0x4",
    "topdown-retiring": "event=0x00,umask=0x80",
}
AMD_FORMAT = {"event": "config:0-7,32-35", "umask": "config:8-15", "edge": "config:18", "cmask": "config:24-31"}
AMD_INFO = "vendor_id\t: AuthenticAMD\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\n"
INTEL_INFO = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel\n"

# `perf list hw cache` and `perf list sw` of Linux 6.1, without dummy and bpf-output.
PERF_LIST = """
branch-instructions branches branch-misses bus-cycles cache-misses cache-references cpu-cycles cycles instructions
ref-cycles stalled-cycles-backend idle-cycles-backend stalled-cycles-frontend idle-cycles-frontend
L1-dcache-load-misses L1-dcache-loads L1-dcache-prefetch-misses L1-dcache-prefetches L1-dcache-store-misses
L1-dcache-stores L1-icache-load-misses L1-icache-loads L1-icache-prefetch-misses L1-icache-prefetches
LLC-load-misses LLC-loads LLC-prefetch-misses LLC-prefetches LLC-store-misses LLC-stores branch-load-misses
branch-loads dTLB-load-misses dTLB-loads dTLB-prefetch-misses dTLB-prefetches dTLB-store-misses dTLB-stores
iTLB-load-misses iTLB-loads node-load-misses node-loads node-prefetch-misses node-prefetches node-store-misses
node-stores
alignment-faults cgroup-switches context-switches cs cpu-clock cpu-migrations migrations emulation-faults
major-faults minor-faults page-faults faults task-clock
"""


def make_device(root: Path, name: str, kind: int, fields: dict[str, str], events: dict[str, str], **more: str) -> None:
    device = root / "bus" / "event_source" / "devices" / name
    for part, files in (("format", fields), ("events", events), ("", {"type": str(kind), **more})):
        (device / part).mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (device / part / file).write_text(text + "\n")


@pytest.fixture
def intel(tmp_path: Path) -> Path:
    make_device(tmp_path, "cpu", 4, INTEL_FORMAT, INTEL_EVENTS, rdpmc="1")
    make_device(tmp_path, "uncore_imc_0", 13, {"event": "config:0-7"}, {"clockticks": "event=0xff"})
    make_device(tmp_path, "software", 1, {}, {})
    return tmp_path


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    make_device(tmp_path, "cpu_core", 4, INTEL_FORMAT, INTEL_EVENTS, rdpmc="1", cpus="0-7")
    atom = {"instructions": "event=0xc0", "only-atom": "event=0xb7,umask=0x1,offcore_rsp=0x10001"}
    make_device(tmp_path, "cpu_atom", 10, INTEL_FORMAT, atom, rdpmc="1", cpus="8-15,17")
    return tmp_path


@pytest.fixture
def amd(tmp_path: Path) -> Path:
    make_device(tmp_path, "cpu", 4, AMD_FORMAT, {"cpu-cycles": "event=0x76"}, rdpmc="2")
    make_device(tmp_path, "ibs_op", 11, {"cnt_ctl": "config:19"}, {})
    return tmp_path


def only_event(choice: CounterChoice) -> Event:
    (counter,) = choice.counters
    (event,) = counter.events
    return event


def test_every_name_of_perf_list_is_known(tmp_path: Path) -> None:
    for name in PERF_LIST.split():
        (counter,) = choose_counters(name, tmp_path, "").counters
        assert counter.user
        assert not counter.kernel
    assert set(generic_names()) <= set(PERF_LIST.split())


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("cpu-cycles", Event(0, 0)),
        ("INSTRUCTIONS", Event(0, 1)),
        ("branch-misses", Event(0, 5)),
        ("ref-cycles", Event(0, 9)),
        ("L1-dcache-loads", Event(3, 0)),
        ("L1-dcache-store-misses", Event(3, 0x10100)),
        ("LLC-load-misses", Event(3, 0x10002)),
        ("dTLB-prefetches", Event(3, 0x203)),
        ("node-prefetch-misses", Event(3, 0x10206)),
        ("task-clock", Event(1, 1)),
        ("r01C2", Event(4, 0x1C2)),
        ("mem-loads", Event(4, 0x1CD, 3)),
        ("cpu/mem-loads,ldlat=30/", Event(4, 0x1CD, 30)),
        ("cpu/event=0xc2,umask=0x1,cmask=2,edge/", Event(4, 0x20401C2)),
        ("cpu/config=0x3c,config1=7/", Event(4, 0x3C, 7)),
        ("cpu/L1-icache-load-misses/", Event(3, 0x10001)),
        ("uncore_imc_0/clockticks/", Event(13, 0xFF)),
    ],
)
def test_names_become_events(intel: Path, name: str, event: Event) -> None:
    assert only_event(choose_counters(name, intel, INTEL_INFO)) == event


def test_fields_may_lie_in_pieces(amd: Path) -> None:
    assert only_event(choose_counters("cpu/event=0x1a0,umask=0x1e/", amd, "")).config == 0x1_0000_1EA0


def test_hybrid_names_mean_one_event_for_each_kind_of_core(hybrid: Path) -> None:
    choice = choose_counters("cycles,L1-dcache-loads,r3c,only-atom,cpu_atom/instructions/,task-clock", hybrid, "")
    cycles, loads, raw, atom, slashed, clock = choice.counters
    core, small = frozenset(range(8)), frozenset([*range(8, 16), 17])
    assert cycles.events == (Event(0, 4 << 32, cpus=core), Event(0, 10 << 32, cpus=small))
    assert loads.events[1] == Event(3, 10 << 32, cpus=small)
    assert [event.type for event in raw.events] == [4, 10]
    assert atom.events == (Event(10, 0x1B7, 0x10001, cpus=small),)
    assert slashed.events[0].type == 10
    assert clock.events == (Event(1, 1),)
    assert clock.is_software
    assert cycles.event_for([9, 17]).config >> 32 == 10
    assert cycles.event_for([1, 9]).config >> 32 == 4
    assert "cpu_core and cpu_atom" in choice.notes[0]


def test_three_kinds_of_cores_and_fields_in_pieces(tmp_path: Path) -> None:
    """As on processors with low-power cores, whose unit masks have eight more bits elsewhere in the word."""
    pieces = INTEL_FORMAT | {"umask": "config:8-15,40-47", "eq": "config:36", "snoop_rsp": "config1:0-63"}
    for name, kind, cpus in (("cpu_core", 4, "0-5"), ("cpu_atom", 10, "6-13"), ("cpu_lowpower", 11, "14,15")):
        make_device(tmp_path, name, kind, pieces, {"instructions": "event=0xc0"}, cpus=cpus, rdpmc="1")
    make_device(tmp_path, "msr", 12, {"event": "config:0-63"}, {"tsc": "event=0x00"})
    choice = choose_counters("cpu_lowpower/event=0xa4,umask=0x1ff,eq/,branches,LLC-load-misses", tmp_path, "")
    slashed, branches, misses = choice.counters
    assert slashed.events == (Event(11, 0x110_0000_FFA4, cpus=frozenset((14, 15))),)
    assert [event.config for event in branches.events] == [4 << 32 | 4, 10 << 32 | 4, 11 << 32 | 4]
    assert [event.type for event in misses.events] == [3, 3, 3]
    assert branches.event_for([15]).config >> 32 == 11
    assert "cpu_core and cpu_atom and cpu_lowpower" in choice.notes[0]
    assert not slashed.is_counted_on([0, 6])
    assert slashed.is_counted_on([6, 14])


def test_zen(amd: Path) -> None:
    """Events have twelve bits in two places; the device of the third level cache is another one."""
    make_device(amd, "amd_l3", 17, {"event": "config:0-7", "umask": "config:8-15", "slicemask": "config:48-51"}, {})
    events = {"cpu/event=0x1a2,umask=0x2,cmask=3/": 0x1_0300_02A2, "cpu/event=0xfff/": 0xF_0000_00FF}
    for name, config in events.items():
        assert only_event(choose_counters(name, amd, "")) == Event(4, config)
    assert only_event(choose_counters("amd_l3/event=0x4,umask=0xff,slicemask=0xf/", amd, "")).type == 17
    assert only_event(choose_counters("stalled-cycles-frontend", amd, "")) == Event(0, 7)
    with pytest.raises(UsageError, match="event of cpu has 12 bits"):
        choose_counters("cpu/event=0x1000/", amd, "")


def test_modes_and_bundles(intel: Path) -> None:
    choice = choose_counters("branch,instructions,cycles:k,instructions:uk", intel, INTEL_INFO)
    names = [counter.name for counter in choice.counters]
    assert names == ["cycles", "instructions", "branches", "branch-misses", "cycles:k", "instructions:uk"]
    assert [(counter.user, counter.kernel) for counter in choice.counters[-2:]] == [(False, True), (True, True)]
    assert choose_counters("auto", intel, INTEL_INFO).auto
    assert str(choose_counters("frontend,task-clock", intel, "")).startswith("cycles*1,instructions*1,L1-icache")


def test_modifiers_as_perf_has_them(intel: Path) -> None:
    """Behind a slash, too; those that mean nothing here are named, with the name that does."""
    choice = choose_counters("cpu/event=0xc2,umask=0x1/k,cpu/event=0xc2,umask=0x1/:u,r01c2:k", intel, INTEL_INFO)
    assert [(counter.name, counter.user, counter.kernel) for counter in choice.counters] == [
        ("cpu/event=0xc2,umask=0x1/:k", False, True),
        ("cpu/event=0xc2,umask=0x1/", True, False),
        ("r01c2:k", False, True),
    ]
    for name in ("cycles:p", "cycles:ppp", "instructions:h", "r01c2:P", "cpu/event=0xc2,umask=0x1/pp", "cycles:up"):
        with pytest.raises(UsageError, match="of perf's modifiers only u and k apply") as refused:
            choose_counters(name, intel, INTEL_INFO)
        choose_counters(refused.value.next_command.removeprefix("--counters "), intel, INTEL_INFO)
    with pytest.raises(UsageError, match="No counter is called 'cyclez:p'"):
        choose_counters("cyclez:p", intel, INTEL_INFO)
    with pytest.raises(UsageError, match="written without braces"):
        choose_counters("{cycles,instructions}", intel, INTEL_INFO)
    assert choose_counters("none", intel, INTEL_INFO).counters == ()


def test_topdown_is_made_of_what_the_processor_has(intel: Path, tmp_path: Path) -> None:
    found = {c.name: c.events[0].config for c in choose_counters("topdown-l1", intel, INTEL_INFO).counters}
    assert found["slots-all"] == 0x1A4
    assert found["slots-retired"] == 0x2C2
    with pytest.raises(UsageError, match="no counters that make topdown-l1"):
        choose_counters("topdown-l1", intel, "vendor_id\t: Other\n")


@pytest.mark.parametrize(("family", "model", "width"), [(25, 17, 6), (26, 2, 8), (25, 1, 0), (23, 49, 0)])
def test_topdown_on_amd(amd: Path, family: int, model: int, width: int) -> None:
    info = AMD_INFO.format(family=family, model=model)
    if not width:
        with pytest.raises(UsageError):
            choose_counters("topdown-l1", amd, info)
        return
    slots = choose_counters("topdown-l1", amd, info).counters[0]
    assert (slots.name, slots.scale, slots.events[0].config) == ("slots-all", width, 0x76)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cylces", "similar names: cycles"),
        ("L1-dcache-lode-misses", "similar names: L1-dcache-load-misses"),
        ("xyzzyx", "perf list shows names"),
        ("cpu/nosuch=1/", "has no field 'nosuch'; it has .*umask"),
        ("cpu/umask=0x1ff/", "umask of cpu has 8 bits"),
        ("cpu/event=three/", "= must be followed by a number"),
        ("cpu/nosuch/", "cpu has no event 'nosuch'"),
        ("gpu/event=1/", "No counter device is called 'gpu'; there are: cpu, "),
        (" , ", "needs names"),
        (
            ",".join(f"r{number}" for number in range(1, COUNTERS_MAX + 2)),
            f"at most {COUNTERS_MAX} counters; these are {COUNTERS_MAX + 1}",
        ),
    ],
)
def test_what_cannot_be_meant_is_told(intel: Path, text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        choose_counters(text, intel, INTEL_INFO)


def test_commas_between_slashes_belong_to_a_name() -> None:
    assert split_names("a, cpu/event=1,umask=2/:u,b") == ["a", "cpu/event=1,umask=2/:u", "b"]
    assert parse_cpus("0-2,8") == {0, 1, 2, 8}
    assert parse_cpus("") == frozenset() == parse_cpus("x-y")


def test_derived_columns() -> None:
    counts = {"cycles": 1000.0, "instructions": 2500.0, "branches": 100.0, "branch-misses": 5.0}
    counts["cache-references"] = 0.0
    assert derive(counts) == {"ipc": 2.5, "branch_miss_ratio": 0.05}
    slots = {"slots-all": 600.0, "slots-frontend": 60.0, "slots-backend": 240.0, "slots-retired": 240.0}
    shares = {"frontend_bound": 0.1, "backend_bound": 0.4, "retiring": 0.4, "bad_speculation": 0.1}
    assert derive(slots) == pytest.approx(shares)
    assert derive(slots | {"slots-dispatched": 270.0})["bad_speculation"] == pytest.approx(0.05)
    assert per_packet({"cache-misses": 64.0}, 32) == {"cache-misses_per_packet": 2.0}
    assert per_packet({"cache-misses": 64.0}, 0) == {}
