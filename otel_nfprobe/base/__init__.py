# SPDX-License-Identifier: Apache-2.0
"""Words that everybody uses: errors and their exit statuses, the columns of records, calls, batches and packets, the
clock.
"""
