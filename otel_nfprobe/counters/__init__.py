# SPDX-License-Identifier: Apache-2.0
"""Performance counters: their names, whether they can be had, and what their readings mean."""
