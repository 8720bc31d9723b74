# SPDX-License-Identifier: Apache-2.0
"""nfprobe's own environment variables. docs/export.md lists the others."""

NFPROBE_DEBUG = "NFPROBE_DEBUG"
"""1: show the traceback of an unexpected error."""

NFPROBE_KEY = "NFPROBE_KEY"
"""Key of packet IDs, 32 hexadecimal digits; --key takes precedence."""

NFPROBE_LOG = "NFPROBE_LOG"
"""`json`: each message on standard error is a JSON object; `warning` or `error`: no less important ones. Both with a
comma."""

NFPROBE_PROGRESS = "NFPROBE_PROGRESS"
"""no: `attach` prints no progress line once a second; set by the agent, whose log these lines would fill."""

NFPROBE_SPOOL = "NFPROBE_SPOOL"
"""Spool directory of the SDK exporter `nfprobe`; without it spans are only buffered in memory."""

NFPROBE_TARGET_PID = "NFPROBE_TARGET_PID"
"""Process described by the SDK's resource detector `nfprobe`; default: the program itself."""
