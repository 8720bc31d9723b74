# SPDX-License-Identifier: Apache-2.0
"""Export counters: what became of the spans. Every span that was submitted is in exactly one of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace


@dataclass
class ExportCounters:
    """What became of the spans. Taken as a copy, by `Exporter.read_counters`.

    Attributes:
        dropped_spans: by reason.
        spooled_spans: written to the spool, and neither delivered nor dropped yet.
        recovered: the same of spans that earlier sessions left in the spool; None: of this session.
        is_failing: the last attempt did not reach the receiver.
        last_error: why not, or what it refused.
        sentences: what the receiver and the spool have to say to a person, each once.
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
        """Delivered spans of this session and of those before it."""
        return self.exported_spans + (self.recovered.exported_spans if self.recovered else 0)

    @property
    def total_dropped(self) -> dict[str, int]:
        """Their dropped spans by reason."""
        return dict(self.dropped_spans + (self.recovered.dropped_spans if self.recovered else Counter()))

    @property
    def total_spooled(self) -> int:
        """Their spans that wait on disk."""
        return self.spooled_spans + (self.recovered.spooled_spans if self.recovered else 0)

    def copy(self) -> ExportCounters:
        """A copy that does not change any more."""
        return replace(
            self,
            dropped_spans=Counter(self.dropped_spans),
            recovered=self.recovered and self.recovered.copy(),
            sentences=list(self.sentences),
        )
