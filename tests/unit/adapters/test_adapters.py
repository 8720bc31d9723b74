# SPDX-License-Identifier: Apache-2.0
"""Descriptions of network functions, checked key by key, and the choice of an adapter."""

from __future__ import annotations

import copy
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from otel_nfprobe._core import ffi
from otel_nfprobe.adapters import base, installed
from otel_nfprobe.adapters.base import DROP, RECEIVE, TRANSMIT, Buffer, Burst
from otel_nfprobe.adapters.described import DescribedAdapter
from otel_nfprobe.adapters.dpdk import Table
from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.errors import RefusedError, UsageError
from otel_nfprobe.target.target import Target

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "firewall" / "firewall.yaml"
SOURCE = """
#include <unistd.h>
unsigned nf_receive(void *port, void **packets, unsigned count) { return count + (port == packets); }
unsigned nf_transmit(void *port, void **packets, unsigned count) { return count - (port == packets); }
void nf_drop(void **packet) { *packet = 0; }
int main(void) { for (;;) pause(); }
"""
DESCRIPTION: dict[str, Any] = {
    "name": "example",
    "recognise": {"executable": "nf", "exports": ["nf_receive", "nf_transmit"]},
    "receive": [{"function": "nf:nf_receive", "pointers": 1, "requested": 2, "count": "return", "count_bits": 16}],
    "transmit": [{"function": "nf:nf_transmit", "pointers": 1, "requested": 2}],
    "drop": [{"function": "nf:nf_drop", "packet": 0, "count": 1}],
    "buffer": {
        "data": 8,
        "data_offset": 16,
        "length": {"offset": 36, "bytes": 4},
        "segment_length": {"offset": 40, "bytes": 2},
        "arrival": {"offset": 48, "unit": "ticks"},
    },
    "link_layer": "ip",
    "functions": ["nf:nf_*"],
}


def _changed(path: str, value: Any) -> dict[str, Any]:
    """The description with one key changed; `None` takes it away."""
    description = copy.deepcopy(DESCRIPTION)
    place: Any = description
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return description


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nf")
    (folder / "nf.c").write_text(SOURCE)
    subprocess.run(["gcc", "-O1", "-rdynamic", "-s", "-o", str(folder / "nf"), str(folder / "nf.c")], check=True)
    return folder / "nf"


@pytest.fixture(scope="module")
def target(program: Path) -> Iterator[Target]:
    process = subprocess.Popen([program])
    found = Target(process.pid)
    deadline = time.monotonic() + 10
    while len(found.modules()) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield found
    process.kill()
    process.wait()


def test_roles_of_a_description(target: Target) -> None:
    adapter = DescribedAdapter("nf.yaml", DESCRIPTION)
    assert adapter.recognise(target) == "nf.yaml describes nf"
    exports = target.modules()[0].image.exports
    roles = {role.role: role for role in adapter.roles(target)}
    for role, name in ((RECEIVE, "nf_receive"), (TRANSMIT, "nf_transmit"), (DROP, "nf_drop")):
        assert roles[role].address == target.modules()[0].base + exports[name].address
        assert roles[role].name == f"nf:{name}"
    assert dict(roles[RECEIVE].program) == {
        "role": RECEIVE,
        "count_from": base.COUNT_RETURN,
        "count_argument": 255,
        "requested_argument": 2,
        "pointers_argument": 1,
        "pointers_single": 0,
        "count_mask": 0xFFFF,
        "packets_max": base.PACKETS_MAX,
        "data_pointer": 8,
        "data_offset": 16,
        "length": 36,
        "length_width": 4,
        "segment_length": 40,
        "segment_width": 2,
        "arrival": 48,
        "arrival_unit": 0,
        "arrival_flags": 0xFFFF,
        "arrival_bit": 0,
        "holders": 0xFFFF,
        "link_layer": 1,
        "count_width": 0,
        "count_offset": 0,
        "pointers_offset": 0,
        "when": base.WHEN_NONZERO,
        "checked": 1,
        "pooled": 0,
        "plain": 0,
        "queue_argument": 255,
        "array_offset": 0xFFFF,
        **dict.fromkeys(("number_shift", "next_number", "next_flags", "next_bit"), 0),
        **dict.fromkeys(("verdict", "proven", "offence"), 0),
    }
    drop = roles[DROP].program
    assert (drop["pointers_single"], drop["pointers_argument"], drop["requested_argument"]) == (1, 0, 255)
    assert (drop["count_from"], drop["count_argument"]) == (base.COUNT_FIXED, 1)


