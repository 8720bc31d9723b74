# SPDX-License-Identifier: Apache-2.0
"""Executable files: function ranges, unwind rows and names.

Parsed in a separate process (elfworker.py), because files come from targets; cached on disk by build ID (cache.py).
"""

__all__ = [
    "cache",
    "cursor",
    "ehframe",
    "elf",
    "elftables",
    "filecontent",
    "modules",
    "names.demangle",
    "names.dwarf",
    "names.inlined",
    "pattern",
    "symbols",
]
