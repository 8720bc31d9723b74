# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one sentence for a person, an exit status, and the next command to type."""


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


class UsageError(NfprobeError):
    """The arguments or an input file are wrong."""

    exit_status = 2


class RefusedError(NfprobeError):
    """This target cannot be probed; nothing in it was touched."""

    exit_status = 3
