# SPDX-License-Identifier: Apache-2.0
"""Probe table: what each function ID means, for reports, recordings and the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from otel_nfprobe.adapters.base import TRANSMIT
from otel_nfprobe.counters.compensation import Compensation
from otel_nfprobe.probes.calibration import Cost
from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.probes.trampoline import Probe
from otel_nfprobe.recording.sessionfacts import FunctionInfo


def name_of(probe: Probe) -> str:
    """Returns the function's name, or its module and offset if it has none."""
    plan = probe.request.plan
    return plan.function.label if plan.name_source == "offset" else plan.name


def find_names(probes: Sequence[Probe]) -> list[str]:
    """Returns the name of each function ID up to the largest; empty for IDs without a probe."""
    names = [""] * (max((probe.id for probe in probes), default=-1) + 1)
    for probe in probes:
        names[probe.id] = name_of(probe)
    return names


def find_roles(
    probes: Sequence[Probe], choice: Choice, together: Sequence[Probe]
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Returns the role (enum nfp_role) of each function ID of `probes`, 0 for the others; `together` are armed with
    them.
    """
    roles = np.zeros(max((probe.id for probe in probes), default=-1) + 1, dtype=np.uint8)
    probed = {probe.request.plan.address for probe in together}
    sees_all_sent = all(role.address in probed for role in choice.roles if role.role == TRANSMIT)
    for probe in probes:
        role = choice.role_of(probe.request.plan)
        if role is not None:
            roles[probe.id] = role.pipeline_role if sees_all_sent else role.role
    return roles


def describe_functions(
    probes: Sequence[Probe],
    roles: np.ndarray[tuple[int], np.dtype[np.uint8]],
    costs: Mapping[str, Cost],
    compensation: Compensation,
    choice: Choice,
) -> list[FunctionInfo]:
    """Describes each probe for a recording; costs by strategy."""
    found = []
    for probe in probes:
        plan, counts = probe.request.plan, compensation.of(probe)
        said = choice.role_of(plan)
        cost = costs.get(plan.strategy or "", Cost(0.0, 0.0))
        info = FunctionInfo(
            id=probe.id,
            role=int(roles[probe.id]),
            module=plan.module.path,
            offset=plan.offset,
            size=plan.size,
            name=name_of(probe),
            name_source=plan.name_source,
            strategy=plan.strategy or "",
            probe_inside_ticks=cost.inside_ticks,
            probe_whole_ticks=cost.whole_ticks,
            probe_inside_counts=counts.inside if counts else (),
            probe_whole_counts=counts.whole if counts else (),
            unit=said.unit if said else "",
        )
        found.append(info)
    return found
