# SPDX-License-Identifier: Apache-2.0
"""Errors: one sentence for the user, an exit status, and the next command to type."""

from __future__ import annotations


class NfprobeError(Exception):
    """An operation failed. `main` prints the sentence and the next command, and exits with the status.

    Args:
        sentence: what happened and why, one sentence, ending with a full stop.
        next_command: what to type next; empty when there is nothing useful to type.
    """

    exit_status = 1

    def __init__(self, sentence: str, next_command: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.next_command = next_command


class EndedError(NfprobeError):
    """The target's program has ended; its process may have replaced it by another one with exec (liveness.py)."""

    @classmethod
    def of(cls, pid: int) -> EndedError:
        """Returns the error for a process that is gone."""
        return cls(f"Process {pid} has ended.", "pgrep -a NAME")


class UsageError(NfprobeError):
    """The arguments or an input file are wrong."""

    exit_status = 2


class RefusedError(NfprobeError):
    """The target cannot be probed; nothing in it was changed."""

    exit_status = 3
