# SPDX-License-Identifier: Apache-2.0
"""The small symbol table that some distributions leave in a stripped program, packed with xz (.gnu_debugdata).

Reads bytes only.
"""

from __future__ import annotations

import lzma

from otel_nfprobe.elf.names.objectfile import ObjectError, ObjectFile

UNPACKED_BYTES_MAX = 256 << 20
DECODER_BYTES_MAX = 256 << 20


def mini_debug_of(content: bytes) -> ObjectFile | None:
    """The ELF file inside the section of an ELF file, or None when it has no such section.

    Raises:
        ObjectError: the section is malformed.
    """
    whole = ObjectFile.of_bytes(content)
    section = whole.section(".gnu_debugdata")
    if section is None:
        return None
    decoder = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=DECODER_BYTES_MAX)
    try:
        unpacked = decoder.decompress(whole.content(section), UNPACKED_BYTES_MAX)
    except (lzma.LZMAError, EOFError) as error:
        raise ObjectError(f"its .gnu_debugdata cannot be decompressed: {error}") from error
    if not decoder.eof:
        raise ObjectError("its .gnu_debugdata is cut off")
    return ObjectFile.of_bytes(unpacked)
