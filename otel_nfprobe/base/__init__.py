# SPDX-License-Identifier: Apache-2.0
"""Shared basics: errors and their exit statuses, the columns of records, calls, batches and packets, the clock."""

__all__ = [
    "clock",
    "columns",
    "distinct",
    "environment_variables",
    "errors",
    "gc_tuning",
    "holdrows",
    "lateregex",
    "layouts",
    "numbernames",
    "printable",
    "processors",
    "recording_pb2",
    "strategies",
    "timedreader",
]
