# SPDX-License-Identifier: Apache-2.0
"""Declarative configuration: the parts of the file named by OTEL_CONFIG_FILE that concern nfprobe.

While it is set, other OTEL_* variables are ignored, except where the file refers to them. Resource attributes,
the OTLP exporters of spans and metrics, and `disabled` are translated into the equivalent variables, which the rest of
nfprobe reads like the environment. One sentence lists all other parts of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from opentelemetry.environment_variables import OTEL_METRICS_EXPORTER, OTEL_TRACES_EXPORTER
from opentelemetry.sdk import environment_variables as names
from opentelemetry.util.types import AttributeValue

from otel_nfprobe.base.errors import UsageError

FOREVER_MS = 86_400_000  # a timeout of 0 means none
_PROTOCOLS = {"otlp_grpc": "grpc", "otlp_http": "http/protobuf"}
_ENDPOINTS = {"otlp_grpc": "http://localhost:4317", "otlp_http": "http://localhost:4318/v1/"}
_TLS = {"ca_file": "CERTIFICATE", "key_file": "CLIENT_KEY", "cert_file": "CLIENT_CERTIFICATE", "insecure": "INSECURE"}
_KINDS: dict[str, type[str | bool | int | float]] = {"string": str, "bool": bool, "int": int, "double": float}
_TAKEN = {str: (str, bool, int, float), bool: (bool,), int: (int,), float: (int, float)}


def _is_bool(item: object, wanted: type) -> bool:
    # A bool is an int to Python.
    return wanted is str or isinstance(item, bool) == (wanted is bool)


@dataclass
class Configuration:
    """The content of a file.

    Attributes:
        variables: the equivalent OTEL_* variables.
        resource: attributes of the resource, with their types.
        unused: parts of the file that nfprobe does not use, as paths.
    """

    path: str
    variables: dict[str, str] = field(default_factory=dict)
    resource: dict[str, AttributeValue] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)

    @property
    def complaint(self) -> str:
        """Returns a sentence about its unused parts; empty if all of it is used."""
        return f"{self.path}: not used by nfprobe: {', '.join(self.unused)}." if self.unused else ""


def find_configuration(environment: Mapping[str, str]) -> Configuration | None:
    """Returns the configuration named by OTEL_CONFIG_FILE; None if the variable is not set.

    Raises:
        UsageError: the file cannot be used.
    """
    path = environment.get(names.OTEL_CONFIG_FILE, "").strip()
    if not path:
        return None
    from otel_nfprobe.export.configfile import read_file  # YAML takes long to load, and most users have no such file

    return _Reader(path, read_file(path, environment)).read()


def find_environment(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the effective environment: with a configuration file, its OTEL_* variables come from the file.

    Raises:
        UsageError: the file cannot be used.
    """
    configuration = find_configuration(environment)
    if configuration is None:
        return environment
    others = {name: value for name, value in environment.items() if not name.startswith("OTEL_")}
    return {**others, **configuration.variables}


