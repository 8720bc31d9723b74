# SPDX-License-Identifier: Apache-2.0
"""How long the fuzz tests run: a few fixed seeds every day, or as many as fit into NFPROBE_FUZZ_SECONDS.

NFPROBE_FUZZ_SEED is where a longer run begins, so that each can look at something new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

SECONDS = float(os.environ.get("NFPROBE_FUZZ_SECONDS", "0"))
FIRST = int(os.environ.get("NFPROBE_FUZZ_SEED", "0"))


def seeds(everyday: int) -> Iterator[int]:
    """Seeds of one test: so many, or until the time is over."""
    yield from range(everyday)
    started, seed = time.monotonic(), max(FIRST, everyday)
    while time.monotonic() - started < SECONDS:
        yield seed
        seed += 1
