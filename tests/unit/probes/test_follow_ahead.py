# SPDX-License-Identifier: Apache-2.0
"""Functions that an adapter expects to run later are analysed ahead, a module at a time, while somebody wants them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import functions_of
from otel_nfprobe.probes import follow
from otel_nfprobe.probes.follow import analyse_ahead

FILES = [next(Path("/lib").glob(pattern)) for pattern in ("*/libm.so.6", "*/libc.so.6")]


class Adapter:
    """Foresees some functions, and an address at which none begins."""

    name, inner = "", []  # type: ignore[var-annotated]

    def __init__(self, addresses: list[int]) -> None:
        self._addresses = addresses

    def possible_functions(self) -> list[int]:
        return self._addresses

    recognise = roles = later_roles = notes = lambda *_: None


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []

    def judge(functions: Any, target: Any, strategy: Any) -> None:
        found = [function.module.name for function in functions]
        names.append(f"{found[0]} {len(found)}" if found else "")
        if len(found) == 3:
            raise NfprobeError("It is malformed.")

    monkeypatch.setattr(follow, "plan_functions", judge)
    return names


def target_and_addresses() -> tuple[Any, list[int]]:
    modules = [Module.from_file(file) for file in FILES]
    modules[1].base = 1 << 40
    for module in modules:
        module.executable_ranges = [(module.low, module.high)]
    math, other = (functions_of(module) for module in modules)
    addresses = [item.address for item in (*math[100:103], *other[200:205])]
    return SimpleNamespace(modules=lambda: modules), [*addresses, other[300].address + 1, 1 << 46]


def test_module_by_module_and_on_after_one_that_is_malformed(judged: list[str]) -> None:
    target, addresses = target_and_addresses()
    choice = cast(Any, SimpleNamespace(adapter=Adapter(addresses), request=SimpleNamespace(strategy=None)))
    steps = analyse_ahead(choice, target, lambda: True)
    next(steps)
    assert judged == ["libc.so.6 5"]
    assert list(steps) == [None]
    assert judged == ["libc.so.6 5", "libm.so.6 3"]


def test_nothing_more_when_the_session_ends(judged: list[str]) -> None:
    target, addresses = target_and_addresses()
    choice = cast(Any, SimpleNamespace(adapter=Adapter(addresses), request=SimpleNamespace(strategy=None)))
    asked = iter([True, True, False, False])
    assert list(analyse_ahead(choice, target, lambda: next(asked))) == [None, None]
    assert judged == ["libc.so.6 2", ""]


def test_an_adapter_that_expects_nothing(judged: list[str]) -> None:
    assert list(analyse_ahead(cast(Any, SimpleNamespace(adapter=None)), cast(Any, None), lambda: True)) == []
    assert not judged
