# SPDX-License-Identifier: Apache-2.0
"""Modules that the target loads, closes and loads again while it is measured."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.monitor.summary import summarise
from otel_nfprobe.probes.analysis import FunctionPlan
from otel_nfprobe.probes.probe_selection import NEEDS_STOP, choose
from otel_nfprobe.target.linkmap import LinkMap
from otel_nfprobe.target.target import Target
from tests.support.probed import ANSWER_S, Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

STAY = "loader-*:stay"
PLUGIN = "plugin-*:plugin_step"


@pytest.fixture
def plugins(compile_target: Callable[..., Path]) -> list[Path]:
    flags = ("-shared", "-fPIC", "-Wl,-z,lazy", "-l:libz.so.1")
    return [compile_target("plugin", *flags), compile_target("plugin", "-DFACTOR=5", *flags)]


@pytest.fixture
def talker(
    plugins: list[Path], compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> Talker:
    program = compile_target("loader", "-ldl")
    return Talker(spawn(program, *plugins, stdin=subprocess.PIPE))


def open_and_wait(talker: Talker, probed: Probed, command: str = "open 1") -> None:
    """Loads a plugin and waits for its probes."""
    before = probed.monitor.attachment.follower.loaded
    assert talker.ask(command).startswith("0x")
    assert wait_until(lambda: probed.monitor.attachment.follower.loaded > before), probed.said


def is_in_place(probed: Probed, name: str) -> bool:
    """Whether the changed bytes of the last probe on this function stand in the target."""
    probe = [probe for probe in probed.monitor.attachment.probes if probe.request.plan.name == name][-1]
    entry = probed.monitor.attachment.session.probe(probe.id)
    return probed.target.read(int(entry.site), int(entry.length)) == bytes(entry.new_bytes)[: int(entry.length)]


def test_loaded_later(talker: Talker) -> None:
    with Probed(talker.pid, [STAY, PLUGIN]) as probed:
        assert probed.choice.request.waiting == [PLUGIN]
        open_and_wait(talker, probed)
        assert talker.ask("run 700") == talker.ask("stay 20") == "right"
    probed.assert_exact()
    assert probed.calls == {"stay": 20, "plugin_step": 700}
    assert talker.ask("run 10") == "right"


def test_everything_that_is_loaded_later(talker: Talker) -> None:
    with Probed(talker.pid, ["*"]) as probed:
        open_and_wait(talker, probed)
        assert talker.ask("run 300") == "right"
    assert probed.not_restored == []
    assert (probed.calls["plugin_run"], probed.calls["plugin_step"]) == (1, 300)


def test_what_is_loaded_while_another_is_planned(talker: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that goes on loading modules does not have the ones before planned again and again."""
    planned: list[str] = []
    answered = threading.Event()  # the command before, to the test's own thread
    with Probed(talker.pid, [STAY, PLUGIN]) as probed:
        add_modules = probed.choice.add_modules

        def load_another(target: Target, modules: Sequence[Module]) -> list[FunctionPlan]:
            plans = add_modules(target, modules)
            planned.extend(module.name for module in modules if module.name.startswith("plugin-"))
            if len(planned) == 1:
                assert answered.wait(ANSWER_S)
                assert talker.ask("add 2") == "added"
            return plans

        monkeypatch.setattr(probed.choice, "add_modules", load_another)
        assert talker.ask("open 1").startswith("0x")
        answered.set()
        assert wait_until(lambda: probed.monitor.attachment.follower.loaded == 2), probed.said
        assert talker.ask("run 70") == "right"
    probed.assert_exact()
    assert probed.calls["plugin_step"] == 70
    assert len(planned) == len(set(planned)) == 2


def test_what_still_holds(talker: Talker) -> None:
    """More modules are no harm; one that is gone is, and so is not knowing what there was."""
    link_map = LinkMap(Target(talker.pid))
    talker.ask("open 1")
    _, listed = link_map.read()
    assert link_map.still_holds(listed)
    assert not link_map.still_holds(None)
    assert talker.ask("add 2") == "added"
    assert link_map.read()[1] != listed
    assert link_map.still_holds(listed)
    assert talker.ask("close") == "closed"
    assert not link_map.still_holds(listed)


def test_closed(talker: Talker, plugins: list[Path]) -> None:
    """What came to the address of a closed module is not touched, and nothing is missed."""
    with Probed(talker.pid, [STAY, f"{plugins[0].name}:*"]) as probed:
        open_and_wait(talker, probed)
        assert talker.ask("run 50") == "right"
        assert talker.ask("close") == "closed"
        assert talker.ask("open 2").startswith("0x")  # where the first one was, as a rule
        assert wait_until(lambda: probed.monitor.attachment.follower.closed == 1)
        assert talker.ask("run 60") == "right"
        session = probed.monitor.attachment.session
        armed = [index for index in range(session.probe_count) if session.probe(index).armed]
        names = {probe.id: probe.request.plan.name for probe in probed.monitor.attachment.probes}
        assert [names[index] for index in armed] == ["stay"]
    probed.assert_exact()
    assert probed.calls["plugin_step"] == 50
    assert text_of(talker.pid, plugins[1]) == text_in_file(talker.pid, plugins[1])


def text_of(pid: int, path: Path) -> bytes:
    module = next(module for module in Target(pid).modules() if module.path == str(path))
    start, end = module.image.code_ranges[0]
    return Target(pid).read(module.base + start, end - start)


def text_in_file(pid: int, path: Path) -> bytes:
    module = next(module for module in Target(pid).modules() if module.path == str(path))
    start, end = module.image.code_ranges[0]
    return module.image.read(start, end - start)


