# SPDX-License-Identifier: Apache-2.0
"""A process: its modules, memory and threads, whether it is alive, and what an earlier session left in it."""
