# SPDX-License-Identifier: Apache-2.0
"""Timed reader: what comes from a connection until a moment, however slowly its bytes come.

A timeout of a socket is for one call: who sends a byte now and then holds it for days.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class TimedReader(io.RawIOBase):
    """Reads `raw`, which reads `connection`, for at most so long in all.

    Args:
        seconds: from now on; later reads raise TimeoutError.
    """

    def __init__(self, connection: socket.socket, raw: io.RawIOBase, seconds: float) -> None:
        self._connection = connection
        self._raw = raw
        self._until = time.monotonic() + seconds

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As of RawIOBase."""
        remaining_s = self._until - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(remaining_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Closes both."""
        if not self.closed:
            self._raw.close()
        super().close()
