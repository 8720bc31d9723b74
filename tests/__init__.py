# SPDX-License-Identifier: Apache-2.0
"""Tests: of each package (unit), of what is put out (golden), with real targets (integration) and receivers (stack)."""