def test_a_program_has_exactly_the_fields_of_the_structure(target: Target) -> None:
    program = DescribedAdapter("nf.yaml", DESCRIPTION).roles(target)[0].program
    fields = {name for name, _ in ffi.typeof("struct nfp_program").fields} - {"reserved"}
    assert set(program) == fields
    assert ffi.new("struct nfp_program *", dict(program)).count_mask == 0xFFFF


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("colour", "red", "unknown key 'colour'"),
        ("name", None, "name is missing"),
        ("name", 5, "name must be text"),
        ("receive", [], "receive names no function"),
        ("receive", "nf_receive", "receive must be a list"),
        ("receive.0.function", None, "receive[0].function is missing"),
        ("receive.0.pointers", None, "receive[0] needs either"),
        ("receive.0.packet", 0, "receive[0] needs either"),
        ("receive.0.pointers", 6, "receive[0].pointers is 6, not a number from 0 to 5"),
        ("receive.0.pointers", True, "receive[0].pointers is True"),
        ("receive.0.requested", -1, "receive[0].requested is -1"),
        ("receive.0.count", "all", "receive[0].count must be"),
        ("receive.0.count", 300, "receive[0].count is 300"),
        ("receive.0.count_bits", 33, "receive[0].count_bits is 33"),
        ("receive.0.typo", 1, "unknown key 'typo'"),
        ("drop.0.count", "requested", "drop[0].count is `requested`"),
        ("buffer", None, "buffer must hold keys"),
        ("buffer.data", None, "buffer.data is missing"),
        ("buffer.data", 4096, "buffer.data is 4096"),
        ("buffer.length", None, "buffer.length must hold keys"),
        ("buffer.length.bytes", 3, "buffer.length.bytes must be 2 or 4"),
        ("buffer.length.offset", "x", "buffer.length.offset is 'x'"),
        ("buffer.arrival.unit", "weeks", "buffer.arrival.unit is 'weeks'"),
        ("link_layer", "token ring", "link_layer is 'token ring'"),
        ("functions", ["a", 1], "functions[1] must be text"),
        ("recognise.exports", "nf_receive", "recognise.exports must be a list"),
        ("packets_max", 0, "packets_max is 0"),
        (
            "receive.0.when",
            "zero",
            "receive[0].when is for receive and take_over functions that do not return the",
        ),
        ("receive.0.requested", "capacity", "receive[0].requested is 'capacity'"),
        ("receive.0", {"function": "nf:nf_receive", "batch": 1}, "receive[0].batch needs the layout of a batch"),
        ("batch", {"pointers": 16, "capacity": 32}, "batch.count must hold keys"),
        (
            "batch",
            {"count": {"offset": 0, "bytes": 3}, "pointers": 8, "capacity": 1},
            "batch.count.bytes must be 2 or 4 or 8",
        ),
        ("batch", {"count": {"offset": 20, "bytes": 4}, "pointers": 16, "capacity": 32}, "lies in the array"),
        ("batch", {"count": {"offset": 0, "bytes": 8}, "pointers": 16, "capacity": 0}, "batch.capacity is 0"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError) as error:
        DescribedAdapter("nf.yaml", _changed(path, value))
    assert says in error.value.sentence
    assert "nf.yaml" in error.value.sentence
    assert error.value.next_command


