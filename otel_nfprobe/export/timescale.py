# SPDX-License-Identifier: Apache-2.0
"""Time scale: whether traces are also written stretched around their start. A display aid.

Jaeger's UI truncates times to whole microseconds; stretched a thousand times, a ns is drawn as a us. The copies have
their own trace IDs and service, and `nf.time_scale` on every span (native/core/otlp_id.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

SERVICE_NAME = "service.name"
FACTOR_MAX = 1_000_000
_UNITS = {1000: "ns as us", 1_000_000: "ns as ms"}


@dataclass(frozen=True)
class TimeScale:
    """Which copies of each trace are written.

    Attributes:
        factor: of the copies; 1: no copies.
        is_only: only the copies are written, not the original traces.
    """

    factor: int = 1
    is_only: bool = False

    @property
    def passes(self) -> tuple[int, ...]:
        """Returns the factors with which each trace is written."""
        if self.factor == 1:
            return (1,)
        return (self.factor,) if self.is_only else (1, self.factor)

    def rename(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Returns the resource of the copies: the same, with another service.name."""
        name = attributes.get(SERVICE_NAME, "unknown_service")
        return {**attributes, SERVICE_NAME: f"{name} ({_UNITS.get(self.factor, f'time x {self.factor}')})"}


TRUE_TIMES = TimeScale()
