# SPDX-License-Identifier: Apache-2.0
"""Where reports go: to standard output, or to a private file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import tell
from otel_nfprobe.recording.outputfile import open_output


def write_out(path: str | None, text: str) -> None:
    """Writes a report to a file, private like the recording, or to standard output."""
    if path:
        with open_report(path) as output:
            output.write(text.encode())
        tell(f"The report was written to {path}.")
    else:
        sys.stdout.write(text)


@contextmanager
def open_report(path: str) -> Iterator[BinaryIO]:
    """Opens a file that is private like the recording, since it contains addresses.

    Raises:
        NfprobeError: it cannot be written; also when the block or the end of it raises OSError.
    """
    try:
        with open(open_output(path), "wb") as output:
            yield output
    except OSError as error:
        folder = os.path.dirname(path) or "."
        raise NfprobeError(f"Cannot write {path}: {error.strerror}.", f"ls -ld {folder}") from None
