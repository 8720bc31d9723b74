# SPDX-License-Identifier: Apache-2.0
"""The option --flow, which attach, run, export, report and tables share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_nfprobe.pipeline.flowfilter import FlowFilter


def add_flow_option(group: argparse._ActionsContainer, does: str) -> None:
    """Declares the option. `does` says what becomes of the packets that are meant."""
    group.add_argument(
        "--flow",
        metavar="EXPRESSION",
        help=f"{does} packets of these flows only, in the language of pcap-filter(7), such as"
        " 'dst port 443 and net 10.0.0.0/8'",
    )


def find_flow(arguments: argparse.Namespace) -> FlowFilter | None:
    """The filter that the option asks for.

    Raises:
        UsageError: libpcap does not take it, or is not there.
    """
    if arguments.flow is None:
        return None
    from otel_nfprobe.pipeline.flowfilter import FlowFilter  # libpcap is spoken to only where it is needed

    return FlowFilter(arguments.flow)
