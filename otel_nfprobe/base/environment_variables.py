# SPDX-License-Identifier: Apache-2.0
"""Environment variables of nfprobe's own, as OpenTelemetry's packages list theirs. docs/export.md has the others."""

NFPROBE_DEBUG = "NFPROBE_DEBUG"
"""1: an unexpected error shows where it came from."""

NFPROBE_KEY = "NFPROBE_KEY"
"""Key of packet ids, 32 hexadecimal digits; --key wins."""

NFPROBE_PROGRESS = "NFPROBE_PROGRESS"
"""no: `attach` does not show once a second how far it is; the agent sets it, whose log these lines would fill."""

NFPROBE_SPOOL = "NFPROBE_SPOOL"
"""Directory of the spool of the SDK exporter `nfprobe`; without it spans wait in memory only."""

NFPROBE_TARGET_PID = "NFPROBE_TARGET_PID"
"""Process that the SDK's resource detector `nfprobe` describes; without it the program itself."""
