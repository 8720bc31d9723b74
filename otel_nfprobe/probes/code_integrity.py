# SPDX-License-Identifier: Apache-2.0
"""Texts: digests of each module's code before it is changed, to prove afterwards that it is as it was."""

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
        """Remembers a module's code; again and again does no harm.

        Raises:
            NfprobeError: it is not mapped any more.
        """
        if id(module) not in self._before:
            # A look at the memory map renews the ranges of a module: those that are compared must stay.
            same = replace(module, executable_ranges=list(module.executable_ranges))
            self._before[id(module)] = (same, text_digests(self._target, [same]))

    def adopt(self, parent: Texts) -> None:
        """Takes over what is known of the process that this one was forked from: code here may be changed already."""
        self._before.update(parent._before)

    def differing(self, modules: Iterable[Module]) -> list[str]:
        """Places, as path@address, where the code of these modules is not what it was.

        Raises:
            NfprobeError: a module is not mapped any more.
        """
        found = []
        for module in modules:
            if id(module) in self._before:
                same, before = self._before[id(module)]
                after = text_digests(self._target, [same])
                found += [place for place in before if after.get(place) != before[place]]
        return found
