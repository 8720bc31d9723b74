# SPDX-License-Identifier: Apache-2.0
"""The interpreter's garbage collector, kept away from tables that live as long as the session.

The analysis of 20,000 functions makes millions of objects and hardly any garbage. Collections that walk them all
again and again take a third of its time, and later, while records arrive, one full collection holds the interpreter
longer than a ring has room.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No collection meanwhile; also a decorator."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():
            # What was made grows old without a walk: the next collection would take it for young, all of it.
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def keep_what_is_there() -> None:
    """Collections look only at what is made from now on: for a process that measures once, and then ends."""
    gc.freeze()
