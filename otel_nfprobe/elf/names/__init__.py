# SPDX-License-Identifier: Apache-2.0
"""Names, arguments and inlined calls of functions: one file for each source; sources.py has their order."""
