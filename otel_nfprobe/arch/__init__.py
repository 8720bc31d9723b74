# SPDX-License-Identifier: Apache-2.0
"""Architecture-specific code: decoding, scanning and relocating code, and the code of snippets.

One folder per processor, with the same file names in each.
"""
