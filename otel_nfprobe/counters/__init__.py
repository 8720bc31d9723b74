# SPDX-License-Identifier: Apache-2.0
"""Performance counters: their names, availability, and the meaning of their readings."""

__all__ = ["availability", "choice", "compensation", "namelist", "perf", "sets", "software", "sums", "threads"]
