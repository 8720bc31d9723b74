# SPDX-License-Identifier: Apache-2.0
"""Mapped file: how the kernel identifies a file in lists of mappings (/proc/PID/maps). Reads only.

On btrfs, and on overlayfs of older kernels, the lists have other numbers than fstat, so fstat cannot tell whether a
process has mapped a given file. A mapping of the monitor's own is listed in the same way as that of any other process.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

from otel_nfprobe._core import ffi


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """A file that can be identified in any process's list.

    Attributes:
        device: as written in the list.
        inode: of the file; not reused while this object lives.
    """

    device: str
    inode: int
    _mapping: mmap.mmap

    @classmethod
    def of(cls, descriptor: int) -> MappedFile:
        """Creates one for the file open at this descriptor.

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
        """Returns whether a mapping with these numbers maps this file."""
        return (device, inode) == (self.device, self.inode)
