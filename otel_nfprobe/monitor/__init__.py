# SPDX-License-Identifier: Apache-2.0
"""A session from attach to detach: inject probes, drain rings, follow children, remove probes, summarize."""

__all__ = [
    "attachment",
    "budget",
    "detail",
    "drain",
    "forks",
    "latecapture",
    "live",
    "malloc_tuning",
    "monitor",
    "snapshot",
    "summary",
    "trial",
]
