# SPDX-License-Identifier: Apache-2.0
"""Programs that measure; `make bench` runs them."""
