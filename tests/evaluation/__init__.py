# SPDX-License-Identifier: Apache-2.0
"""nfprobe beside what else measures functions: `make evaluate` runs it and writes docs/evaluation.md."""
