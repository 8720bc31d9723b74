# SPDX-License-Identifier: Apache-2.0
"""Shared basics: errors and their exit statuses, the columns of records, calls, batches and packets, the clock."""
