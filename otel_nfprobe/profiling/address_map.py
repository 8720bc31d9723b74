# SPDX-License-Identifier: Apache-2.0
"""Address map: which function contains each sampled address of a target.

Modules are read while the target lives, functions only after the session: that takes a while for large files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at
from otel_nfprobe.linux.kallsyms import read_symbols
from otel_nfprobe.probes.codemap import CodePart
from otel_nfprobe.profiling.samples import KERNEL, AddressRange, SampleFlag
from otel_nfprobe.target.target import Mapping, Target

ADDRESSES_MAX = 1 << 17  # different ones; further ones have no name
OURS = "[nfprobe]"
WITHOUT_NAME = "[anonymous]"

Addresses = NDArray[np.uint64]


class PlaceFinder:
    """The sampled addresses of one session.

    Args:
        target: the sampled process.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._modules: dict[int, Module] = {}  # by the start of an executable range
        self._mappings: dict[int, Mapping] = {}
        self._user = self._kernel = np.empty(0, np.uint64)

    def look(self) -> list[AddressRange]:
        """Reads the current mappings. Returns the new modules, without their functions."""
        found: list[AddressRange] = []
        with suppress(NfprobeError):
            for module in self._target.modules():
                for start, end in module.executable_ranges:
                    if start not in self._modules:
                        found.append(AddressRange(start, end - start, module.path, start - module.base, ""))
                    self._modules[start] = module
            self._mappings.update({item.start: item for item in self._target.maps() if item.is_executable})
        return found

    def add(self, samples: Rows) -> None:
        """Records the addresses of samples."""
        in_kernel = (samples["flags"] & SampleFlag.IN_KERNEL) != 0
        self._user = _merge(self._user, samples["address"][~in_kernel])
        self._kernel = _merge(self._kernel, samples["address"][in_kernel])

    def find(self, parts: Iterable[CodePart]) -> list[AddressRange]:
        """Returns the functions that contain these addresses.

        Args:
            parts: nfprobe's code in the target.
        """
        own = sorted(parts, key=lambda part: part.address)
        starts = [part.address for part in own]
        found: list[AddressRange] = []
        for address in self._user.tolist():
            if found and found[-1].start <= address < found[-1].start + found[-1].size:
                continue
            index = bisect_right(starts, address) - 1
            if index >= 0 and address < own[index].address + own[index].size_bytes:
                part = own[index]
                found.append(AddressRange(part.address, part.size_bytes, OURS, 0, part.symbol))
            else:
                found += self._find_one(address)
        return found + _find_in_kernel(self._kernel)

    def _find_one(self, address: int) -> Sequence[AddressRange]:
        start = max((start for start in self._mappings if start <= address), default=0)
        mapping = self._mappings.get(start)
        if mapping is None or address >= mapping.end:
            return []
        module = self._modules.get(start)
        if module is None:
            path = mapping.path
            name = OURS if "nfprobe" in path else path if path.startswith("[") else WITHOUT_NAME
            return [AddressRange(mapping.start, mapping.end - mapping.start, name, 0, "")]
        with suppress(NfprobeError):
            function = function_at(module, address - module.base)
            if function is not None and function.name_source != "offset":
                return [AddressRange(function.address, function.size, module.path, function.offset, function.name)]
            if function is not None:
                return [AddressRange(function.address, function.size, module.path, function.offset, function.label)]
        return []


def _merge(known: Addresses, more: Addresses) -> Addresses:
    found: Addresses = np.union1d(known, more)
    return found if len(found) <= ADDRESSES_MAX else known


def _find_in_kernel(addresses: Addresses) -> list[AddressRange]:
    if not len(addresses):
        return []
    symbols = sorted({symbol.address: symbol for symbol in read_symbols() if symbol.address}.items())
    starts = np.array([address for address, _ in symbols], np.uint64)
    wanted = set(np.searchsorted(starts, addresses, side="right").tolist())
    return [
        AddressRange(start, end - start, KERNEL, 0, symbol.name)
        for index, ((start, symbol), (end, _)) in enumerate(pairwise(symbols), 1)
        if index in wanted
    ]
