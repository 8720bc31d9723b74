# SPDX-License-Identifier: Apache-2.0
"""What nfprobe knows about kinds of network functions. base.py says what an adapter is, docs/adapters.md how
to write one."""

__all__ = ["base", "ethdev", "installed"]
