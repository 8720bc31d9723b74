# SPDX-License-Identifier: Apache-2.0
"""arm64: nothing of it is written yet."""
