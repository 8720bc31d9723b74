# SPDX-License-Identifier: Apache-2.0
"""`nfprobe top`: a second as text, and the page with its keys, on a terminal of 80 by 24."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from textual.widgets import DataTable, Static

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.main import main
from otel_nfprobe.cli.notices import hold_messages, notify
from otel_nfprobe.cli.top_page import TopPage, draw_sparkline, run_page
from otel_nfprobe.report.views.live_table import render_live


def function(id: int, name: str, calls: float, p99: int, share: float | None) -> dict[str, Any]:
    times = {"p50_ns": p99 // 2, "p99_ns": p99, "max_ns": 2 * p99}
    return {"id": id, "name": name, "calls_per_s": calls, **times, "self_share": share}


def view_at(second: int, late: int = 0) -> dict[str, Any]:
    """A second of a session that was made up."""
    thread = {"tid": 71, "name": "worker", "packets_per_s": 64000.0, "batches_per_s": 2000.0}
    slow = {"id": "00000000000000ab", "flow": "udp 10.0.0.1:1 > 10.0.0.2:2", "done_unix_ns": 1, "latency_ns": 1_700_000}
    slow |= {"cause": "queue", "function": "fw_output", "by": None, "excess_ns": 1_600_000}
    return {
        "pid": 42,
        "name": "firewall",
        "elapsed_s": float(second),
        "threads": [thread | {"batch_size": 32.0, "busy_share": 0.25, "poll_share": 0.5, "lost": 0}],
        "functions": [
            function(0, "fw_classify", 2000.0 * second, 4000, 0.6),
            function(1, "fw_output", 2000.0, 90_000, 0.3),
            function(2, "a \x1b name", 1.0, 100, None),
        ],
        "late": {"over_ns": 900_000, "packets": late, "slowest": [slow] * late},
        "lost": 0,
        "cost": {"share_of_core": 0.0123, "probes": 3},
    }


def test_a_second_as_text() -> None:
    text = render_live(view_at(7, late=2))
    assert text.startswith("firewall (42)  7 s  3 probes take 1.23 % of a core\n")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["worker"] == ["worker", "71", "64,000", "2,000", "32.0", "25", "%", "50", "%", "0"]
    assert rows["fw_classify"][1:2] + rows["fw_classify"][-2:] == ["14,000", "60.0", "%"]
    assert "2 late packets, over" in text
    assert "1.70 ms  queue fw_output\n             00000000000000ab  udp 10.0.0.1:1 > 10.0.0.2:2\n" in text
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    idle = view_at(1) | {"threads": [], "functions": [], "lost": 3}
    assert render_live(idle).splitlines()[0].endswith("3 records lost")


def test_sparklines() -> None:
    assert draw_sparkline([0, 4, 8]) == " ▄█"
    assert draw_sparkline([0, 0]) == draw_sparkline([]) == ""


async def _use_page() -> None:
    stopping = threading.Event()
    page = TopPage(stopping)
    async with page.run_test(size=(80, 24)) as pilot:
        for second in (1, 2, 3):
            page.show(view_at(second, late=second == 2))
        await pilot.pause()
        functions, session = page.query_one("#functions", DataTable), page.query_one("#session", Static)

        def names() -> list[str]:
            return [functions.get_row_at(row)[0] for row in range(functions.row_count)]

        assert names() == ["fw_classify", "fw_output", "a \\x1b name"]
        assert functions.get_row_at(0)[-1] == "▃▅█"
        assert page.query_one("#threads", DataTable).get_row_at(0)[0] == "worker"
        assert "fw_output" in str(page.query_one("#late", Static).render())
        for expected in ("calls/s", "p99"):
            await pilot.press("s")
            assert f"sorted by {expected}" in str(session.render())
        assert names() == ["fw_output", "fw_classify", "a \\x1b name"]
        await pilot.press("slash")
        await pilot.press(*"OUT", "enter")
        assert names() == ["fw_output"]
        await pilot.press("p")
        assert "PAUSED" in str(session.render())
        page.show(view_at(9))
        assert "9 s" not in str(session.render())
        await pilot.press("p")
        assert "9 s" in str(session.render())
        assert not stopping.is_set()
        await pilot.press("q")
        assert stopping.is_set()


def test_the_page_and_its_keys() -> None:
    asyncio.run(_use_page())


def test_messages_wait_for_the_end_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with hold_messages() as held:
        notify("first", "ls")
        assert held == ["nfprobe: first\nnext: ls"]
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "nfprobe: first\nnext: ls\n"


def test_what_the_session_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopPage, "run", lambda self: self.run_async_headless())
    monkeypatch.setattr(
        TopPage, "run_async_headless", lambda self: asyncio.run(self.run_async(headless=True)), raising=False
    )

    def fail(show: object) -> None:
        raise UsageError("so it is")

    with pytest.raises(UsageError, match="so it is"):
        run_page(fail, threading.Event())


@pytest.mark.parametrize("option", [("--record", "x"), ("--endpoint", "http://localhost:4317"), ("--follow-forks",)])
def test_options_of_what_it_does_not_write(option: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "1", *option]) == 2
    assert f"nfprobe top writes nothing: {option[0]} is attach's." in capsys.readouterr().err
