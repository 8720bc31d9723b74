# SPDX-License-Identifier: Apache-2.0
"""Sessions with the Collector and Jaeger."""
