# SPDX-License-Identifier: Apache-2.0
"""Reports of recordings and of chains: text, JSON and HTML views, differences, flame graphs, timelines."""

__all__ = [
    "diff",
    "flame",
    "opened",
    "perfetto",
    "report",
    "views.diff_table",
    "views.distribution",
    "views.live_table",
    "views.page",
    "views.table",
    "views.why_table",
    "why",
]
