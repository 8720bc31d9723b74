# SPDX-License-Identifier: Apache-2.0
"""What depends on the processor: decoding, scanning and moving code, and the code of snippets.

One folder per processor, with the same file names in each.
"""
