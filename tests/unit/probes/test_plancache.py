# SPDX-License-Identifier: Apache-2.0
"""Plans that are kept on disk are those that judging gives, and hold for exactly the file they were made from."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.strategies import IN_STACK_CALL
from otel_nfprobe.elf import cache
from otel_nfprobe.elf.filecontent import Content
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, function_at, functions_of
from otel_nfprobe.probes import analysis
from otel_nfprobe.probes.analysis import RUNTIME, FunctionPlan, plan_functions

LIBRARY = next(Path("/lib").glob("*/libc.so.6"))


@pytest.fixture(scope="module")
def read() -> list[Function]:
    return functions_of(Module.from_file(LIBRARY))


@pytest.fixture
def functions(read: list[Function], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Function]:
    """Of the C library, and an empty folder of what is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return read


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that are judged, from here on."""
    names: list[str] = []
    plan = analysis._Ladder.plan

    def record(ladder: Any, strategy: str | None) -> FunctionPlan:
        names.append(ladder.function.name)
        return plan(ladder, strategy)

    monkeypatch.setattr(analysis._Ladder, "plan", record)
    return names


def test_equal_to_judging(functions: list[Function], judged: list[str]) -> None:
    plans = plan_functions(functions)
    assert len(judged) == len(functions)
    judged.clear()
    assert plan_functions(functions) == plans
    assert not judged
    assert plan_functions(functions[:10]) == plans[:10]
    forced = plan_functions(functions[:100], None, "relocated")
    assert len(judged) == 100
    assert all(plan.strategy != IN_STACK_CALL for plan in forced)


@pytest.mark.thorough
def test_parts_of_a_module_add_up(functions: list[Function], judged: list[str]) -> None:
    halves = plan_functions(functions[::2]), plan_functions(functions[1::2])
    judged.clear()
    assert [plan_functions(functions[::2]), plan_functions(functions[1::2])] == list(halves)
    assert not judged


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_few_plans_are_kept_when_they_took_long(
    functions: list[Function], judged: list[str], is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first plan of a module may need all of its code, however few functions are asked for."""
    times_s = count(0.0, analysis.FRESH_S if is_slow else 0.0)
    monkeypatch.setattr(analysis.time, "perf_counter", lambda: next(times_s))
    plans = plan_functions(functions[:3])
    judged.clear()
    assert plan_functions(functions[:3]) == plans
    assert len(judged) == (0 if is_slow else 3)


def test_another_name_of_a_function(functions: list[Function], judged: list[str]) -> None:
    plans = plan_functions(functions := functions[:500])
    index = next(index for index, plan in enumerate(plans) if plan.strategy == IN_STACK_CALL)
    aliases = functions[index].aliases
    judged.clear()
    functions[index].aliases = ("__tls_get_addr", *aliases)
    try:
        assert plan_functions(functions)[index].reason == RUNTIME
    finally:
        functions[index].aliases = aliases
    assert judged == [functions[index].name]


@pytest.mark.thorough
def test_another_file_of_the_same_build_id(
    functions: list[Function], judged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_functions(functions)
    image = functions[0].module.image
    judged.clear()
    monkeypatch.setattr(image, "content", Content(image.data[:-1] + b"?"))
    plan_functions(functions[:50])
    assert len(judged) == 50


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", b"null", b"[[]]", b"not json", b"[[1,2]]"])
def test_damaged(functions: list[Function], judged: list[str], monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(cache, "load", lambda _, kind, __: content if kind == analysis.KIND else None)
    plan_functions(functions[:5])
    assert len(judged) == 5


@pytest.mark.thorough
def test_a_name_that_an_adapter_gives_changes_no_plan(functions: list[Function], judged: list[str]) -> None:
    """What a graph calls its nodes' functions depends on which nodes ran, and is no name of code."""
    plans = plan_functions(functions)
    judged.clear()
    chosen = functions[:50]
    for function in chosen:
        function.give_name("__tls_get_addr", "graph")
    again = plan_functions(chosen)
    assert not judged
    assert [plan.reason for plan in again] == [plan.reason for plan in plans[:50]]
    assert {function.name for function in chosen} == {"__tls_get_addr"}
    assert all(function.aliases[1:] == function.found_names[1] for function in chosen)


def test_known_plans_need_few_functions_of_a_module(functions: list[Function], judged: list[str]) -> None:
    plans = plan_functions(functions[:500])
    judged.clear()
    module = Module.from_file(LIBRARY)
    chosen = [function_at(module, function.offset) for function in functions[:5]]
    found = plan_functions([function for function in chosen if function is not None])
    assert [(plan.strategy, plan.reason, plan.site) for plan in found] == [
        (plan.strategy, plan.reason, plan.site) for plan in plans[:5]
    ]
    assert not judged
    assert "functions" not in module.cache
    assert functions_of(module)[:5] == chosen
