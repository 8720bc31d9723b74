# SPDX-License-Identifier: Apache-2.0
"""The session's shared memory: rings, thread table, probe table. The target may write anything into it."""

__all__ = ["control", "patchtable", "rings", "session", "thread_reaper", "threadcounts", "threadtable"]
