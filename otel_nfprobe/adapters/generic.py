# SPDX-License-Identifier: Apache-2.0
"""Adapter for any program: a batch is what a thread runs from one call of a chosen function to the next.

The batch holds one packet of size 1 without headers, so that slow batches are selected, exported and explained
like slow packets. Chosen by `--batch-function`; it never recognises a program by itself.
"""

from __future__ import annotations

from otel_nfprobe.adapters.base import KNOWS_LIBRARY, LOOP_ITERATION, RoleFunction
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.target.target import Target


class GenericAdapter:
    """Knows one function, whose calls begin batches.

    Args:
        function: "module:name" or "module:0xoffset"; must match exactly one function.
    """

    name = "generic"
    knows = KNOWS_LIBRARY

    def __init__(self, function: str = "") -> None:
        self._function = function
        self.inner: list[str] = []

    def recognise(self, target: Target) -> str | None:
        """See Adapter."""
        return f"each call of {self._function} begins a batch" if self._function else None

    def roles(self, target: Target) -> list[RoleFunction]:
        """See Adapter."""
        return [find_loop_iteration(target, self._function)]

    def notes(self, target: Target) -> list[str]:
        """See Adapter."""
        return [f"a batch lasts from one call of {self._function} to the next of the same thread"]


def find_loop_iteration(target: Target, glob: str) -> RoleFunction:
    """The function whose calls begin batches.

    Raises:
        UsageError: not exactly one function is called so.
    """
    functions = find_functions(target, [glob])
    if len(functions) > 1:
        raise UsageError(
            f"{glob!r} matches {len(functions)} functions; a batch begins with the calls of one.",
            f"nfprobe functions {target.pid} --functions '{glob}'",
        )
    function = functions[0]
    return RoleFunction(function.address, function.label, LOOP_ITERATION, {}, f"{function.name} begins a batch")
