# SPDX-License-Identifier: Apache-2.0
"""The file that several debug files share (dwz): what `.gnu_debugaltlink` names."""

from __future__ import annotations

import os

from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.names.debugfile import DEBUG_FOLDER, FileReader, roots_of
from otel_nfprobe.elf.names.objectfile import ObjectError, ObjectFile


def supplementary_file(module: Module, file: ObjectFile, path: str) -> ObjectFile | None:
    """The shared file of a debug file, or None when it has none.

    Args:
        path: of the debug file.

    Raises:
        ObjectError: it has one, which is not there.
    """
    section = file.section(".gnu_debugaltlink")
    if section is None:
        return None
    name, _, identity = file.content(section).partition(b"\0")
    link, build_id = os.fsdecode(name), identity.hex()
    for candidate in _candidates(module, link, build_id, path):
        try:
            found = ObjectFile(FileReader(candidate).read)
        except (OSError, ObjectError):
            continue
        if found.build_id == build_id:
            return found
    raise ObjectError(f"the file {link} that it shares with others is missing")


def _candidates(module: Module, link: str, build_id: str, path: str) -> list[str]:
    places = [os.path.join(os.path.dirname(path), link)] if not os.path.isabs(link) else []
    for root in roots_of(module):
        if os.path.isabs(link):
            places.append(root + link)
        places.append(f"{root}{DEBUG_FOLDER}/.dwz/{os.path.basename(link)}")
        places.append(f"{root}{DEBUG_FOLDER}/.build-id/{build_id[:2]}/{build_id[2:]}.debug")
    return places
