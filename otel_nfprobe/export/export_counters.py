# SPDX-License-Identifier: Apache-2.0
"""Export counters: what happened to the spans. Every submitted span is in exactly one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass
class ExportCounters:
    """What happened to the spans. `Exporter.read_counters` returns a copy.

    Attributes:
        dropped_spans: by reason.
        spooled_spans: written to the spool, and not yet delivered or dropped.
        recovered: the same counters for spans that earlier sessions left in the spool; None: of this session.
        is_failing: the last attempt did not reach the receiver.
        last_error: the reason, or what was refused.
        sentences: messages about the receiver and the spool for the user, each once.
    """

    exported_spans: int = 0
    exported_requests: int = 0
    exported_bytes: int = 0
    retries: int = 0
    dropped_spans: Counter[str] = field(default_factory=Counter)
    spooled_spans: int = 0
    recovered: ExportCounters | None = None
    is_failing: bool = False
    last_error: str = ""
    sentences: list[str] = field(default_factory=list)

    @property
    def total_exported(self) -> int:
        """Returns delivered spans of this session and earlier ones."""
        return self.exported_spans + (self.recovered.exported_spans if self.recovered else 0)

    @property
    def total_dropped(self) -> dict[str, int]:
        """Returns dropped spans of this session and earlier ones, by reason."""
        return dict(self.dropped_spans + (self.recovered.dropped_spans if self.recovered else Counter()))

    @property
    def total_spooled(self) -> int:
        """Returns spans of this session and earlier ones that wait on disk."""
        return self.spooled_spans + (self.recovered.spooled_spans if self.recovered else 0)

    def copy(self) -> ExportCounters:
        """Returns an independent copy."""
        return replace(
            self,
            dropped_spans=Counter(self.dropped_spans),
            recovered=self.recovered and self.recovered.copy(),
            sentences=list(self.sentences),
        )
