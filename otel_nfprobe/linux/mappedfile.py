# SPDX-License-Identifier: Apache-2.0
"""Mapped file: how the kernel names a file in lists of mappings (/proc/PID/maps). Reads only.

On btrfs, and on overlayfs of older kernels, a list has other numbers than fstat gives, so fstat cannot say whether a
process has mapped a certain file. A mapping of the monitor's own is listed in the same way as any other process's.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from otel_nfprobe._core import ffi


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """A file that can be found again in any process's list.

    Attributes:
        device: as the list writes it.
        inode: of the file; no other file gets its number while this object lives.
    """

    device: str
    inode: int
    _mapping: mmap.mmap

    @classmethod
    def of(cls, descriptor: int) -> MappedFile:
        """The file that is open there.

        Raises:
            OSError, ValueError: it is empty, or cannot be mapped.
        """
        mapping = mmap.mmap(descriptor, mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
        first = f"{int(ffi.cast('uintptr_t', ffi.from_buffer(mapping))):x}-".encode()
        with open("/proc/self/maps", "rb") as file:
            fields = next((line.split() for line in file if line.lstrip(b"0").startswith(first)), None)
        if fields is None:
            raise OSError("its mapping is not listed")
        return cls(fields[3].decode(), int(fields[4]), mapping)

    def names(self, device: str, inode: int) -> bool:
        """Whether a mapping with these numbers is one of this file."""
        return (device, inode) == (self.device, self.inode)
