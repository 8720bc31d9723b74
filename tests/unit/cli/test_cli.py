# SPDX-License-Identifier: Apache-2.0
"""The command line's frame: errors as two lines and a status, units in values, help of every verb."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.cli import main as cli
from otel_nfprobe.cli import options
from otel_nfprobe.cli.waiting import has_room
from otel_nfprobe.report.views.numbers import format_count, format_duration

ROOT = Path(__file__).parents[3]


class FakeVerb:
    """Does what it is told."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.what == "json":
            cli.print_json({"a": 1})
            return 0
        raise {
            "not-done": NfprobeError("It was not done.", "nfprobe status"),
            "usage": UsageError("This is wrong."),
            "refused": RefusedError("Go binaries are refused.", "nfprobe doctor 1"),
            "bug": ZeroDivisionError("by\nzero"),
            "interrupt": KeyboardInterrupt(),
        }[arguments.what]


@pytest.fixture(autouse=True)
def fake_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_load_command", lambda verb: FakeVerb())
    monkeypatch.delenv("NFPROBE_DEBUG", raising=False)


@pytest.mark.parametrize(
    ("what", "status", "error"),
    [
        ("not-done", 1, "nfprobe: It was not done.\nnext: nfprobe status\n"),
        ("usage", 2, "nfprobe: This is wrong.\nnext: nfprobe status --help\n"),
        ("refused", 3, "nfprobe: Go binaries are refused.\nnext: nfprobe doctor 1\n"),
        (
            "bug",
            1,
            "nfprobe: ZeroDivisionError: by zero (unexpected; NFPROBE_DEBUG=1 shows where)\nnext: nfprobe doctor\n",
        ),
        ("interrupt", 130, ""),
    ],
)
def test_errors_are_a_sentence_and_a_status(
    what: str, status: int, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["status", what]) == status
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", error)


def test_traceback_only_when_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("NFPROBE_DEBUG", "1")
    assert cli.main(["status", "bug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["status", "json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"a": 1}


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["status"], ["status", "json", "--no-such-option"]])
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    sentence, next_command = capsys.readouterr().err.splitlines()
    assert sentence.startswith("nfprobe: ")
    assert next_command.startswith("next: nfprobe ")
    assert next_command.endswith("--help")


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    out = capsys.readouterr().out
    assert all(verb in out for verb in cli.VERBS)


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_exists_and_has_help(verb: str) -> None:
    module, name, _ = cli.VERBS[verb]
    command = getattr(importlib.import_module(f"otel_nfprobe.cli.{module}"), name)()
    parser = argparse.ArgumentParser()
    command.prepare_parser(parser)
    assert command.__doc__
    assert parser.format_help()


def test_a_reader_that_leaves_is_no_traceback() -> None:
    # `head` closes the pipe after one line; a verb that prints on must not die noisily.
    code = (
        "import sys; from otel_nfprobe.cli import main as m\n"
        "class V:\n"
        " def prepare_parser(self, parser): pass\n"
        " def run(self, arguments):\n"
        "  for _ in range(100000): print('x' * 100)\n"
        "  return 0\n"
        "m._load_command = lambda verb: V()\n"
        "sys.exit(m.main(['status']))\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr is not None
    assert child.stderr.read() == ""
    child.stderr.close()
    assert child.wait() == 1


def test_module_runs_as_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "otel_nfprobe", "--version"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.startswith("nfprobe 0.")


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (options.parse_duration_ns, "50us", 50_000),
        (options.parse_duration_ns, "50 µs", 50_000),
        (options.parse_duration_ns, "1.5ms", 1_500_000),
        (options.parse_duration_ns, "10s", 10**10),
        (options.parse_duration_ns, "2m", 120 * 10**9),
        (options.parse_duration_ns, "7ns", 7),
        (options.parse_duration_ns, "0", 0),
        (options.parse_seconds, "10s", 10.0),
        (options.parse_seconds, "2.5", 2.5),
        (options.parse_seconds, "250ms", 0.25),
        (options.parse_bytes, "16MiB", 16 << 20),
        (options.parse_bytes, "64k", None),
        (options.parse_bytes, "64K", 65536),
        (options.parse_bytes, "1GB", 10**9),
        (options.parse_bytes, "4096", 4096),
        (options.parse_fraction, "0.1%", 0.001),
        (options.parse_fraction, "0.001", 0.001),
        (options.parse_fraction, "1", 1.0),
        (options.parse_fraction, "101%", None),
        (options.parse_fraction, "-1", None),
        (options.parse_fraction, "5us", None),
        (options.parse_duration_ns, "50", None),
        (options.parse_duration_ns, "-1s", None),
        (options.parse_duration_ns, "", None),
        (options.parse_duration_ns, "1e3s", None),
        (options.parse_duration_ns, "10 parsecs", None),
        (options.parse_seconds, "nan", None),
    ],
)
def test_units(parse, text: str, value: float | None) -> None:
    if value is None:
        with pytest.raises(argparse.ArgumentTypeError, match="such as"):
            parse(text)
    else:
        assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (12_345, "12.3 us"),
        (999_960, "1.00 ms"),
        (2_500_000, "2.50 ms"),
        (123e9, "123 s"),
        (float("nan"), "-"),
    ],
)
def test_durations_as_text(duration_ns: float, text: str) -> None:
    assert format_duration(duration_ns) == text


def test_counts_as_text() -> None:
    assert format_count(1234567) == "1,234,567"


def test_a_line_is_not_written_where_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with open(reading, "rb", buffering=0) as reader, open(writing, "w") as stream:
        assert has_room(stream)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        assert not has_room(stream)
        reader.read(1 << 20)
        assert has_room(stream)
    assert has_room(io.StringIO())
