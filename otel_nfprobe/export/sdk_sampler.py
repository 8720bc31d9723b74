# SPDX-License-Identifier: Apache-2.0
"""SDK sampler: the fair sample of --sample for any program: the same traces, and `ot=th` in the trace state.

OTEL_TRACES_SAMPLER=nfprobe, OTEL_TRACES_SAMPLER_ARG=0.001. The decision depends on the trace ID alone, so a program and
all monitors on its packets' path keep the same traces (--correlate).
"""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanKind, TraceState, get_current_span
from opentelemetry.util.types import Attributes

from otel_nfprobe.pipeline.sampling import find_threshold, format_trace_state

_RANDOM_BITS = (1 << 56) - 1
_KEY = "ot"


class ConsistentSampler(Sampler):
    """Keeps a trace if the randomness of its ID is not below the probability's threshold.

    Args:
        probability: 0 to 1, as a number or text.
    """

    def __init__(self, probability: float | str | None = 1.0) -> None:
        self.probability = float(1.0 if probability in (None, "") else probability)
        if not 0 <= self.probability <= 1:
            raise ValueError(f"{probability} is not a probability from 0 to 1")
        self._threshold = find_threshold(self.probability) if self.probability > 0 else 1 << 56
        self._state = format_trace_state(self.probability).removeprefix(f"{_KEY}=")

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """Decides on one span."""
        parent = get_current_span(parent_context).get_span_context().trace_state
        state = parent if trace_state is None else trace_state
        if trace_id & _RANDOM_BITS < self._threshold:
            return SamplingResult(Decision.DROP, trace_state=state)
        if self._state:
            state = state.update(_KEY, self._state) if _KEY in state else state.add(_KEY, self._state)
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes, state)

    def get_description(self) -> str:
        """For people."""
        return f"ConsistentSampler{{{self.probability}}}"
