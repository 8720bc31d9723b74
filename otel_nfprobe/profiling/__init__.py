# SPDX-License-Identifier: Apache-2.0
"""Where threads spend their time: samples of the kernel's profiler, joined to functions and call paths."""

__all__ = ["address_map", "profiler", "samples"]
