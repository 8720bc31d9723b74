# SPDX-License-Identifier: Apache-2.0
"""Chains of network functions: recordings joined by packet, and what made packets late, wherever it was."""

__all__ = ["blame", "clocks", "follow", "hops", "join", "ways"]