BATCH: dict[str, Any] = {
    **DESCRIPTION,
    "batch": {"count": {"offset": 4, "bytes": 2}, "pointers": 16, "capacity": 64},
    "receive": [{"function": "nf:nf_receive", "batch": 0, "when": "zero", "requested": "capacity"}],
    "transmit": [{"function": "nf:nf_transmit", "batch": 1, "count": "return", "count_bits": 16}],
}


def test_a_batch_behind_a_pointer(target: Target) -> None:
    programs = {role.role: role.program for role in DescribedAdapter("nf.yaml", BATCH).roles(target)}
    receive, transmit, drop = programs[RECEIVE], programs[TRANSMIT], programs[DROP]
    assert (receive["count_from"], receive["when"], receive["packets_max"]) == (base.COUNT_MEMORY, base.WHEN_ZERO, 64)
    assert (receive["requested_argument"], receive["pointers_argument"]) == (base.CAPACITY, 0)
    assert [receive[name] for name in ("count_offset", "count_width", "pointers_offset")] == [4, 2, 16]
    assert (transmit["count_from"], transmit["count_mask"]) == (base.COUNT_RETURN, 0xFFFF)
    assert (transmit["count_width"], transmit["when"]) == (2, base.WHEN_ALWAYS)
    assert (drop["count_width"], drop["packets_max"]) == (0, base.PACKETS_MAX)
    assert all(program["checked"] == 1 for program in programs.values())


