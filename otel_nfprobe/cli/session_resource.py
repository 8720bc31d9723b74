# SPDX-License-Identifier: Apache-2.0
"""The resource attributes of a session's target."""

from __future__ import annotations

import argparse
import os
from typing import Any

from otel_nfprobe.adapters.base import VersionedAdapter
from otel_nfprobe.export.configuration import find_configuration
from otel_nfprobe.export.resource import describe_target, make_resource_attributes
from otel_nfprobe.monitor.monitor import Monitor


def find_resource(arguments: argparse.Namespace, monitor: Monitor) -> dict[str, Any]:
    """Returns attributes of the process, its host and service, and of its version if the adapter knows one."""
    configuration = find_configuration(os.environ)
    configured = configuration.resource if configuration else None
    target, adapter = monitor.attachment.target, monitor.attachment.choice.adapter
    found = describe_target(target.pid)
    if isinstance(adapter, VersionedAdapter) and (version := adapter.version(target)):
        found["service.version"] = version
    return make_resource_attributes(found, arguments.service, configured)
