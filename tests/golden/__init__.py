# SPDX-License-Identifier: Apache-2.0
"""What nfprobe puts out, byte by byte."""
