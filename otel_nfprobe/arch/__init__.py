# SPDX-License-Identifier: Apache-2.0
"""Architecture-specific code: decoding, scanning and relocating code, and the code of snippets.

One folder per processor, with the same file names in each.
"""

__all__ = [
    "snippet",
    "x86_64.arguments",
    "x86_64.body",
    "x86_64.branches",
    "x86_64.calls",
    "x86_64.copied",
    "x86_64.dataflow",
    "x86_64.relocate",
    "x86_64.scan",
    "x86_64.sites",
    "x86_64.tailcalls",
]
