# SPDX-License-Identifier: Apache-2.0
"""Probes: function selection, analysis, trampolines, the library in the target, and patching."""
