# SPDX-License-Identifier: Apache-2.0
"""Time that a function was blocked in: page faults, system calls, waits for other threads."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.base.columns import NONE
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind
from tests.support.absences import make_switches
from tests.unit.causes.test_latency_causes import WORK, Story, read


def block(kind: AbsenceKind, out: int, back: int, name: bytes = b"", text: bytes = b"", flags: int = 0) -> np.ndarray:
    row = make_switches([(out, back, 0, flags)])
    row["kind"], row["name"], row["text"] = kind, name, text
    return row


@pytest.mark.parametrize(
    ("row", "kind", "by"),
    [
        (block(AbsenceKind.CALL, 1200, 6000, b"fsync", b"ext4_sync_file"), CauseKind.FAULT, b"fsync: ext4_sync_file"),
        (
            block(AbsenceKind.FAULT, 1200, 6000, text=b"/lib/x.so", flags=AbsenceFlag.MAJOR),
            CauseKind.FAULT,
            b"major page fault of /lib/x.so",
        ),
        (block(AbsenceKind.WAIT, 1200, 6000, b"futex"), CauseKind.WAIT, b"futex"),
    ],
)
def test_the_function_and_what_it_was_blocked_in_are_named(row: np.ndarray, kind: CauseKind, by: bytes) -> None:
    story = Story()
    story.batch(1000, (100, 100 + 5000, 100))
    story.rows.append(row)
    cause = story.cause(0)
    assert read(cause, "kind", "function", "by", "excess_ticks", "batch") == (kind, WORK, by, 4800, 0)
    assert read(cause["parts"][1], "kind", "function", "ticks") == (CauseKind.OWN, WORK, 200)


def test_a_sleep_without_a_place_is_the_functions_own() -> None:
    story = Story()
    story.batch(1000, (100, 100 + 5000, 100))
    story.rows.append(make_switches([(1200, 6000, 0, 0)]))
    assert read(story.cause(0), "kind", "function", "by") == (CauseKind.OWN, WORK, b"")


def test_many_short_faults_add_up() -> None:
    story = Story()
    story.batch(1000, (100, 100 + 5000, 100))
    story.rows += [block(AbsenceKind.FAULT, at, at + 30) for at in range(1200, 6000, 50)]
    cause = story.cause(0)
    assert read(cause, "kind", "function", "by") == (CauseKind.FAULT, WORK, b"page fault")
    assert cause["excess_ticks"] == 96 * 30


def test_a_sleep_between_batches_is_a_wait_for_work() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.rows.append(block(AbsenceKind.CALL, 1310, 8990, b"epoll_wait"))
    story.batch(9000, (100, 100 + 900, 100), arrival=8995)
    cause = story.cause(1)
    assert read(cause, "kind", "function") == (CauseKind.OWN, WORK)
    assert CauseKind.FAULT not in cause["parts"]["kind"]
    assert cause["function"] != NONE
