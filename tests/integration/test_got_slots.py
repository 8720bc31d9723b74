# SPDX-License-Identifier: Apache-2.0
"""Probes in GOT slots: counts equal to the program's own, slots and protections as they were."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.base.strategies import GOT_SLOT
from otel_nfprobe.target.target import Target
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

LINKS = {
    "lazy": ("-Wl,-z,lazy", "-Wl,-z,norelro"),
    "lazy, partly read-only": ("-Wl,-z,lazy", "-Wl,-z,relro"),
    "bound at start, read-only": ("-Wl,-z,now", "-Wl,-z,relro"),
    "no PLT": ("-fno-plt", "-Wl,-z,now", "-Wl,-z,relro"),
    "no PIE": ("-no-pie", "-fno-pie", "-Wl,-z,lazy"),
}
GLOBS = ["libz.so*:crc32", "libz.so*:adler32", "libc.so*:qsort", "libc.so*:strtoul"]


@pytest.fixture(params=list(LINKS))
def talker(
    request: pytest.FixtureRequest,
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
) -> Talker:
    library = compile_target("looper", "-shared", "-fPIC")
    program = compile_target("slots", *LINKS[request.param], str(library), "-l:libz.so.1")
    return Talker(spawn(program, stdin=subprocess.PIPE))


def slot_values(pid: int) -> dict[int, int]:
    """Every GOT slot of the process and what it holds."""
    target = Target(pid)
    return {
        module.base + slot.address: target.read_word(module.base + slot.address)
        for module in target.modules()
        if not module.is_probe_library
        for slot in module.image.slots
    }


def is_ours(pid: int, address: int) -> bool:
    """Whether an address lies among the trampolines."""
    mappings = [mapping for mapping in Target(pid).maps() if "nfprobe" in mapping.path]
    return any(mapping.start <= address < mapping.end for mapping in mappings)


def protections(pid: int) -> list[tuple[str, str]]:
    """Address range and protection of the target's own mappings, without ours."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [
        (line.split()[0], line.split()[1]) for line in lines if "slots-" in line or "libz" in line or "looper-" in line
    ]


def test_counts_and_restored_slots(talker: Talker) -> None:
    assert talker.ask("crc 10") == talker.ask("libc 10") == "right"
    talker.ask("calls")
    before, protected = slot_values(talker.pid), protections(talker.pid)
    with Probed(talker.pid, GLOBS, strategy="got") as probed:
        assert {plan.strategy for plan in probed.choice.plans} == {GOT_SLOT}
        during = slot_values(talker.pid)
        # Others may have been bound by the dynamic linker meanwhile.
        changed = {address for address, value in during.items() if is_ours(talker.pid, value)}
        assert changed == {plan.site for plan in probed.choice.plans}
        assert protections(talker.pid) == protected
        assert talker.ask("crc 500") == talker.ask("libc 300") == talker.ask("adler 200") == "right"
    probed.assert_exact()
    assert probed.calls["crc32"] == int(talker.ask("calls")) == 1000
    assert probed.calls["adler32"] == 200
    assert probed.calls["qsort"] == 300
    assert sum(probed.calls.values()) == 1000 + 200 + 2 * 300
    after = slot_values(talker.pid)
    assert not any(is_ours(talker.pid, value) for value in after.values())
    assert {address: after[address] for address in changed} == {address: before[address] for address in changed}
    assert protections(talker.pid) == protected
    assert talker.ask("crc 5") == talker.ask("adler 5") == talker.ask("libc 5") == "right"


def test_attach_again(talker: Talker) -> None:
    """The same slots, bound by then or not, at every attach."""
    for round_ in range(1, 4):
        with Probed(talker.pid, GLOBS, strategy="got") as probed:
            assert talker.ask(f"crc {round_}") == "right"
            assert talker.ask(f"adler {round_}") == "right"
        probed.assert_exact()
        assert (probed.calls["crc32"], probed.calls["adler32"]) == (2 * round_, round_)
        assert talker.ask("adler 1") == "right"


def test_a_slot_of_an_ifunc(talker: Talker) -> None:
    """While it is not bound, nobody knows which function it will lead to: not to the code that chooses one."""
    globs = ["libc.so*:strlen", "libc.so*:__strlen_*", *GLOBS]
    with Probed(talker.pid, globs, strategy="got") as probed:
        assert talker.ask("length 7") == talker.ask("libc 3") == "right"
    probed.assert_exact()
    assert probed.calls["qsort"] == 3
    assert "strlen" not in probed.calls  # the code that chooses
    assert talker.ask("length 7") == "right"


def test_pointers_past_the_slots_are_counted(talker: Talker) -> None:
    with Probed(talker.pid, ["libz.so*:zlibCompileFlags", "libz.so*:adler32"], strategy="got") as probed:
        assert talker.ask("direct 30") == talker.ask("stored 20") == "right"
    probed.assert_exact()
    assert probed.calls == {"zlibCompileFlags": 30}
    assert probed.monitor.attachment.uncovered == 1
    assert [
        sentence for sentence in probed.said if f" {probed.monitor.attachment.uncovered} stored pointers" in sentence
    ]


def test_slot_bound_over_the_probe(talker: Talker) -> None:
    """A thread inside the dynamic linker may store the function's address after the probe was put there."""
    with Probed(talker.pid, ["libz.so*:adler32"], strategy="got") as probed:
        assert talker.ask("adler 3") == "right"
        for round_ in range(1, 3):
            with open(f"/proc/{talker.pid}/mem", "r+b", buffering=0) as memory:
                for plan in probed.choice.plans:
                    memory.seek(plan.site)
                    memory.write(plan.address.to_bytes(8, "little"))
            wanted = round_ * len(probed.choice.plans)
            assert wait_until(lambda wanted=wanted: probed.monitor.attachment.follower.rebound == wanted)
            assert talker.ask("adler 4") == "right"
    probed.assert_exact()
    assert probed.calls == {"adler32": 3 + 4 + 4}
    assert not any(is_ours(talker.pid, value) for value in slot_values(talker.pid).values())


def test_slot_bound_over_the_probe_at_the_end(talker: Talker) -> None:
    """Too late for another look: the function's address stays."""
    with Probed(talker.pid, ["libz.so*:adler32"], strategy="got", drained=False) as probed:
        with open(f"/proc/{talker.pid}/mem", "r+b", buffering=0) as memory:
            for plan in probed.choice.plans:
                memory.seek(plan.site)
                memory.write(plan.address.to_bytes(8, "little"))
        assert talker.ask("adler 4") == "right"
    probed.assert_exact()
    assert probed.calls == {}
