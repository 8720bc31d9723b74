# SPDX-License-Identifier: Apache-2.0
"""Where reports go: to standard output, or to a private file."""

from __future__ import annotations

import os
import sys

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import tell
from otel_nfprobe.recording.outputfile import open_output


def write_out(path: str | None, text: str) -> None:
    """Writes a report to a file, private like the recording, or to standard output."""
    if path:
        _write(path, text)
        tell(f"The report was written to {path}.")
    else:
        sys.stdout.write(text)


def _write(path: str, text: str) -> None:
    # Private like the recording: it contains addresses.
    try:
        with open(open_output(path), "w", encoding="utf-8") as output:
            output.write(text)
    except OSError as error:
        folder = os.path.dirname(path) or "."
        raise NfprobeError(f"Cannot write {path}: {error.strerror}.", f"ls -ld {folder}") from None
