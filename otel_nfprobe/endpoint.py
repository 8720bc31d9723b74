# SPDX-License-Identifier: Apache-2.0
"""The endpoint: where spans go and how, from the command line and the OTEL_EXPORTER_OTLP_* variables.

The command line wins over the environment, OTEL_EXPORTER_OTLP_TRACES_* over OTEL_EXPORTER_OTLP_*. `http://`
sends in the clear and `https://` by TLS; without a scheme it is TLS, except to loopback addresses and where
OTEL_EXPORTER_OTLP_INSECURE is true. Opens no connection.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from opentelemetry.sdk import environment_variables as names
from opentelemetry.util.re import parse_env_headers

from otel_nfprobe.errors import UsageError

DEFAULT_PORT = 4317
DEFAULT_TIMEOUT_S = 10.0
EXAMPLE = "http://127.0.0.1:4317"

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True)
class Endpoint:
    """A checked endpoint.

    Attributes:
        target: `host:port` as gRPC takes it.
        secure: TLS; then root_certificates (None: the system's), client_key and client_certificate are PEM
            bytes.
        loopback: the host is this machine.
        headers: gRPC metadata.
        timeout_s: for one attempt.
        gzip: compress requests.
    """

    target: str
    secure: bool
    loopback: bool
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = DEFAULT_TIMEOUT_S
    gzip: bool = False
    root_certificates: bytes | None = None
    client_key: bytes | None = None
    client_certificate: bytes | None = None


def find_endpoint(argument: str | None, environment: Mapping[str, str]) -> Endpoint | None:
    """The endpoint to export to, or None when there is none or OTEL_SDK_DISABLED is true.

    Args:
        argument: of --endpoint, or None.
        environment: os.environ.

    Raises:
        UsageError: an endpoint or a variable that cannot be used.
    """
    if environment.get(names.OTEL_SDK_DISABLED, "").strip().lower() == "true":
        return None
    text = argument
    if text is None:
        text = _read(environment, "ENDPOINT")
        if not text:
            return None
        _check_protocol(environment)
    scheme, host, port = _split(text)
    loopback = _is_loopback(host)
    insecure = _read(environment, "INSECURE").lower() == "true"
    secure = scheme == "https" or (scheme == "" and not loopback and not insecure)
    return Endpoint(
        target=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        secure=secure,
        loopback=loopback,
        headers=tuple(parse_env_headers(_read(environment, "HEADERS"), liberal=True).items()),
        timeout_s=_read_timeout_s(environment),
        gzip=_read_gzip(environment),
        root_certificates=_read_file(environment, "CERTIFICATE") if secure else None,
        client_key=_read_file(environment, "CLIENT_KEY") if secure else None,
        client_certificate=_read_file(environment, "CLIENT_CERTIFICATE") if secure else None,
    )


def _split(text: str) -> tuple[str, str, int]:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", "http", "https"):
        raise _refuse(text, f"its scheme is {scheme!r} and not http or https")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _refuse(text, "its host or port is malformed") from None
    if not host or not (_HOST.fullmatch(host) or _is_address(host)) or parts.username is not None:
        raise _refuse(text, "it names no host")
    if port == 0:
        raise _refuse(text, "its port is 0")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _refuse(text, "it has a path, as only OTLP over HTTP has, and nfprobe speaks OTLP over gRPC")
    return scheme, host, port or DEFAULT_PORT


def _refuse(text: str, why: str) -> UsageError:
    return UsageError(f"The endpoint {text!r} cannot be used: {why}.", f"nfprobe attach PID --endpoint {EXAMPLE}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _variable(environment: Mapping[str, str], name: str) -> str:
    traces: str = getattr(names, f"OTEL_EXPORTER_OTLP_TRACES_{name}")
    every: str = getattr(names, f"OTEL_EXPORTER_OTLP_{name}")
    return traces if environment.get(traces, "").strip() else every


def _read(environment: Mapping[str, str], name: str) -> str:
    return environment.get(_variable(environment, name), "").strip()


def _check_protocol(environment: Mapping[str, str]) -> None:
    protocol = _read(environment, "PROTOCOL")
    if protocol not in ("", "grpc"):
        variable = _variable(environment, "PROTOCOL")
        raise UsageError(
            f"{variable} is {protocol!r}, and nfprobe speaks OTLP over gRPC only.",
            f"export {variable}=grpc",
        )


def _read_timeout_s(environment: Mapping[str, str]) -> float:
    text = _read(environment, "TIMEOUT")
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        timeout_ms = float(text)
    except ValueError:
        timeout_ms = 0.0
    if not 0 < timeout_ms < float("inf"):
        variable = _variable(environment, "TIMEOUT")
        raise UsageError(f"{variable} is {text!r}, not a number of milliseconds.", f"export {variable}=10000")
    return timeout_ms / 1000


def _read_gzip(environment: Mapping[str, str]) -> bool:
    text = _read(environment, "COMPRESSION").lower()
    if text not in ("", "none", "gzip"):
        variable = _variable(environment, "COMPRESSION")
        raise UsageError(f"{variable} is {text!r}, not gzip or none.", f"export {variable}=none")
    return text == "gzip"


def _read_file(environment: Mapping[str, str], name: str) -> bytes | None:
    path = _read(environment, name)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        variable = _variable(environment, name)
        raise UsageError(
            f"{variable} names {path!r}, which cannot be read: {error.strerror}.", f"ls -l {path}"
        ) from None