def test_without_checks_a_batch_is_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a seccomp filter forbids the call that checks memory."""
    monkeypatch.setattr(target, "may_check_memory", False)
    with pytest.raises(RefusedError, match="may forbid process_vm_readv"):
        DescribedAdapter("nf.yaml", BATCH).roles(target)
    adapter = DescribedAdapter("nf.yaml", DESCRIPTION)
    assert adapter.roles(target)[0].program["checked"] == 0
    assert "not checked" in adapter.notes(target)[1]


class _Recognising:
    inner: ClassVar[list[str]] = []

    def __init__(self, name: str, knows: int | None) -> None:
        self.name = name
        if knows is not None:
            self.knows = knows

    def recognise(self, target: Target) -> str | None:
        return "it always does"


@pytest.mark.parametrize(
    ("adapters", "chosen"),
    [
        ([("a", base.KNOWS_LIBRARY), ("b", base.KNOWS_PROGRAM)], "b"),
        ([("a", base.KNOWS_LIBRARY), ("b", None)], "b"),
        ([("a", None), ("b", base.KNOWS_PROGRAM)], "a"),
    ],
)
def test_auto_takes_the_one_that_knows_most(
    adapters: list[tuple[str, int | None]], chosen: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "_installed", lambda: [_Recognising(*adapter) for adapter in adapters])
    adapter = choose_adapter("auto", target)
    assert adapter is not None
    assert adapter.name == chosen


@pytest.mark.parametrize(
    ("burst", "buffer", "says"),
    [
        (Burst(pointers=6, requested=2), {}, "pointers_argument is 6"),
        (Burst(pointers=1, requested=9), {}, "requested_argument is 9"),
        (Burst(1, 2, count_from=base.COUNT_ARGUMENT), {}, "count_argument is 255"),
        (Burst(1, 2), {"length_bytes": 8}, "length_width is 8"),
        (Burst(1, 2), {"segment_bytes": 3}, "segment_width is 3"),
    ],
)
def test_a_program_that_reads_elsewhere_is_refused(burst: Burst, buffer: dict[str, int], says: str) -> None:
    layout = {"data": 0, "length": 8, "length_bytes": 4, "segment_length": 8, "segment_bytes": 4, **buffer}
    with pytest.raises(UsageError, match=says):
        base.make_program(RECEIVE, burst, Buffer(**layout))


@pytest.mark.parametrize("text", ["a: [", "\x00", "- 1\n- 2\n", "", "&a [*a]", "5"])
def test_a_file_that_is_no_description(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"bad\.yaml"):
        DescribedAdapter.from_file(path)


def test_a_function_that_does_not_exist(target: Target) -> None:
    adapter = DescribedAdapter("nf.yaml", _changed("receive.0.function", "nf:nf_recieve"))
    with pytest.raises(UsageError, match="nf_receive"):
        adapter.roles(target)


def test_a_glob_that_matches_several(target: Target) -> None:
    adapter = DescribedAdapter("nf.yaml", _changed("receive.0.function", "nf:nf_*"))
    with pytest.raises(UsageError, match="matches 3 functions"):
        adapter.roles(target)


def test_one_function_in_two_roles(target: Target) -> None:
    adapter = DescribedAdapter("nf.yaml", _changed("transmit.0.function", "nf:nf_receive"))
    with pytest.raises(UsageError, match="more than once"):
        adapter.roles(target)


def test_the_choice(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "nf.yaml"
    path.write_text(yaml.safe_dump(DESCRIPTION))
    chosen = choose_adapter(str(path), target)
    assert chosen is not None
    assert (chosen.name, chosen.inner) == ("example", ["nf:nf_*"])
    assert choose_adapter("none", target) is None
    assert choose_adapter("auto", target) is None
    for text, says in (
        ("dpdk", "does not know process"),
        ("nothing", "no adapter 'nothing'"),
        ("a.yaml", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=says):
            choose_adapter(text, target)
    path.write_text(yaml.safe_dump(_changed("recognise.exports", ["no_such_function"])))
    with pytest.raises(UsageError, match="does not know process"):
        choose_adapter(str(path), target)


def test_the_example_is_a_description(compile_firewall: Callable[[], Path]) -> None:
    adapter = DescribedAdapter.from_file(EXAMPLE)
    process = subprocess.Popen([compile_firewall()], stdout=subprocess.DEVNULL)
    try:
        target = Target(process.pid)
        deadline = time.monotonic() + 10
        while len(target.modules()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert adapter.recognise(target) is not None
        assert sorted(role.role for role in adapter.roles(target)) == [RECEIVE, TRANSMIT, DROP]
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def compile_firewall(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    def compile_() -> Path:
        folder = tmp_path_factory.mktemp("firewall")
        subprocess.run(
            ["make", "--quiet", "-C", str(EXAMPLE.parent), f"BUILD={folder}"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return folder / "stripped" / "firewall"

    return compile_


def test_unused_ports_of_a_table() -> None:
    table = Table(0, "", (10, *[1] * 31), (20, *[2] * 31))
    assert table.placeholder() == (1, 2)
    assert table.started() == [0]
    assert Table(0, "", (1,) * 32, (2,) * 32).started() == []
    full = Table(0, "", tuple(range(100, 132)), tuple(range(200, 232)))
    assert full.placeholder() is None
    assert full.started() == list(range(32))


@pytest.mark.parametrize(
    ("burst", "role", "plain"),
    [
        (Burst(pointers=2, requested=3, queue=1), RECEIVE, True),
        (Burst(pointers=2, requested=3), RECEIVE, False),  # whose queue nobody knows
        (Burst(pointers=2, requested=3), TRANSMIT, True),
        (Burst(pointers=2, requested=3), DROP, False),
        (Burst(pointers=2, requested=base.ABSENT), TRANSMIT, False),
        (Burst(pointers=2, requested=3, count_from=base.COUNT_ARGUMENT, count_argument=3), TRANSMIT, False),
        (Burst(pointers=2, requested=3, single=True), TRANSMIT, False),
        (Burst(pointers=2, requested=3, checked=True), TRANSMIT, False),
        (Burst(pointers=2, requested=3, when=base.WHEN_ALWAYS, queue=1), RECEIVE, False),
        (Burst(pointers=1, requested=base.CAPACITY, batch=base.Batch(0, 8, 16, 32), queue=0), RECEIVE, False),
    ],
)
def test_which_programs_are_plain(burst: Burst, role: int, plain: bool) -> None:
    program = base.make_program(
        role, burst, Buffer(data=0, length=8, length_bytes=4, segment_length=8, segment_bytes=2)
    )
    assert program["plain"] == plain
