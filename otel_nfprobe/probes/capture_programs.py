# SPDX-License-Identifier: Apache-2.0
"""Programs: what receive, transmit and drop probes read, written where the target reads it, and what was wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import NumberingAdapter, RoleFunction
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


# ---- what is wrong with them ----------------------------------------------------------------------------------------
# What probes found wrong with functions that a person described (native/probe/validate.c), in sentences.
#
# A function that is switched off still runs through its probe, but it is no longer counted or described.


_WRONG = {
    lib.NFP_VERDICT_COUNT_UNREADABLE: "the number of packets would be at {0:#x}, where nothing can be read",
    lib.NFP_VERDICT_COUNT_TOO_LARGE: "its batch would hold {0} packets",
    lib.NFP_VERDICT_POINTERS_UNREADABLE: "its packet pointers would be at {0:#x}, where nothing can be read",
    lib.NFP_VERDICT_PACKET_UNREADABLE: "what would be a packet, at {0:#x}, cannot be read",
    lib.NFP_VERDICT_LENGTH_WRONG: "a packet would have a length, or a first piece, of {0} bytes",
    lib.NFP_VERDICT_NUMBER_WRONG: "there is no buffer {0}",
}


def find_verdicts(session: Session, roles: Sequence[RoleFunction]) -> Iterator[tuple[str, str]]:
    """Yields functions that are switched off: name, and a sentence for the user."""
    for index, role in enumerate(roles):
        program = session.program(index)
        wrong = _WRONG.get(int(program.verdict))
        if wrong is not None:
            what = wrong.format(int(program.offence))
            yield role.name, f"{role.name} ({role.label}) is switched off, its description is wrong: {what}."
