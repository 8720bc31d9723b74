# SPDX-License-Identifier: Apache-2.0
"""Timed reader: reads from a connection with a deadline for the whole transfer.

A socket timeout applies to one call: a peer that sends a byte now and then could hold the connection for days.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class TimedReader(io.RawIOBase):
    """Reads `raw`, which reads `connection`, until a deadline.

    Args:
        seconds: from now; later reads raise TimeoutError.
    """

    def __init__(self, connection: socket.socket, raw: io.RawIOBase, seconds: float) -> None:
        self._connection = connection
        self._raw = raw
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Implements RawIOBase; raises TimeoutError after the deadline."""
        remaining_s = self._until - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(remaining_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Closes the reader and `raw`."""
        if not self.closed:
            self._raw.close()
        super().close()
