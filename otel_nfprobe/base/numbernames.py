# SPDX-License-Identifier: Apache-2.0
"""Names for numbers in records: a target's graph nodes, interfaces, drop reasons and threads.

An adapter reads them from the target; a recording keeps them, because the target is gone when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

NODES, REASONS, INTERFACES, THREADS = "nodes", "reasons", "interfaces", "threads"
KINDS = {1: NODES, 2: REASONS, 3: INTERFACES, 4: THREADS}  # as in a recording
NAMES_MAX = 1 << 17  # per kind


@dataclass(frozen=True)
class NumberNames:
    """Names by number.

    Attributes:
        nodes: graph nodes that share a function, by the upper half of their calls' values.
        reasons: why a packet was dropped, by the number in its buffer.
        interfaces: by the number in a packet's buffer.
        threads: the target's own number of a thread, in digits, by thread ID.
    """

    nodes: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    interfaces: dict[int, str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)

    def thread_number(self, tid: int) -> int | None:
        """Returns the target's own number of the thread; None: it has none, or it is unknown."""
        text = self.threads.get(tid, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None

    def __bool__(self) -> bool:
        """Returns whether any name is known."""
        return bool(self.nodes or self.reasons or self.interfaces or self.threads)

    def learn(self, others: Iterable[NumberNames]) -> None:
        """Adds names found later; the last name of a number wins."""
        for other in others:
            for kind in KINDS.values():
                own = getattr(self, kind)
                if len(own) <= NAMES_MAX:
                    own.update(getattr(other, kind))


def encode_names(names: NumberNames) -> bytes:
    """Returns the payload of a NAMES block."""
    from otel_nfprobe.base import recording_pb2  # an attach needs the names only

    items = [
        recording_pb2.Name(kind=number, number=key, text=text)
        for number, kind in KINDS.items()
        for key, text in getattr(names, kind).items()
    ]
    return bytes(recording_pb2.Names(name=items).SerializeToString())


def decode_names(payload: bytes) -> NumberNames:
    """Decodes the payload of a NAMES block; kinds of a later nfprobe are skipped. Raises DecodeError when it is
    malformed.
    """
    from otel_nfprobe.base import recording_pb2

    names, items = NumberNames(), recording_pb2.Names.FromString(payload).name
    for item in _bounded(items):
        if item.kind in KINDS:
            getattr(names, KINDS[item.kind])[item.number] = item.text
    return names


def _bounded(items: Any) -> Any:
    return items[: NAMES_MAX * len(KINDS)]
