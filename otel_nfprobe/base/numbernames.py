# SPDX-License-Identifier: Apache-2.0
"""Names of numbers that stand in records: what a target calls its graph nodes, its interfaces and why it drops packets.

An adapter reads them in the target; a recording keeps them, because the target is gone when it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from otel_nfprobe.base import recording_pb2

NODES, REASONS, INTERFACES, THREADS = "nodes", "reasons", "interfaces", "threads"
KINDS = {1: NODES, 2: REASONS, 3: INTERFACES, 4: THREADS}  # as in a recording
NAMES_MAX = 1 << 17  # of one kind


@dataclass(frozen=True)
class NumberNames:
    """What numbers are called.

    Attributes:
        nodes: of graph nodes that share a function, as their calls' values have it in the upper half.
        reasons: why a packet was dropped, by the number in its buffer.
        interfaces: by the number in a packet's buffer.
        threads: the target's own number of a thread, in digits, by the kernel's.
    """

    nodes: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    interfaces: dict[int, str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)

    def thread_number(self, tid: int) -> int | None:
        """The target's own number of the thread; None: it has none, or it is not known."""
        text = self.threads.get(tid, "")
        return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None

    def __bool__(self) -> bool:
        """Whether any is known."""
        return bool(self.nodes or self.reasons or self.interfaces or self.threads)

    def learn(self, others: Iterable[NumberNames]) -> None:
        """Takes names that were found later; the last one of a number holds."""
        for other in others:
            for kind in KINDS.values():
                own = getattr(self, kind)
                if len(own) <= NAMES_MAX:
                    own.update(getattr(other, kind))


def encode_names(names: NumberNames) -> bytes:
    """The payload of a NAMES block."""
    items = [
        recording_pb2.Name(kind=number, number=key, text=text)
        for number, kind in KINDS.items()
        for key, text in getattr(names, kind).items()
    ]
    return bytes(recording_pb2.Names(name=items).SerializeToString())


def decode_names(payload: bytes) -> NumberNames:
    """What encode_names made; kinds that a later nfprobe wrote are left out. Raises DecodeError when it is none."""
    names, items = NumberNames(), recording_pb2.Names.FromString(payload).name
    for item in _bounded(items):
        if item.kind in KINDS:
            getattr(names, KINDS[item.kind])[item.number] = item.text
    return names


def _bounded(items: Any) -> Any:
    return items[: NAMES_MAX * len(KINDS)]
