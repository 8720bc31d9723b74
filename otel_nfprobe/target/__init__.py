# SPDX-License-Identifier: Apache-2.0
"""A process: its modules, memory and threads, whether it is alive, and what an earlier session left in it."""

__all__ = ["hot_code", "leftover", "library_file", "linkmap", "liveness", "loadedlibrary", "musl", "target", "turns"]
