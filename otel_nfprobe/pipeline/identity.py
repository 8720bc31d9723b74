# SPDX-License-Identifier: Apache-2.0
"""Identity: the parameters of a session's packet IDs and trace IDs. docs/identity.md defines both."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from otel_nfprobe.pipeline.repeats import Repeats

DEFAULT_KEY = b"otel-nfprobe ids"
LINK_ETHERNET = 0
LINK_IP = 1
LINK_INNER = 0x80  # flag added to a link type: identify the packet inside a tunnel
FLAG_FRAGMENT = 1
FLAG_CUT = 2
FLAG_MALFORMED = 4
FLAG_INNER = 8
BITS_64 = (1 << 64) - 1


def mix(word: int) -> int:
    """A word whose bits each depend on all of another one's, as native/core/otlp_id.h makes ids."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & BITS_64
    word = (word ^ word >> 27) * 0x94D049BB133111EB & BITS_64
    return word ^ word >> 31


@dataclass(frozen=True)
class Identity:
    """How packets are identified.

    Attributes:
        key: 16 bytes of the digest's hash.
        inner: identify the packet inside a tunnel.
        correlate_window_ns: packets with the same content in this window share a trace ID with those of other
            monitors; 0: trace IDs are unique.
    """

    key: bytes = DEFAULT_KEY
    inner: bool = False
    correlate_window_ns: int = 0

    @property
    def key_words(self) -> tuple[int, int]:
        """Returns the key in the form of the session's header."""
        first, second = struct.unpack("<2Q", self.key)
        return first, second

    def mark_link(self, link_layer: int) -> int:
        """Returns a capture program's link layer with the flags that the digest's code takes."""
        return link_layer | (LINK_INNER if self.inner else 0)

    def make_repeats(self) -> Repeats:
        """Returns the detector of repeated IDs."""
        return Repeats.correlating(self.correlate_window_ns)
