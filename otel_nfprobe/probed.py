# SPDX-License-Identifier: Apache-2.0
"""Probed: what each function id means, for reports, recordings and the pipeline. Called by monitor.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from otel_nfprobe.adapters.base import TRANSMIT
from otel_nfprobe.calibration import Cost
from otel_nfprobe.choice import Choice
from otel_nfprobe.counters.compensation import Compensation
from otel_nfprobe.sessionfacts import FunctionInfo
from otel_nfprobe.trampoline import Probe


def name_of(probe: Probe) -> str:
    """The function's name; one that has none is called by its module and offset."""
    plan = probe.request.plan
    return plan.function.label if plan.name_source == "offset" else plan.name


def find_names(probes: Sequence[Probe]) -> list[str]:
    """Name of each function id up to the largest; empty for ids of none of the probes."""
    names = [""] * (max((probe.id for probe in probes), default=-1) + 1)
    for probe in probes:
        names[probe.id] = name_of(probe)
    return names


def find_roles(
    probes: Sequence[Probe], choice: Choice, together: Sequence[Probe]
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Role (enum nfp_role) of each function id of `probes`, 0 for the others; `together` are in place with them."""
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
) -> list[FunctionInfo]:
    """What a recording says of each probe; costs by strategy."""
    unknown = Cost(0.0, 0.0)
    return [
        FunctionInfo(
            probe.id,
            int(roles[probe.id]),
            probe.request.plan.module.path,
            probe.request.plan.offset,
            probe.request.plan.size,
            name_of(probe),
            probe.request.plan.name_source,
            probe.request.plan.strategy or "",
            *costs.get(probe.request.plan.strategy or "", unknown),
            *(compensation.of(probe) or ()),
        )
        for probe in probes
    ]
