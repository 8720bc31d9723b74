# SPDX-License-Identifier: Apache-2.0
"""Why a packet was late: what else delayed its batch and earlier ones, compared with the baseline."""

__all__ = [
    "absence_watch",
    "arrival",
    "arrivals",
    "baseline",
    "causes",
    "cpu_watch",
    "drop_causes",
    "drop_tally",
    "firmware",
    "holds",
    "latency_causes",
    "lateness",
    "split",
]
