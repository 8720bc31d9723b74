# SPDX-License-Identifier: Apache-2.0
"""The endpoint: destination and protocol of spans, from the command line and the OTEL_EXPORTER_OTLP_* variables.

The command line overrides the environment; a signal's own variables (OTEL_EXPORTER_OTLP_TRACES_*) override
OTEL_EXPORTER_OTLP_*. `http://` sends in the clear and `https://` by TLS; without a scheme TLS is used, except to
loopback addresses and where OTEL_EXPORTER_OTLP_INSECURE is true. Opens no connection.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.sdk import environment_variables as names

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.lateregex import compile_late

GRPC = "grpc"
HTTP = "http/protobuf"
DEFAULT_PORTS = {GRPC: 4317, HTTP: 4318}
DEFAULT_TIMEOUT_S = 10.0
EXAMPLE = "http://127.0.0.1:4317"
TRACES = "traces"
METRICS = "metrics"

_HOST = compile_late(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")


@dataclass(frozen=True)
class Endpoint:
    """A checked endpoint.

    Attributes:
        target: `host:port` for gRPC.
        secure: use TLS; then root_certificates (None: the system's), client_key and client_certificate are PEM bytes;
            the _file attributes are the paths they were read from.
        loopback: the host is this machine.
        headers: gRPC metadata, or HTTP headers.
        timeout_s: for one attempt.
        gzip: compress requests.
        path: of OTLP/HTTP requests; empty: gRPC.
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
    path: str = ""
    root_certificates_file: str | None = None
    client_key_file: str | None = None
    client_certificate_file: str | None = None

    @property
    def url(self) -> str:
        """Returns the URL as for a signal's own variable."""
        return f"{'https' if self.secure else 'http'}://{self.target}{self.path}"


def find_endpoint(argument: str | None, environment: Mapping[str, str], signal: str = TRACES) -> Endpoint | None:
    """Returns the endpoint to export to, or None if there is none or OTEL_SDK_DISABLED is true.

    Args:
        argument: of --endpoint, or None.
        environment: os.environ.
        signal: TRACES or METRICS.

    Raises:
        UsageError: an endpoint or a variable that cannot be used.
    """
    if environment.get(names.OTEL_SDK_DISABLED, "").strip().lower() == "true":
        return None
    read = _Variables(environment, signal)
    text = argument if argument is not None else read.text("ENDPOINT")
    if argument is None and not text:
        return None
    protocol = _read_protocol(read)
    scheme, host, port, path = _split(text, protocol)
    if protocol == HTTP and (argument is not None or not read.is_own("ENDPOINT")):
        # The variable for all signals is a base URL; that of one signal is the complete URL.
        own = f"/v1/{signal}"
        path = path.rstrip("/").removesuffix("/v1/traces").removesuffix("/v1/metrics") + own
    loopback = _is_loopback(host)
    secure = scheme == "https" or (scheme == "" and not loopback and not read.is_true("INSECURE"))
    from opentelemetry.util.re import parse_env_headers  # slow to load, and few commands send

    return Endpoint(
        target=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        secure=secure,
        loopback=loopback,
        headers=tuple(parse_env_headers(read.text("HEADERS"), liberal=True).items()),
        timeout_s=_read_timeout_s(read),
        gzip=_read_gzip(read),
        path=path,
        **(_read_certificates(read) if secure else {}),
    )


def _split(text: str, protocol: str) -> tuple[str, str, int, str]:
    """Returns scheme, host, port and path of an endpoint; the path is empty for gRPC."""
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
        raise _refuse(text, "it has no host")
    if port == 0:
        raise _refuse(text, "its port is 0")
    if protocol == HTTP:
        if parts.query or parts.fragment:
            raise _refuse(text, "it has a query or a fragment")
        # Without a port, a URL means the default of its scheme; a bare host is not a URL.
        usual = {"http": 80, "https": 443}.get(scheme, DEFAULT_PORTS[HTTP])
        return scheme, host, port or usual, parts.path or "/"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        why = "it has a path, which only OTLP over HTTP uses, and the protocol is gRPC"
        raise _refuse(text, why, f"OTEL_EXPORTER_OTLP_PROTOCOL={HTTP} nfprobe attach PID --endpoint {text}")
    return scheme, host, port or DEFAULT_PORTS[GRPC], ""


def _refuse(text: str, why: str, next_command: str = f"nfprobe attach PID --endpoint {EXAMPLE}") -> UsageError:
    return UsageError(f"The endpoint {text!r} cannot be used: {why}.", next_command)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


class _Variables:
    """The OTEL_EXPORTER_OTLP_* variables as they apply to one signal."""

    def __init__(self, environment: Mapping[str, str], signal: str) -> None:
        self._environment = environment
        self._own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"

    def is_own(self, name: str) -> bool:
        """Returns whether the signal's own variable is set."""
        return bool(self._environment.get(self._own + name, "").strip())

    def name(self, name: str) -> str:
        """Returns the name of the variable that applies."""
        return self._own + name if self.is_own(name) else f"OTEL_EXPORTER_OTLP_{name}"

    def text(self, name: str) -> str:
        """Returns its value; empty if it is not set."""
        return self._environment.get(self.name(name), "").strip()

    def is_true(self, name: str) -> bool:
        """Returns whether its value is true."""
        return self.text(name).lower() == "true"


def _read_protocol(read: _Variables) -> str:
    protocol = read.text("PROTOCOL").lower() or GRPC
    if protocol not in DEFAULT_PORTS:
        variable = read.name("PROTOCOL")
        raise UsageError(
            f"{variable} is {protocol!r}, and nfprobe supports {GRPC} and {HTTP}.", f"export {variable}={GRPC}"
        )
    return protocol


def _read_timeout_s(read: _Variables) -> float:
    text = read.text("TIMEOUT")
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        timeout_ms = float(text)
    except ValueError:
        timeout_ms = 0.0
    if not 0 < timeout_ms < float("inf"):
        variable = read.name("TIMEOUT")
        raise UsageError(f"{variable} is {text!r}, not a number of milliseconds.", f"export {variable}=10000")
    return timeout_ms / 1000


def _read_gzip(read: _Variables) -> bool:
    text = read.text("COMPRESSION").lower()
    if text not in ("", "none", "gzip"):
        variable = read.name("COMPRESSION")
        raise UsageError(f"{variable} is {text!r}, not gzip or none.", f"export {variable}=none")
    return text == "gzip"


def _read_certificates(read: _Variables) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, name in (
        ("root_certificates", "CERTIFICATE"),
        ("client_key", "CLIENT_KEY"),
        ("client_certificate", "CLIENT_CERTIFICATE"),
    ):
        found[field], found[f"{field}_file"] = _read_file(read, name), read.text(name) or None
    _check_certificates(read, found)
    return found


def _read_file(read: _Variables, name: str) -> bytes | None:
    path = read.text(name)
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        sentence = f"{read.name(name)} names {path!r}, which cannot be read: {error.strerror}."
        raise UsageError(sentence, f"ls -l {path}") from None


# gRPC accepts anything and then fails to connect without giving a reason.
def _check_certificates(read: _Variables, found: Mapping[str, Any]) -> None:
    import ssl  # slow to load, and most endpoints are not secure

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    root, key, certificate = (
        found[f"{name}_file"] for name in ("root_certificates", "client_key", "client_certificate")
    )
    if root:
        try:
            context.load_verify_locations(cafile=root)
        except ssl.SSLError:
            sentence = f"{read.name('CERTIFICATE')} names {root!r}, which contains no PEM certificate."
            raise UsageError(sentence, f"openssl x509 -in {root} -noout -text") from None
    if (key is None) != (certificate is None):
        missing = "CLIENT_CERTIFICATE" if key else "CLIENT_KEY"
        there = "CLIENT_KEY" if key else "CLIENT_CERTIFICATE"
        sentence = f"{read.name(there)} is set without {read.name(missing)}: TLS needs both."
        raise UsageError(sentence, f"export {read.name(missing)}=FILE.pem")
    if key and certificate:
        try:
            context.load_cert_chain(certificate, key, password="")  # never prompts on the terminal
        except (ssl.SSLError, OSError):
            sentence = (
                f"{read.name('CLIENT_CERTIFICATE')} and {read.name('CLIENT_KEY')} hold no PEM certificate and its key"
                " (a key must not have a password)."
            )
            raise UsageError(sentence, f"openssl x509 -in {certificate} -noout -text") from None
