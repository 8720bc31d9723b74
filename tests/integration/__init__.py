# SPDX-License-Identifier: Apache-2.0
"""Sessions on real targets."""
