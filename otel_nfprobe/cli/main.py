# SPDX-License-Identifier: Apache-2.0
"""`nfprobe VERB ...`: finds the verb's module, runs it, and turns errors into two lines and an exit status.

Each verb is a class in its own file: its docstring is the help, `prepare_parser` declares the arguments, `run` does the
work and returns the exit status. Only the module of the used verb is imported.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Protocol

from otel_nfprobe import __version__
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.base.gc_tuning import collection_paused
from otel_nfprobe.base.printable import PrintableStream
from otel_nfprobe.cli.log import Level, check_log, format_message, is_shown
from otel_nfprobe.cli.waiting import erase

EXIT_DONE = 0
EXIT_NOT_DONE = 1
OPENBLAS_THREADS = "OPENBLAS_NUM_THREADS"

# verb -> (module in otel_nfprobe.cli, class in it, one line for `nfprobe --help`)
VERBS: Mapping[str, tuple[str, str, str]] = {
    "attach": ("attach", "AttachCommand", "put probes into a running process, export or record, detach"),
    "run": ("run", "RunCommand", "start a program with probes on from its first instruction"),
    "agent": ("agent", "AgentCommand", "measure all processes that match the rules of a file, while it runs"),
    "detach": ("detach", "DetachCommand", "end the session on a process, or clean up after a monitor that was killed"),
    "status": ("status", "StatusCommand", "sessions, with their cost and losses"),
    "top": ("top", "TopCommand", "threads, functions and late packets of a process, second by second"),
    "functions": ("functions", "FunctionsCommand", "what can be probed in a process or ELF file, and how"),
    "doctor": ("doctor", "DoctorCommand", "what this machine, user and target allow"),
    "counters": ("counters", "CountersCommand", "show or change the counters that a running session reads"),
    "stats": ("stats", "StatsCommand", "how long the calls of one function take"),
    "report": ("report", "ReportCommand", "functions, batches, packets and causes of a recording"),
    "why": ("why", "WhyCommand", "what made packets late in a chain, wherever it was, from several recordings"),
    "diff": ("diff", "DiffCommand", "what changed from one recording to another, function by function"),
    "tables": ("tables", "TablesCommand", "write recordings as Parquet: calls, batches, packets, causes, parts"),
    "query": ("query", "QueryCommand", "ask recordings or their tables in SQL"),
    "ids": ("ids", "IdsCommand", "the id of each packet of a capture file, to search for"),
    "export": ("export", "ExportCommand", "send a recording, or spooled spans, to an OTLP endpoint"),
}


class Command(Protocol):
    """Interface of a verb's class."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declares the verb's arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Does the work. Returns the exit status; raises NfprobeError with the sentence to print."""


class _Parser(argparse.ArgumentParser):
    # Usage errors are reported like other errors; the long list of options is printed only on request.
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[:1].upper()}{message[1:].rstrip('.')}.", f"{self.prog} --help")


def print_json(value: Any) -> None:
    """Prints a JSON value as one line on standard output; with `--json` it is the last line."""
    print(json.dumps(value, separators=(",", ":"), allow_nan=False), flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the verb named in argv (default: the process's arguments) and returns the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (it was closed at start)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    with _printable_output():
        return _main(argv)


def _main(argv: list[str]) -> int:
    try:
        return _run(argv)
    except NfprobeError as error:
        tell(error.sentence, error.next_command or _help_command(argv), Level.ERROR)
        return error.exit_status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _give_up_output()
        return EXIT_NOT_DONE
    except Exception as error:
        _print_unexpected(error)
        return EXIT_NOT_DONE


@contextmanager
def _printable_output() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = PrintableStream(sys.stdout), PrintableStream(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


# The reader of standard output has closed it, or its disk is full: avoid an error from the interpreter's own flush at
# exit.
def _give_up_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell_error(error: Exception) -> None:
    """Reports an error that does not end the verb."""
    with suppress(OSError):
        if isinstance(error, NfprobeError):
            tell(error.sentence, error.next_command)
        else:
            _print_unexpected(error)


def _print_unexpected(error: Exception) -> None:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _give_up_output()
        tell(f"The output cannot be written: {error.strerror}.", "df -h", Level.ERROR)
        return
    if os.environ.get("NFPROBE_DEBUG") == "1":
        traceback.print_exc()
    sentence = " ".join(f"{type(error).__name__}: {error}".split())
    tell(f"{sentence} (unexpected; NFPROBE_DEBUG=1 shows where)", "nfprobe doctor", Level.ERROR)


def _run(argv: list[str]) -> int:
    check_log()
    command, arguments = parse(argv)
    status = command.run(arguments)
    sys.stdout.flush()
    return status


def parse(argv: list[str]) -> tuple[Command, argparse.Namespace]:
    """Parses the verb and its arguments.

    Raises:
        UsageError: they are invalid.
    """
    parser = _Parser(prog="nfprobe", description="Traces packets through a running network function.")
    parser.add_argument("--version", action="version", version=f"nfprobe {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    chosen = _find_verb(argv)
    command: Command | None = None
    for verb, (_, _, summary) in VERBS.items():
        if verb != chosen:
            verbs.add_parser(verb, help=summary)
            continue
        command = _load_command(verb)
        verb_parser = verbs.add_parser(
            verb,
            help=summary,
            description=command.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.prepare_parser(verb_parser)
    arguments = parser.parse_args(argv)
    assert command is not None
    return command, arguments


def _find_verb(argv: list[str]) -> str | None:
    # The program itself has no option with a value, so the first word that is not an option is the verb.
    return next((word for word in argv if not word.startswith("-")), None)


def _help_command(argv: list[str]) -> str:
    verb = _find_verb(argv)
    return f"nfprobe {verb} --help" if verb in VERBS else "nfprobe --help"


# Ctrl-C while modules are loaded ends the process directly: an exception inside a half-loaded extension module would
# abort it.
@contextmanager
def _quiet_interrupt() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _single_threaded_algebra() -> Iterator[None]:
    """Otherwise NumPy's OpenBLAS starts a thread per processor, which spins for a while and is never used."""
    if OPENBLAS_THREADS in os.environ:
        yield
        return
    os.environ[OPENBLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[OPENBLAS_THREADS]  # child processes must not inherit it


def _load_command(verb: str) -> Command:
    module_name, class_name, _ = VERBS[verb]
    with _quiet_interrupt(), _single_threaded_algebra(), collection_paused():
        module = importlib.import_module(f"otel_nfprobe.cli.{module_name}")
    command: Command = getattr(module, class_name)()
    return command


def tell(sentence: str, next_command: str = "", level: Level | None = None) -> None:
    """Prints a message on standard error: one line each, even if names or other sessions' texts contain newlines.

    Args:
        level: default: a warning if there is a command to type next.

    Raises OSError: standard error cannot be written.
    """
    if level is None:
        level = Level.WARNING if next_command else Level.INFO
    erase()
    if is_shown(level):
        print(format_message(sentence, next_command, level), file=sys.stderr, flush=bool(next_command))


if __name__ == "__main__":
    sys.exit(main())
