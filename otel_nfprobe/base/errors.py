# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one sentence for a person, an exit status, and the next command to type."""

from __future__ import annotations


class NfprobeError(Exception):
    """Something was not done. `main` prints the sentence and the next command, and exits with the status.

    Args:
        sentence: what happened and why, one sentence, ending with a full stop.
        next_command: what to type next; empty when there is nothing sensible to type.
    """

    exit_status = 1

    def __init__(self, sentence: str, next_command: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.next_command = next_command


class EndedError(NfprobeError):
    """The target's program has ended; the process may live on with another one (liveness.py)."""

    @classmethod
    def of(cls, pid: int) -> EndedError:
        """The same of a process that is gone."""
        return cls(f"Process {pid} has ended.", "pgrep -a NAME")


class UsageError(NfprobeError):
    """The arguments or an input file are wrong."""

    exit_status = 2


class RefusedError(NfprobeError):
    """This target cannot be probed; nothing in it was touched."""

    exit_status = 3