class _Reader:
    # One file. Paths of keys are kept for messages.
    def __init__(self, path: str, document: dict[str, Any]) -> None:
        self._document = document
        self._found = Configuration(path)
        self._ended = False

    def read(self) -> Configuration:
        version = self._document.get("file_format")
        if not isinstance(version, str) or not version.startswith("1."):
            raise self._refuse("file_format", f"is {version!r}, and nfprobe reads 1.0 and compatible versions")
        known = {"file_format", "disabled", "resource", "tracer_provider", "meter_provider"}
        self._note_unused("", self._document, known)
        if self._flag("disabled", self._document.get("disabled")):
            self._found.variables[names.OTEL_SDK_DISABLED] = "true"
        self._read_resource(self._mapping("resource", self._document.get("resource")))
        self._read_spans(self._mapping("tracer_provider", self._document.get("tracer_provider")))
        self._read_metrics(self._mapping("meter_provider", self._document.get("meter_provider")))
        return self._found

    def _read_resource(self, resource: dict[str, Any]) -> None:
        self._note_unused("resource.", resource, {"attributes", "attributes_list", "schema_url"})
        for pair in self._text("resource.attributes_list", resource.get("attributes_list")).split(","):
            key, separator, text = pair.partition("=")
            if separator and key.strip():
                self._found.resource[key.strip()] = unquote(text.strip())
        for number, item in enumerate(self._list("resource.attributes", resource.get("attributes"))):
            where = f"resource.attributes[{number}]"
            entry = self._mapping(where, item)
            name, value = self._text(f"{where}.name", entry.get("name")), entry.get("value")
            if not name:
                raise self._refuse(where, "has no name")
            if value is not None:
                self._found.resource[name] = self._typed(where, value, str(entry.get("type") or ""))

    def _typed(self, where: str, value: Any, kind: str) -> AttributeValue:
        items = value if isinstance(value, list) else [value]
        single = kind.removesuffix("_array")
        if (kind and single not in _KINDS) or (kind.endswith("_array") != isinstance(value, list) and kind):
            raise self._refuse(where, f"has a value that is not of type {kind}")
        if any(not isinstance(item, (str, bool, int, float)) for item in items):
            raise self._refuse(where, "has a value that cannot be an attribute")
        if kind:
            wanted = _KINDS[single]
            if not all(isinstance(item, _TAKEN[wanted]) and _is_bool(item, wanted) for item in items):
                raise self._refuse(where, f"has a value that is not of type {kind}")
            items = [wanted(item) for item in items]
        result: AttributeValue = items if isinstance(value, list) else items[0]
        return result

    def _read_spans(self, provider: dict[str, Any]) -> None:
        self._note_unused("tracer_provider.", provider, {"processors"})
        self._found.variables[OTEL_TRACES_EXPORTER] = "none"
        for place, settings in self._list_kinds("tracer_provider.processors", provider, ("batch", "simple")):
            self._note_unused(f"{place}.", settings, {"exporter"})
            if self._read_exporter(f"{place}.exporter", settings.get("exporter"), "traces"):
                self._ended = True

    def _read_metrics(self, provider: dict[str, Any]) -> None:
        self._note_unused("meter_provider.", provider, {"readers"})
        self._found.variables[OTEL_METRICS_EXPORTER] = "none"
        for place, settings in self._list_kinds("meter_provider.readers", provider, ("periodic",)):
            self._note_unused(f"{place}.", settings, {"exporter", "interval"})
            if (interval := settings.get("interval")) is not None:
                number_ms = self._number(f"{place}.interval", interval)
                self._found.variables[names.OTEL_METRIC_EXPORT_INTERVAL] = str(number_ms or FOREVER_MS)
            if self._read_exporter(f"{place}.exporter", settings.get("exporter"), "metrics"):
                self._ended = True

    # Yields entries of a list until one was used: only the first usable one of these kinds counts.
    def _list_kinds(
        self, where: str, provider: dict[str, Any], kinds: tuple[str, ...]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        self._ended = False
        for number, item in enumerate(self._list(where, provider.get(where.rpartition(".")[2]))):
            for kind, content in self._mapping(f"{where}[{number}]", item).items():
                place = f"{where}[{number}].{kind}"
                if self._ended or kind not in kinds:
                    self._found.unused.append(place)
                else:
                    yield place, self._mapping(place, content)

    # Returns whether nfprobe can use it.
    def _read_exporter(self, where: str, content: Any, signal: str) -> bool:
        variable = OTEL_TRACES_EXPORTER if signal == "traces" else OTEL_METRICS_EXPORTER
        for kind, settings in self._mapping(where, content).items():
            if kind in _PROTOCOLS:
                self._found.variables[variable] = "otlp"
                self._read_otlp(f"{where}.{kind}", kind, self._mapping(f"{where}.{kind}", settings), signal)
                return True
            if kind == "console" and signal == "traces":
                self._found.variables[variable] = kind
                return True
            self._found.unused.append(f"{where}.{kind}")
        return False

    def _read_otlp(self, where: str, kind: str, settings: dict[str, Any], signal: str) -> None:
        known = {"endpoint", "tls", "headers", "headers_list", "compression", "timeout", "encoding"}
        values = {"PROTOCOL": _PROTOCOLS[kind]}
        default = _ENDPOINTS[kind] + (signal if kind == "otlp_http" else "")
        values["ENDPOINT"] = self._text(f"{where}.endpoint", settings.get("endpoint")) or default
        values["HEADERS"] = self._read_headers(where, settings)
        values["COMPRESSION"] = self._text(f"{where}.compression", settings.get("compression"))
        if (timeout := settings.get("timeout")) is not None:
            values["TIMEOUT"] = str(self._number(f"{where}.timeout", timeout) or FOREVER_MS)
        if settings.get("encoding") not in (None, "protobuf"):
            raise self._refuse(f"{where}.encoding", "is not protobuf")
        tls = self._mapping(f"{where}.tls", settings.get("tls"))
        self._note_unused(f"{where}.tls.", tls, set(_TLS))
        for key, name in _TLS.items():
            value = tls.get(key)
            values[name] = str(value).lower() if isinstance(value, bool) else self._text(f"{where}.tls.{key}", value)
        if signal == "metrics":
            known |= {"temporality_preference", "default_histogram_aggregation"}
            for key in sorted(known & {"temporality_preference", "default_histogram_aggregation"}):
                text = self._text(f"{where}.{key}", settings.get(key)).replace("low_memory", "lowmemory")
                values[key.upper()] = text
        self._note_unused(f"{where}.", settings, known)
        prefix = f"OTEL_EXPORTER_OTLP_{signal.upper()}_"
        self._found.variables.update({prefix + name: value for name, value in values.items() if value})

    def _read_headers(self, where: str, settings: dict[str, Any]) -> str:
        headers = self._text(f"{where}.headers_list", settings.get("headers_list"))
        pairs = [headers] if headers else []
        for number, item in enumerate(self._list(f"{where}.headers", settings.get("headers"))):
            entry = self._mapping(f"{where}.headers[{number}]", item)
            name = self._text(f"{where}.headers[{number}].name", entry.get("name"))
            if not name:
                raise self._refuse(f"{where}.headers[{number}]", "has no name")
            if entry.get("value") is not None:
                pairs.append(f"{name}={quote(str(entry['value']), safe='')}")
        return ",".join(pairs)

    def _note_unused(self, where: str, content: Mapping[str, Any], known: set[str]) -> None:
        self._found.unused += [
            f"{where}{key}" for key, value in content.items() if key not in known and value not in ({}, None)
        ]

    def _mapping(self, where: str, value: Any) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise self._refuse(where, "is not a mapping")
        return value

    def _list(self, where: str, value: Any) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._refuse(where, "is not a list")
        return value

    def _text(self, where: str, value: Any) -> str:
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._refuse(where, "is not a string")
        return value.strip()

    def _number(self, where: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._refuse(where, "is not a whole number of milliseconds")
        return value

    def _flag(self, where: str, value: Any) -> bool:
        if not isinstance(value, (bool, type(None))):
            raise self._refuse(where, "is neither true nor false")
        return bool(value)

    def _refuse(self, where: str, why: str) -> UsageError:
        return UsageError(f"{self._found.path} cannot be used: {where} {why}.", f"cat {self._found.path}")
