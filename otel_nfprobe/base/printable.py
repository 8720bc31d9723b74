# SPDX-License-Identifier: Apache-2.0
"""Names of functions, files, processes and threads come from targets: none of them may command a terminal.

Control characters, marks that turn the direction of text, and bytes that are no text are written as programmers write
them (\\x1b). The command line puts `PrintableStream` in front of standard output and error; tables and `tell` of
cli/main.py make their cells and sentences printable themselves, because there a line end is one of these characters.
JSON has its own way to write them. Pure, but for the stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TextIO

_CONTROLS = "\0-\x1f\x7f-\x9f"
_DIRECTIONS = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_LINE_ENDS = "\u2028\u2029"
_NO_TEXT = "\ud800-\udfff"  # bytes that could not be decoded
_UNPRINTABLE = re.compile(f"[{_CONTROLS}{_DIRECTIONS}{_LINE_ENDS}{_NO_TEXT}]")
_UNPRINTABLE_IN_LINES = re.compile(f"(?![\n\t])[{_CONTROLS}{_DIRECTIONS}{_LINE_ENDS}{_NO_TEXT}]")


def printable(text: str) -> str:
    """The text on one line, without characters that do anything."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def printable_value(value: Any) -> Any:
    """The same value with all texts in it printable: of lists and of the values of mappings, however deep."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: printable_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_value(item) for item in value]
    return value


def _printable_lines(text: str) -> str:
    return text if text.isprintable() else _UNPRINTABLE_IN_LINES.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # as surrogateescape has them
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class PrintableStream:
    """A text stream that writes only line ends and tabs as they are, and a carriage return that is written alone.

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text, made printable. Raises as the stream does."""
        return self._stream.write(text if text == "\r" else _printable_lines(text))

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes each of them. Raises as the stream does."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
