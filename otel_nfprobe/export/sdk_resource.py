# SPDX-License-Identifier: Apache-2.0
"""SDK resource detector: the attributes that nfprobe gives a target, for spans of another program about that target.

OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=nfprobe, with NFPROBE_TARGET_PID; without it the program itself is described.
"""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource, ResourceDetector

from otel_nfprobe.base.environment_variables import NFPROBE_TARGET_PID
from otel_nfprobe.export.resource import SCHEMA_URL, describe_target


class TargetResourceDetector(ResourceDetector):
    """Process, host, and a service.instance.id that is the same in every session on the process."""

    def detect(self) -> Resource:
        """Returns the resource; empty if there is no such process."""
        text = os.environ.get(NFPROBE_TARGET_PID, "").strip()
        pid = int(text) if text.isascii() and text.isdigit() else os.getpid()
        if not os.path.exists(f"/proc/{pid}"):
            return Resource.get_empty()
        return Resource(describe_target(pid), SCHEMA_URL)
