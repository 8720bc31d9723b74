# SPDX-License-Identifier: Apache-2.0
"""OTLP over HTTP, in binary protobuf: one POST per request, on a persistent connection."""

from __future__ import annotations

import gzip
import http.client
import io
import re
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.request import getproxies, proxy_bypass

import urllib3
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from urllib3.connection import HTTPConnection, HTTPSConnection

from otel_nfprobe import __version__
from otel_nfprobe.base.timedreader import TimedReader
from otel_nfprobe.export.delivery import Outcome, OutcomeKind, bound_pause_s, make_readable, read_response, read_retry_s
from otel_nfprobe.export.endpoint import Endpoint
from otel_nfprobe.export.resource import SCOPE_NAME

# ---- bounded answers ------------------------------------------------------------------------------------------------
# HTTP responses of untrusted servers: limited in time and size, and never decompressed.
#
# urllib3's timeouts are per read, `100 Continue` may be repeated endlessly, and a few bytes decompress to gigabytes.


ANSWER_BYTES_MAX = 1 << 20  # the rest is not read


class _TimedResponse(http.client.HTTPResponse):
    # Created when the request was sent; the socket's timeout is the rest of the request's.
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
    """Limits all responses of a manager to their request's timeout. Returns the manager."""
    manager.pool_classes_by_scheme = {"http": _Pool, "https": _SecurePool}
    return manager


def read_answer(response: urllib3.BaseHTTPResponse) -> bytes:
    """Returns up to ANSWER_BYTES_MAX of the undecoded body; releases the connection if the body is complete.

    Raises:
        urllib3.exceptions.HTTPError, OSError: it is incomplete or late.
    """
    answer = response.read(ANSWER_BYTES_MAX, decode_content=False)
    # An interim response is followed by another one, which must not be taken for the next request's.
    if response.status < 200 or response.read(1, decode_content=False):
        response.close()
    else:
        response.release_conn()
    return answer


# ---- transport ------------------------------------------------------------------------------------------------------


RETRYABLE = frozenset({429, 502, 503, 504})  # according to the OTLP specification
_GZIP_LEVEL = 1
_CONTENT_TYPE = "application/x-protobuf"


class HttpTransport:
    """A connection to an OTLP/HTTP receiver."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._cancelled = False
        self._headers = {"User-Agent": f"{SCOPE_NAME}/{__version__}", **dict(endpoint.headers)}
        self._headers["Content-Type"] = _CONTENT_TYPE
        if endpoint.gzip:
            self._headers["Content-Encoding"] = "gzip"
        self._manager = _open_manager(endpoint)

    def attempt(self, data: bytes, timeout_s: float) -> Outcome:
        """Posts one request."""
        body = gzip.compress(data, _GZIP_LEVEL) if self._endpoint.gzip else data
        try:
            response = self._manager.urlopen(
                "POST",
                self._endpoint.url,
                body=body,
                headers=self._headers,
                timeout=urllib3.Timeout(total=timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
            answer = read_answer(response)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            if self._cancelled:
                return Outcome(OutcomeKind.CANCELLED)
            return Outcome(OutcomeKind.RETRY, _describe(error))
        except ValueError as error:
            return Outcome(OutcomeKind.REFUSED, _describe(error))  # a header that is invalid in HTTP
        return judge(response.status, response.headers.get("Retry-After", ""), answer)

    def cancel(self) -> None:
        """Does nothing: the current attempt ends by its timeout, without a retry."""
        self._cancelled = True

    def close(self) -> None:
        """Closes the connection."""
        self._manager.clear()


def judge(status: int, retry_after: str, answer: bytes) -> Outcome:
    """Returns the outcome of an HTTP response.

    Args:
        retry_after: the header's text, seconds or a date; empty if absent.
        answer: the body; of an error response a google.rpc.Status.
    """
    if 200 <= status < 300:
        return read_response(answer)
    message = f"HTTP {status}"
    if said := _read_message(answer):
        message += f": {said}"
    if status not in RETRYABLE:
        return Outcome(OutcomeKind.REFUSED, message)
    asked_s = _read_retry_after_s(retry_after)
    return Outcome(OutcomeKind.RETRY, message, retry_after_s=asked_s or read_retry_s(answer) or 0.0)


def _read_retry_after_s(text: str) -> float:
    if text.strip().isascii() and text.strip().isdigit():
        return bound_pause_s(float(text))
    try:
        wait_s = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
    return bound_pause_s(wait_s)


def _read_message(answer: bytes) -> str:
    try:
        message: str = Status.FromString(answer).message
    except DecodeError:
        message = answer.decode("utf-8", "replace")
    return make_readable(message)


# urllib3 includes the object's address in its messages.
def _describe(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = re.sub(r".*object at 0x[0-9a-f]+>: |.*[a-zA-Z]*Connection[^:]*: ", "", text)
    return f"{type(error).__name__}: {make_readable(text)}"


def _open_manager(endpoint: Endpoint) -> urllib3.PoolManager:
    context = _make_context(endpoint) if endpoint.secure else None
    proxy = None if endpoint.loopback else _find_proxy(endpoint)
    if proxy is not None:
        return bound_answers(urllib3.ProxyManager(proxy, num_pools=1, maxsize=1, ssl_context=context))
    return bound_answers(urllib3.PoolManager(num_pools=1, maxsize=1, ssl_context=context))


def _find_proxy(endpoint: Endpoint) -> str | None:
    host = endpoint.target.rpartition(":")[0].strip("[]")
    return None if proxy_bypass(host) else getproxies().get("https" if endpoint.secure else "http")


def _make_context(endpoint: Endpoint) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=endpoint.root_certificates_file)
    if endpoint.client_certificate_file:
        context.load_cert_chain(endpoint.client_certificate_file, endpoint.client_key_file, password="")
    return context
