# SPDX-License-Identifier: Apache-2.0
"""Executable files: functions, where they begin and end, their unwind rows and their names.

Parsed in a process of its own (elfworker.py), as files come from targets; kept on disk by build id (cache.py).
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