def test_detached_right_after_it_was_closed(talker: Talker, plugins: list[Path]) -> None:
    for _ in range(5):
        with Probed(talker.pid, [STAY, PLUGIN]) as probed:
            open_and_wait(talker, probed)
            assert talker.ask("run 5") == "right"
            assert talker.ask("close") == "closed"
            assert talker.ask("open 2")
        probed.assert_exact()
        assert text_of(talker.pid, plugins[1]) == text_in_file(talker.pid, plugins[1])
        assert talker.ask("run 5") == "right"
        assert talker.ask("close") == "closed"


def test_closed_and_loaded_again(talker: Talker) -> None:
    with Probed(talker.pid, [STAY, PLUGIN]) as probed:
        for closed in range(3):
            open_and_wait(talker, probed)
            assert talker.ask("run 40") == "right"
            assert talker.ask("close") == "closed"
            assert wait_until(lambda closed=closed: probed.monitor.attachment.follower.closed > closed)
    probed.assert_exact()
    assert probed.calls["plugin_step"] == 120
    assert summarise(probed.monitor)["modules"] == {"loaded": 3, "closed": 3, "rebound_slots": 0}


def test_loaded_again_between_two_looks(talker: Talker) -> None:
    """The list of modules looks as it did, but the code is fresh."""
    with Probed(talker.pid, [STAY, PLUGIN]) as probed:
        open_and_wait(talker, probed)
        for _ in range(3):
            talker.ask("reopen 1")
            assert wait_until(lambda: is_in_place(probed, "plugin_step")), probed.said
        assert talker.ask("run 80") == "right"
    probed.assert_exact()
    assert probed.calls["plugin_step"] == 80


def test_slots_of_modules_that_are_loaded_later(talker: Talker) -> None:
    """The function's own module comes later, too."""
    with Probed(talker.pid, ["libz.so*:crc32", "libc.so*:fgets"], strategy="got") as probed:
        assert probed.choice.request.waiting == ["libz.so*:crc32"]
        open_and_wait(talker, probed)
        assert talker.ask("run 90") == "right"
        assert talker.ask("close") == "closed"
        assert wait_until(lambda: probed.monitor.attachment.follower.closed > 0)
        open_and_wait(talker, probed, "open 2")
        assert talker.ask("run 30") == "right"
    assert probed.not_restored == []
    assert probed.calls["crc32"] == 120


def test_storm_of_modules(talker: Talker) -> None:
    with Probed(talker.pid, [STAY, "plugin-*:*", "libz.so*:crc32"]) as probed:
        for _ in range(10):
            assert talker.ask("storm 100") == "right"
    assert probed.not_restored == []
    assert talker.ask("storm 10") == "right"


def test_end_in_the_middle(talker: Talker) -> None:
    with Probed(talker.pid, [STAY, "plugin-*:*"]) as probed:
        open_and_wait(talker, probed)
        talker.say("close")
        talker.say("storm 100000000")
        assert wait_until(lambda: probed.monitor.attachment.follower.closed > 0)
        talker.process.kill()
        assert wait_until(lambda: probed.monitor.attachment.has_gone)
    assert probed.not_restored == []


def test_recorded(talker: Talker, nfprobe: Any, tmp_path: Path) -> None:
    """The recording and its report know functions that were loaded after it began."""
    recording = tmp_path / "later.nfprobe"
    words = ["--functions", STAY, "--functions", PLUGIN, "--record", recording, "--json"]
    monitor = nfprobe.start("attach", talker.pid, *words)
    assert "no such module is loaded" in hear_until(monitor, "Ctrl-C detaches")
    assert talker.ask("open 1")
    hear_until(monitor, "was loaded")
    assert talker.ask("run 250") == talker.ask("stay 3") == "right"
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["modules"] == {"loaded": 1, "closed": 0, "rebound_slots": 0}
    report = nfprobe.json("report", recording)
    assert {entry["name"]: entry["calls"] for entry in report["functions"]} == {"stay": 3, "plugin_step": 250}


def hear_until(monitor: subprocess.Popen[str], words: str) -> str:
    """What a monitor says, up to the line with these words."""
    assert monitor.stderr is not None
    heard = ""
    for line in monitor.stderr:
        heard += line
        if words in line:
            return heard
    raise AssertionError(f"it ended without {words!r}: {heard}")


def test_words_that_match_nothing(talker: Talker) -> None:
    """A module that is not loaded may come; a name that is in none of the loaded ones is a mistake."""
    target = Target(talker.pid)
    for globs in (["libnone.so:*"], ["libnone.so:*", "other.so:x"], [STAY, "loader-*:no_such"]):
        with pytest.raises(UsageError, match="matches"):
            choose(target, None, globs, [])
    assert choose(target, None, [STAY, "libnone.so:*"], []).request.waiting == ["libnone.so:*"]


def test_never_stopped(talker: Talker) -> None:
    """Later modules, too, are only probed where nothing must stand still."""
    target = Target(talker.pid)
    choice = choose(target, None, ["libc.so*:fgets", PLUGIN], [], "got", no_stop=True)
    assert talker.ask("open 1")
    plans = choice.add_modules(target, [module for module in target.modules() if module not in choice.modules])
    assert plans == []
    choice = choose(target, None, [STAY, "plugin-*:*"], [], no_stop=True)
    assert all(plan.is_slot or plan.single for plan in choice.plans if plan.strategy)
    assert {plan.reason for plan in choice.plans if plan.strategy is None} <= {NEEDS_STOP}
