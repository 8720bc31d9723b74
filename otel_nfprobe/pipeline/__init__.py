# SPDX-License-Identifier: Apache-2.0
"""From records to calls, batches and packets, in the C core, and the statistics about them."""

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
    "queue_drops",
    "repeats",
    "sampling",
    "short_sends",
    "statistics",
    "values",
]
