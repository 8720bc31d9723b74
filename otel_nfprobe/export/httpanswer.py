# SPDX-License-Identifier: Apache-2.0
"""HTTP answers of a server that nobody vouches for: read within a time and a number of bytes, and never unpacked.

urllib3's timeouts are for each read, `100 Continue` may come again and again, and a few bytes unpack to gigabytes.
"""

from __future__ import annotations

import http.client
import io
import socket
from typing import Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from otel_nfprobe.base.timedreader import TimedReader

ANSWER_BYTES_MAX = 1 << 20  # of what a server says; more is not read


class _TimedResponse(http.client.HTTPResponse):
    # Made when the request was sent; the socket's timeout is then what is left of the request's.
    def __init__(self, connection: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(connection, *arguments, **options)
        timeout_s = connection.gettimeout()
        if timeout_s is not None:
            raw: Any = self.fp.detach()
            self.fp = io.BufferedReader(TimedReader(connection, raw, timeout_s))


class _Connection(HTTPConnection):
    response_class = _TimedResponse


class _SecureConnection(HTTPSConnection):
    response_class = _TimedResponse


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def bound_answers(manager: urllib3.PoolManager) -> urllib3.PoolManager:
    """Has all answers of a manager end by their request's timeout. Returns it."""
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager


def read_answer(response: urllib3.BaseHTTPResponse) -> bytes:
    """The first ANSWER_BYTES_MAX of the body as they came; the connection is given back if that was all.

    Raises:
        urllib3.exceptions.HTTPError, OSError: it did not come whole, or not in time.
    """
    answer = response.read(ANSWER_BYTES_MAX, decode_content=False)
    # Behind an interim answer another one stands, which is not that of the next request.
    if response.status < 200 or response.read(1, decode_content=False):
        response.close()
    else:
        response.release_conn()
    return answer
