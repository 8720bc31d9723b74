# SPDX-License-Identifier: Apache-2.0
"""A process that reads ELF files, with accidents, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from otel_nfprobe.elf.elfparser import ElfParser
from tests.support.accidents import faulty


@pytest.fixture(scope="session")
def faulty_parser() -> Iterator[ElfParser]:
    """Has the accident that a file names: to load lief takes a second, and this does it once."""
    parser = ElfParser(faulty("named-by-file"))
    yield parser
    parser.end()
