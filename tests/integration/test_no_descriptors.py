# SPDX-License-Identifier: Apache-2.0
"""A monitor that has run out of descriptors takes its probes out all the same."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.monitor import reserve
from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.target.target import Target
from tests.support.probed import Probed, events_are_closed, has_started, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]


def text_of(pid: int) -> list[str]:
    """Digests of the code of its C library."""
    target = Target(pid)
    return list(text_digests(target, [module for module in target.modules() if "libc.so" in module.path]).values())


@pytest.fixture
def sleeping(spawn: Callable[..., subprocess.Popen[str]]) -> int:
    process = spawn("sleep", "600")
    assert wait_until(lambda: has_started(process.pid))
    return process.pid


def _open_one() -> int | None:
    try:
        return os.open("/dev/null", os.O_RDONLY)
    except OSError:
        return None


@contextmanager
def used_up() -> Iterator[None]:
    """No descriptor is free: all that may be open are."""
    assert wait_until(events_are_closed)  # those of an earlier session would be free again meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    leaked: list[int] = []
    try:
        while (descriptor := _open_one()) is not None:
            leaked.append(descriptor)
        yield
    finally:
        for descriptor in leaked:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_probes_are_taken_out(sleeping: int) -> None:
    before = text_of(sleeping)
    # Not drained before the end: a thread that drains may be about to map the first rings when none is free.
    session = Probed(sleeping, ["libc.so*:mem*"], drained=False)
    session.__enter__()
    assert text_of(sleeping) != before
    with used_up():
        session.__exit__(None, None, None)
    assert session.not_restored == []
    assert text_of(sleeping) == before


def test_an_attach_that_fails_half_way_takes_them_out(sleeping: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = text_of(sleeping)
    session = Probed(sleeping, ["libc.so*:mem*"])
    leaking = used_up()

    def leak(*_: object) -> None:
        leaking.__enter__()
        raise NfprobeError("Something went wrong.")

    monkeypatch.setattr(session.monitor.attachment, "make_follower", leak)
    try:
        with pytest.raises(NfprobeError, match="Something went wrong"):
            session.__enter__()
    finally:
        leaking.__exit__(None, None, None)
    assert text_of(sleeping) == before


def test_without_a_reserve_nothing_is_touched(sleeping: int) -> None:
    before = text_of(sleeping)
    session = Probed(sleeping, ["libc.so*:mem*"])
    while reserve._spares:
        os.close(reserve._spares.pop())
    with used_up(), pytest.raises(NfprobeError, match=r"The limit of open files is too low \(512\)"):
        session.monitor.attachment.attach()
    assert text_of(sleeping) == before
    assert "nfprobe" not in Path(f"/proc/{sleeping}/maps").read_text()
