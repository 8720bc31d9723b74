# SPDX-License-Identifier: Apache-2.0
"""Code integrity: digests of each module's code before it is changed, to verify the restored code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.target.target import Target


class Texts:
    """The code of the modules of one target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._before: dict[int, tuple[Module, dict[str, str]]] = {}

    def keep(self, module: Module) -> None:
        """Stores the digest of a module's code; may be called repeatedly.

        Raises:
            NfprobeError: it is no longer mapped.
        """
        if id(module) not in self._before:
            # Reading the memory map again replaces the ranges of a module; those that are compared must stay.
            same = replace(module, executable_ranges=list(module.executable_ranges))
            self._before[id(module)] = (same, text_digests(self._target, [same]))

    def adopt(self, parent: Texts) -> None:
        """Takes over the digests of the process that this one was forked from: code here may already be changed."""
        self._before.update(parent._before)

    def differing(self, modules: Iterable[Module]) -> list[str]:
        """Returns places, as path@address, where the code of these modules differs from the original.

        Raises:
            NfprobeError: a module is no longer mapped.
        """
        found = []
        for module in modules:
            if id(module) in self._before:
                same, before = self._before[id(module)]
                after = text_digests(self._target, [same])
                found += [place for place in before if after.get(place) != before[place]]
        return found
