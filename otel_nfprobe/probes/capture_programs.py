# SPDX-License-Identifier: Apache-2.0
"""Capture programs: what receive, transmit and drop probes read, written into the session's memory."""

from __future__ import annotations

from otel_nfprobe.adapters.base import NumberingAdapter
from otel_nfprobe.pipeline.identity import Identity
from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.shm.session import Session


def write_programs(session: Session, choice: Choice, identity: Identity) -> None:
    """Writes the capture programs of `choice`, and the settings of packet IDs, into the session's memory."""
    session.header.digest_key = identity.key_words
    if isinstance(choice.adapter, NumberingAdapter):
        buffers = choice.adapter.numbered_buffers()
        session.header.buffers_start, session.header.buffers_bytes = buffers.start, buffers.size_bytes
        session.header.pending, session.header.node = buffers.pending, buffers.node
    for index, role in enumerate(choice.readers()):
        program = session.program(index)
        program.role = role.role
        for name, value in role.program.items():
            setattr(program, name, value)
        program.pooled = role.program.get("pooled", 0)
        program.plain = role.program.get("plain", 0)
        program.link_layer = identity.mark_link(role.program.get("link_layer", 0))
