# SPDX-License-Identifier: Apache-2.0
"""Installed adapters, and selection of the one for a target.

Adapters are found by the entry point group `otel_nfprobe_adapters`; the built-in ones need no installation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from otel_nfprobe.adapters.base import KNOWS_PROGRAM, Adapter
from otel_nfprobe.adapters.generic import GenericAdapter
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.target.target import Target

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "otel_nfprobe_adapters"
BUILT_IN = {
    "broker": "otel_nfprobe.adapters.broker:BrokerAdapter",
    "dpdk": "otel_nfprobe.adapters.dpdk:DpdkAdapter",
    "generic": "otel_nfprobe.adapters.generic:GenericAdapter",
    "ovs": "otel_nfprobe.adapters.ovs:OvsAdapter",
    "vpp": "otel_nfprobe.adapters.vpp:VppAdapter",
}
METADATA = ("*.dist-info", "*.egg-info", "EGG-INFO")  # folders of installed packages
GENERIC = "generic"  # used with `--batch-function`


def adapter_names() -> list[str]:
    """Returns the names of the installed adapters."""
    return sorted({**BUILT_IN, **{entry.name: "" for entry in _entry_points()}})


def load_adapter(name: str) -> Adapter:
    """Returns the installed adapter of that name.

    Raises:
        UsageError: there is none.
    """
    for entry in _entry_points():
        if entry.name == name:
            adapter: Adapter = entry.load()()
            return adapter
    if name not in BUILT_IN:
        raise UsageError(
            f"There is no adapter {name!r}; installed are {', '.join(adapter_names())}.",
            "nfprobe attach PID --adapter FILE.yaml",
        )
    module, _, kind = BUILT_IN[name].partition(":")
    built_in: Adapter = getattr(import_module(module), kind)()
    return built_in


def choose_adapter(text: str, target: Target, batch_function: str | None = None) -> Adapter | None:
    """Returns the adapter selected by `--adapter`.

    Args:
        text: auto, none, an adapter's name, or the path of a description (FILE.yaml).
        target: a checked target.
        batch_function: value of `--batch-function`, for the adapter `generic`.

    Returns:
        None for `none`, and for `auto` when no installed adapter recognises the target.

    Raises:
        UsageError: no such adapter or file, or it does not fit the target.
    """
    if batch_function is not None or text == GENERIC:
        return _make_generic(text, batch_function)
    if text == "none":
        return None
    if text == "auto":
        fitting = [adapter for adapter in _installed() if adapter.recognise(target) is not None]
        return max(fitting, key=lambda adapter: getattr(adapter, "knows", KNOWS_PROGRAM), default=None)
    if text.endswith((".yaml", ".yml")):
        from otel_nfprobe.adapters.described import DescribedAdapter  # YAML takes long to load

        adapter: Adapter = DescribedAdapter.from_file(text)
    else:
        adapter = load_adapter(text)
    if adapter.recognise(target) is None:
        raise UsageError(
            f"Adapter {adapter.name} does not know process {target.pid} ({target.name}).",
            f"nfprobe doctor {target.pid}",
        )
    return adapter


def _make_generic(text: str, batch_function: str | None) -> Adapter:
    if text not in (GENERIC, "auto"):
        raise UsageError(
            f"--batch-function is for the adapter {GENERIC}, and --adapter {text} was given.",
            f"nfprobe attach PID --adapter {GENERIC} --batch-function MODULE:NAME",
        )
    if not batch_function:
        raise UsageError(
            f"The adapter {GENERIC} must be told which function's calls begin batches.",
            f"nfprobe attach PID --adapter {GENERIC} --batch-function MODULE:NAME",
        )
    adapter: Adapter = GenericAdapter(batch_function)
    return adapter


def _installed() -> Iterator[Adapter]:
    for name in adapter_names():
        try:
            yield load_adapter(name)
        except (ImportError, AttributeError) as error:
            raise NfprobeError(f"The adapter {name} cannot be loaded: {error}.", "pip list") from error


@cache
def _entry_points() -> list[EntryPoint]:
    if not any(map(_may_name_adapters, sys.path)):
        return []
    from importlib.metadata import entry_points  # slow to load

    return list(entry_points(group=ENTRY_POINT_GROUP))


def _may_name_adapters(folder: str) -> bool:
    """Returns whether a package that is installed there may have adapters: never wrongly False."""
    path = Path(folder or ".")
    if path.is_file():  # an archive
        return True
    found = (file for kind in METADATA for file in path.glob(f"{kind}/entry_points.txt"))
    return any(ENTRY_POINT_GROUP.encode() in file.read_bytes() for file in found)
