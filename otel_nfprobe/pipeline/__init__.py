# SPDX-License-Identifier: Apache-2.0
"""From records to calls, batches and packets: the way of the data after the ring, in the C core, with what is counted
on it.
"""

__all__ = [
    "absences",
    "capturefile",
    "dropreasons",
    "durations",
    "flow",
    "flowfilter",
    "histogram_buckets",
    "identity",
    "pipeline",
    "repeats",
    "sampling",
    "statistics",
    "values",
]
