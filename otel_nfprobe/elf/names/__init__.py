# SPDX-License-Identifier: Apache-2.0
"""Names, arguments and inlined calls of functions: one file per source; sources.py has their order."""
