# SPDX-License-Identifier: Apache-2.0
"""Probes: which functions get one, where and how, trampolines and the library in the target, and what is patched."""
