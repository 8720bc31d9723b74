# SPDX-License-Identifier: Apache-2.0
"""What nfprobe knows about kinds of network functions. base.py says what an adapter is, docs/adapters.md how
to write one."""

from otel_nfprobe.adapters.base import Adapter, RoleFunction
from otel_nfprobe.adapters.installed import choose_adapter

__all__ = ["Adapter", "RoleFunction", "choose_adapter"]
