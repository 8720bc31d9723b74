# SPDX-License-Identifier: Apache-2.0
"""The names of the strategies, in the order in which they are tried (analysis.py chooses)."""

from __future__ import annotations

IN_STACK_CALL = "in-stack call"
RELOCATED_BODY = "relocated body"
COPIED_ARGUMENTS = "copied arguments"
GOT_SLOT = "GOT slot"
ENTRY_ONLY = "entry only"

STRATEGIES = {  # by command-line name
    "in-stack": IN_STACK_CALL,
    "relocated": RELOCATED_BODY,
    "copied": COPIED_ARGUMENTS,
    "got": GOT_SLOT,
    "entry": ENTRY_ONLY,
}


def find_strategy(text: str) -> str | None:
    """Returns the command-line name of a strategy given by that or its full name, in any case; None: no such
    strategy.
    """
    wanted = text.lower().replace("-", " ").replace("_", " ").strip()
    for name, full in STRATEGIES.items():
        if wanted in (name.replace("-", " "), full.lower().replace("-", " ")):
            return name
    return None
