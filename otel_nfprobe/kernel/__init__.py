# SPDX-License-Identifier: Apache-2.0
"""Functions of the kernel: found in its type information, timed by small BPF programs at their entry and exit."""

__all__ = ["kernelprobe"]
