# SPDX-License-Identifier: Apache-2.0
"""Names that would command a terminal are shown as programmers write them, and tables stay tables."""

from __future__ import annotations

import io
import sys
import unicodedata

import pytest

from otel_nfprobe.base.printable import PrintableStream, printable, printable_value
from otel_nfprobe.cli.functions import print_columns
from otel_nfprobe.cli.main import main
from otel_nfprobe.report.views.table import align_columns


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ordinary name", "ordinary name"),
        ("Größe 日本", "Größe 日本"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("two\nlines\r\t", "two\\x0alines\\x0d\\x09"),
        ("\x7f\x9b31m", "\\x7f\\x9b31m"),
        ("a\u202eb\u2066c\u2069", "a\\u202eb\\u2066c\\u2069"),
        ("\udc9b\ud800", "\\x9b\\ud800"),
        ("a\u00a0b", "a\u00a0b"),
    ],
)
def test_text_on_one_line(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_no_control_character_is_left() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    left = printable(everything)
    assert not {"Cc", "Cs", "Zl", "Zp"} & set(map(unicodedata.category, left))
    assert not {*BIDIRECTIONAL} & set(map(unicodedata.bidirectional, left))
    left.encode()


BIDIRECTIONAL = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")


def test_values_are_printable_however_deep() -> None:
    value = {"a": ["\x1b", {"b": ("\n", 1, None)}], "c": 2.5}
    assert printable_value(value) == {"a": ["\\x1b", {"b": ["\\x0a", 1, None]}], "c": 2.5}


def test_a_stream_keeps_lines_and_progress() -> None:
    written = io.StringIO()
    stream = PrintableStream(written)
    print("one\n\ttwo \x1b[0m", file=stream)
    print("progress", end="\r", file=stream)
    print("over\rwritten", file=stream)
    stream.writelines(["\x9b\n"])
    assert written.getvalue() == "one\n\ttwo \\x1b[0m\nprogress\rover\\x0dwritten\n\\x9b\n"


def test_columns_are_as_wide_as_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [["name", "calls"], ["a\x1b[2J\nb", "1"], ["plain", "23"]]
    assert align_columns(rows).splitlines() == [
        "name           calls",
        "-------------  -----",
        "a\\x1b[2J\\x0ab      1",
        "plain             23",
    ]
    print_columns(("name", "from"), rows[1:], (40,))
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "from"],
        ["a\\x1b[2J\\x0ab", "1"],
        ["plain", "23"],
    ]


def test_errors_are_two_lines_whatever_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    assert main(["functions", "/no\x1b[2J\n/such\u202e"]) == 2
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().err.splitlines() == [
        "nfprobe: /no\\x1b[2J\\x0a/such\\u202e is neither a pid nor a file.",
        "next: pgrep -a NAME",
    ]
