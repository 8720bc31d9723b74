# SPDX-License-Identifier: Apache-2.0
"""The file named by OTEL_CONFIG_FILE, as plain values: YAML 1.2 with references to environment variables replaced.

As specified for declarative configuration: references occur in values only, never in keys, are replaced before a
value's type is resolved, and insert text, not YAML. configuration.py interprets the values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from otel_nfprobe.base.errors import UsageError

BYTES_MAX = 1 << 20

_REFERENCE = re.compile(r"\$\{([^}\n]*)\}")
_INSIDE = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.S)


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2: `yes` and `on` are text, `010` is ten."""


_Loader.yaml_implicit_resolvers = {}  # the base class has those of YAML 1.1


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"~|null|Null|NULL|"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
    list("-+0123456789."),
)
for _patterns in _Loader.yaml_implicit_resolvers.values():
    # PyYAML only looks at the first character.
    _patterns[:] = [(tag, re.compile(f"(?:{pattern.pattern})$")) for tag, pattern in _patterns]


def _construct_int(_: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = str(node.value)
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def read_file(path: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the content of the file.

    Raises:
        UsageError: it cannot be read, is not a YAML mapping, or a reference is malformed.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(BYTES_MAX + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"OTEL_CONFIG_FILE names {path!r}, which cannot be read: {why}.", f"ls -l {path}") from None
    if len(text) > BYTES_MAX:
        raise UsageError(f"{path} is longer than 1 MiB.", f"ls -l {path}")
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        _substitute(root, loader, environment, path, set())
        found = loader.construct_document(root) if root is not None else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        place = getattr(error, "problem_mark", None)
        where = f" at line {place.line + 1}" if place is not None else ""
        raise UsageError(f"{path} is not YAML{where}.", f"cat {path}") from None
    finally:
        loader.dispose()
    if not isinstance(found, dict):
        raise UsageError(f"{path} does not contain a mapping.", f"cat {path}")
    return found


def replace_references(text: str, environment: Mapping[str, str]) -> str:
    """Returns a value with `${NAME}`, `${env:NAME}` and `${NAME:-default}` replaced; `$$` stands for `$`.

    Raises:
        ValueError: a reference is malformed.
    """

    def replace(match: re.Match[str]) -> str:
        inside = _INSIDE.fullmatch(match[1])
        if inside is None:
            raise ValueError(match[0])
        return environment.get(inside[1], "") or inside[2] or ""

    # A reference cannot span an escaped `$`.
    return "$".join(_REFERENCE.sub(replace, part) for part in text.split("$$"))


def _substitute(
    node: yaml.Node | None, loader: _Loader, environment: Mapping[str, str], path: str, seen: set[int]
) -> None:
    if node is None or id(node) in seen:  # an alias repeats the same node
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _substitute(value, loader, environment, path, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _substitute(value, loader, environment, path, seen)
    elif isinstance(node, yaml.ScalarNode) and "$" in node.value:
        try:
            replaced = replace_references(node.value, environment)
        except ValueError as error:
            line = node.start_mark.line + 1
            sentence = f"{path} has a malformed reference in line {line}: {error}."
            raise UsageError(sentence, f"{Path(path).name}: ${{NAME:-default}}") from None
        if node.style is None and replaced != node.value:
            node.tag = loader.resolve(yaml.ScalarNode, replaced, (True, False))  # type: ignore[no-untyped-call]
        node.value = replaced
