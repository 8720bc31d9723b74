# SPDX-License-Identifier: Apache-2.0
"""Adapters of other packages are found wherever Python finds packages; without any nothing is loaded for them."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_nfprobe.adapters import installed
from otel_nfprobe.adapters.installed import adapter_names, load_adapter
from otel_nfprobe.base.errors import UsageError

MODULE = "class Own:\n    name = 'own'\n"
ENTRY_POINTS = "[otel_nfprobe_adapters]\nown = own_adapters:Own\n"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    installed._entry_points.cache_clear()
    yield
    installed._entry_points.cache_clear()
    sys.modules.pop("own_adapters", None)


@pytest.mark.parametrize("kind", ["dist-info", "egg-info", "zip"])
def test_an_adapter_of_another_package(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "own_adapters.py": MODULE,
        f"own-1.{'egg' if kind == 'egg-info' else 'dist'}-info/entry_points.txt": ENTRY_POINTS,
        f"own-1.{'egg-info/PKG-INFO' if kind == 'egg-info' else 'dist-info/METADATA'}": "Name: own\nVersion: 1\n",
    }
    place = tmp_path / "packages"
    if kind == "zip":
        with zipfile.ZipFile(place, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
    else:
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    monkeypatch.syspath_prepend(str(place))
    assert "own" in adapter_names()
    assert load_adapter("own").name == "own"


def test_without_any_only_the_built_in_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "missing"), ""])
    assert adapter_names() == sorted(installed.BUILT_IN)
    with pytest.raises(UsageError, match="no adapter 'own'"):
        load_adapter("own")
