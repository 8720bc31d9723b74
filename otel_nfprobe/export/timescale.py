# SPDX-License-Identifier: Apache-2.0
"""Time scale: whether traces are written a second time, stretched around their start. A display aid.

Jaeger's pages cut times to whole microseconds; stretched a thousand times, a ns is drawn as a us. The copies have
trace ids of their own, stand in a service of their own, and say `nf.time_scale` on every span
(native/core/otlp_id.h).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.util.types import AttributeValue

SERVICE_NAME = "service.name"
FACTOR_MAX = 1_000_000
_UNITS = {1000: "ns as us", 1_000_000: "ns as ms"}


@dataclass(frozen=True)
class TimeScale:
    """How often, and how much longer, each trace is written.

    Attributes:
        factor: of the copies; 1: there are none.
        is_only: the copies are written, and the true traces are not.
    """

    factor: int = 1
    is_only: bool = False

    @property
    def passes(self) -> tuple[int, ...]:
        """The factors with which each trace is written."""
        if self.factor == 1:
            return (1,)
        return (self.factor,) if self.is_only else (1, self.factor)

    def rename(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """The resource of the copies: the same, under another service.name."""
        name = attributes.get(SERVICE_NAME, "unknown_service")
        return {**attributes, SERVICE_NAME: f"{name} ({_UNITS.get(self.factor, f'time x {self.factor}')})"}


TRUE_TIMES = TimeScale()
