# SPDX-License-Identifier: Apache-2.0
"""The long-running agent: sessions on all processes that match rules, one `nfprobe attach` each."""

__all__ = ["agent", "page", "rules"]
