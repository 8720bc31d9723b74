# SPDX-License-Identifier: Apache-2.0
"""Identity: what a session's packet ids and trace ids are made from. docs/identity.md defines both."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from otel_nfprobe.pipeline.repeats import Repeats

DEFAULT_KEY = b"otel-nfprobe ids"
LINK_ETHERNET = 0
LINK_IP = 1
LINK_INNER = 0x80  # added to one of them: the packet inside a tunnel, where there is one
FLAG_FRAGMENT = 1
FLAG_CUT = 2
FLAG_MALFORMED = 4
FLAG_INNER = 8


@dataclass(frozen=True)
class Identity:
    """How packets are identified.

    Attributes:
        key: 16 bytes of the digest's hash.
        inner: identify the packet inside a tunnel.
        correlate_window_ns: packets of one content within it share a trace id with those that other monitors see;
            0: trace ids are unique.
    """

    key: bytes = DEFAULT_KEY
    inner: bool = False
    correlate_window_ns: int = 0

    @property
    def key_words(self) -> tuple[int, int]:
        """The key as the session's header has it."""
        first, second = struct.unpack("<2Q", self.key)
        return first, second

    def mark_link(self, link_layer: int) -> int:
        """The link layer of a capture program, as the digest's code takes it."""
        return link_layer | (LINK_INNER if self.inner else 0)

    def make_repeats(self) -> Repeats:
        """What finds ids that are seen again."""
        return Repeats.correlating(self.correlate_window_ns)
