# SPDX-License-Identifier: Apache-2.0
"""Escapes text from targets (names of functions, files, processes and threads) so that it cannot control a terminal.

Control characters, bidirectional marks and undecodable bytes are written as escapes (\\x1b). The command line wraps
standard output and error in `PrintableStream`; tables and `tell` of cli/main.py escape their cells and sentences
themselves, because a line end is one of these characters there. JSON has its own escapes. Pure, except for the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

from otel_nfprobe.base.lateregex import compile_late

_CONTROLS = "\0-\x1f\x7f-\x9f"
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_LINE_ENDS = "\u2028\u2029"
_SURROGATES = "\ud800-\udfff"  # undecodable bytes
_UNPRINTABLE = compile_late(f"[{_CONTROLS}{_DIRECTIONS}{_LINE_ENDS}{_SURROGATES}]")
_UNPRINTABLE_IN_LINES = compile_late(f"(?![\n\t])[{_CONTROLS}{_DIRECTIONS}{_LINE_ENDS}{_SURROGATES}]")


def printable(text: str) -> str:
    """Returns the text on one line, with control characters escaped."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def printable_value(value: Any) -> Any:
    """Returns the value with all its strings escaped, in lists and in the values of mappings at any depth."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: printable_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_value(item) for item in value]
    return value


def _printable_lines(text: str) -> str:
    return (
        text if text.isprintable() or text.replace("\n", "").isprintable() else _UNPRINTABLE_IN_LINES.sub(_escape, text)
    )


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # encoded by surrogateescape
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class PrintableStream:
    """A text stream that escapes all control characters except line ends, tabs, and a carriage return written alone.

    Args:
        stream: the underlying stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text, escaped. Raises as the stream does."""
        return self._stream.write(text if text == "\r" else _printable_lines(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes each line. Raises as the stream does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
