# SPDX-License-Identifier: Apache-2.0
"""Kernel interfaces: perf rings, namespaces, steal time, symbols, and validated memory and files of other processes."""

__all__ = [
    "bpf",
    "closing",
    "descriptors",
    "kallsyms",
    "kernelplaces",
    "mappedfile",
    "memory",
    "namespaces",
    "perfring",
    "queue_counters",
    "rawclock",
    "steal_time",
    "tracepoints",
]
