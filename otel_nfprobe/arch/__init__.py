# SPDX-License-Identifier: Apache-2.0
"""Code of functions: decoding, scanning and relocating it, and the code of snippets.

architecture.py says what a processor must provide; each has a folder. The rest is the same for all.
"""

__all__ = ["architecture", "branches", "code_facts", "snippet", "tailcalls"]
