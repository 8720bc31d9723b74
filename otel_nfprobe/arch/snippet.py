# SPDX-License-Identifier: Apache-2.0
"""Snippets: user-written instructions, run at a function's entry to capture one number per call.

The processor's folder parses, assembles and checks them. The bytes are position-independent. native/core/trampoline.c
puts them into a trampoline.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from otel_nfprobe._core import lib
from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.errors import UsageError

HELP = "nfprobe attach --help"
BYTES_MAX = lib.NFP_SNIPPET_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Snippet:
    """A checked snippet.

    Attributes:
        text: as the user wrote it.
        code: leaves the value where functions return one, changes only what a trampoline saves; falls off its end.
    """

    text: str
    code: bytes


@dataclass(frozen=True, slots=True)
class Capture:
    """A snippet and the functions it is for, such as `module:name`."""

    glob: str
    snippet: Snippet


def read_capture(text: str) -> Capture:
    """Parses `GLOB: SNIPPET`, as on the command line.

    Raises:
        UsageError: it is not such a pair, or the snippet is refused.
    """
    parts = re.split(r":\s+", text.strip(), maxsplit=1)
    if len(parts) != 2 or not parts[0].strip():
        raise UsageError(f"{text!r} is not GLOB: SNIPPET, with a colon and a space between the two.", HELP)
    return Capture(parts[0].strip(), assemble(parts[1]))


def assemble(text: str) -> Snippet:
    """Assembles a snippet.

    Raises:
        UsageError: it is refused; names the instruction and the reason.
    """
    code = of_host().assemble(text)
    if len(code) > BYTES_MAX:
        raise UsageError(f"A snippet has at most {BYTES_MAX} bytes of code; this one has {len(code)}.", HELP)
    return Snippet(text, code)
