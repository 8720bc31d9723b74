# SPDX-License-Identifier: Apache-2.0
"""Modules: ELF files, and where a process has loaded them. Reads files only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.elf.elf import ElfImage, read_image

Key = tuple[str, str, int, int]
MUSL_NAMES = ("libc.so", "libc.musl", "ld-musl")
MUSL_SYMBOL = "__dls3"  # a stage of its dynamic linker; only musl has it


@dataclass(eq=False)
class Module:
    """An ELF file in a process, or on disk (then at its own addresses, base 0).

    Attributes:
        path: as the process sees it.
        base: load bias, what is added to the file's own addresses.
        executable_ranges: mapped executable addresses in the process, (start, end).
        device, inode: of the file, as /proc/PID/maps has them.
    """

    path: str
    base: int
    image: ElfImage
    executable_ranges: list[tuple[int, int]]
    device: str = ""
    inode: int = 0
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def name(self) -> str:
        """Returns the file's base name."""
        return os.path.basename(self.path.removesuffix(" (deleted)"))

    @property
    def build_id(self) -> str:
        """Returns the build ID in hex, or ""."""
        return self.image.build_id

    @property
    def low(self) -> int:
        """Returns the lowest mapped address."""
        return self.base + self.image.lowest

    @property
    def high(self) -> int:
        """Returns the address after the last mapped byte."""
        return self.base + max(segment.address + segment.memory_bytes for segment in self.image.segments)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Returns its names on the command line: with and without version, as file and as DT_SONAME."""
        return names_of_file(self.name, self.image.soname)

    @property
    def is_dynamic_linker(self) -> bool:
        """Returns whether it is ld.so and nothing else: musl's is the C library, too (is_musl)."""
        return self.name.startswith(("ld-linux", "ld-2.", "ld.so"))

    @cached_property
    def is_musl(self) -> bool:
        """Returns whether it is musl: C library and dynamic linker in one file."""
        return self.name.startswith(MUSL_NAMES) and self.image.find_export(MUSL_SYMBOL) is not None

    @property
    def is_probe_library(self) -> bool:
        """Returns whether it is nfprobe's own library."""
        return self.name.startswith(("libnfprobe", "memfd:libnfprobe"))

    @classmethod
    def from_file(cls, path: str | Path) -> Module:
        """Returns the module of an ELF file on disk.

        Raises:
            UsageError: it cannot be read, or is not an ELF file.
        """
        try:
            with open(path, "rb") as file:
                image = read_image(file, str(path))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.", "nfprobe functions PID") from error
        return cls(os.path.realpath(path), 0, image, list(image.code_ranges))


def names_of_file(*names: str) -> tuple[str, ...]:
    """Returns file names with and without version."""
    found = []
    for name in names:
        while name and name not in found:
            found.append(name)
            stem, dot, last = name.rpartition(".")
            if not dot or not (last.isdigit() or last == "so" or ".so" in name):
                break
            name = stem
    return tuple(found)


def without_copies(found: Mapping[Key, Module], starts: Set[tuple[str, int]]) -> dict[Key, Module]:
    """Drops entries that are no modules: code of a file that the process itself has mapped a second time.

    V8 does so with its builtins, to keep them close to generated code.

    Args:
        found: modules by path, device, inode and base.
        starts: path and first address of each mapping of the process.
    """
    begun = {key: module for key, module in found.items() if (module.path, module.low) in starts}
    files = {key[:3] for key in begun}
    return {key: module for key, module in found.items() if key in begun or key[:3] not in files}
