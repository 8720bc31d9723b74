# SPDX-License-Identifier: Apache-2.0
"""What people look at: the report of a recording, its views as text, JSON and a page, differences, flame graphs."""

__all__ = ["diff", "flame", "report", "views.diff_table", "views.distribution", "views.page", "views.table"]
