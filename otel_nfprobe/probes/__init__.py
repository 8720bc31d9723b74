# SPDX-License-Identifier: Apache-2.0
"""Probes: function selection, analysis, trampolines, the library in the target, and patching."""

__all__ = [
    "analysis",
    "arena",
    "calibration",
    "capture_programs",
    "codemap",
    "evidence",
    "follow",
    "inherited",
    "inject",
    "launch",
    "patch",
    "preflight",
    "probe_selection",
    "signatures",
    "slots",
    "template",
    "trampoline",
    "unwinders",
]
