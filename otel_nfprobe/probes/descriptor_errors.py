# SPDX-License-Identifier: Apache-2.0
"""Descriptor errors: what probes found wrong with functions described by the user (native/probe/validate.c), as
sentences.

A function that is switched off still runs through its probe, but it is no longer counted or described.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import RoleFunction
from otel_nfprobe.shm.session import Session

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
