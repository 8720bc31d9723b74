# SPDX-License-Identifier: Apache-2.0
"""The page of `nfprobe top` on a terminal. The session runs in a thread of its own and is shown here each second."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Footer, Input, Static

from otel_nfprobe.base.printable import printable_value
from otel_nfprobe.report.views.live_table import (
    FUNCTION_HEADINGS,
    THREAD_HEADINGS,
    describe_late,
    describe_session,
    function_cells,
    thread_cells,
)

Show = Callable[[dict[str, Any]], None]
SORTED_BY = {"share": "self_share", "calls/s": "calls_per_s", "p99": "p99_ns", "max": "max_ns", "name": "name"}
LATE_KEPT = 50
HISTORY = 12  # seconds of a sparkline
BARS = " ▁▂▃▄▅▆▇█"


class TopPage(App[None]):
    """Threads, functions and late packets.

    Args:
        stopping: set when the user quits.
    """

    CSS = """
    #session { height: 1; text-style: bold; }
    #threads { height: auto; max-height: 7; }
    #functions { height: 1fr; }
    #late { height: 7; border-top: solid; }
    #filter { display: none; height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit", "quit"),
        ("s", "sort", "sort"),
        ("slash", "filter", "filter"),
        ("p", "pause", "pause"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, stopping: threading.Event) -> None:
        super().__init__()
        self._stopping = stopping
        self._sorts = deque(SORTED_BY)
        self._pattern = ""
        self._is_paused = False
        self._late: deque[str] = deque(maxlen=LATE_KEPT)
        self._calls: dict[int, deque[float]] = {}
        self._view: dict[str, Any] | None = None

    def compose(self) -> ComposeResult:
        """The widgets, from top to bottom."""
        yield Static("the first second ...", id="session", markup=False)
        yield DataTable(id="threads", show_cursor=False)
        yield DataTable(id="functions", cursor_type="row", zebra_stripes=True)
        yield Static("no late packets yet", id="late", markup=False)
        yield Input(placeholder="part of a function's name; Enter", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Begins with tables that have headings only."""
        self.query_one("#threads", DataTable).add_columns(*THREAD_HEADINGS)
        self.query_one("#functions", DataTable).add_columns(*FUNCTION_HEADINGS, "calls, the last seconds")

    def show(self, view: dict[str, Any]) -> None:
        """Shows one second; nothing changes while it is paused."""
        for function in view["functions"]:
            self._calls.setdefault(function["id"], deque(maxlen=HISTORY)).append(function["calls_per_s"])
        self._late.extendleft(reversed(describe_late(printable_value(view))[1:]))
        self._view = printable_value(view)
        if not self._is_paused:
            self._draw()

    async def action_quit(self) -> None:
        """Ends the session; the page ends when its thread does."""
        self._stopping.set()
        self.query_one("#session", Static).update("detaching ...")

    def action_sort(self) -> None:
        """Sorts functions by the next column."""
        self._sorts.rotate(-1)
        self._draw()

    def action_pause(self) -> None:
        """Holds the page still, or lets it go on."""
        self._is_paused = not self._is_paused
        self._draw()

    def action_filter(self) -> None:
        """Asks for a part of a name."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Shows only functions with this part of a name."""
        self._pattern = event.value
        event.input.display = False
        self.query_one("#functions", DataTable).focus()
        self._draw()

    def _draw(self) -> None:
        view = self._view
        if view is None:
            return
        by = self._sorts[0]
        state = f"  sorted by {by}" + (f"  with {self._pattern!r}" if self._pattern else "")
        state += "  PAUSED" if self._is_paused else ""
        self.query_one("#session", Static).update(describe_session(view) + state)
        _fill(self.query_one("#threads", DataTable), [thread_cells(thread) for thread in view["threads"]])
        functions = [one for one in view["functions"] if self._pattern.lower() in one["name"].lower()]
        is_name = SORTED_BY[by] == "name"
        functions.sort(key=lambda one: one["name"] if is_name else -(one[SORTED_BY[by]] or 0.0))
        rows = [[*function_cells(one), draw_sparkline(self._calls.get(one["id"], ()))] for one in functions]
        _fill(self.query_one("#functions", DataTable), rows)
        if self._late:
            self.query_one("#late", Static).update("\n".join(self._late))


def _fill(table: DataTable[str], rows: list[list[str]]) -> None:
    """Replaces the rows; the cursor and the scroll position stay."""
    row, offset = table.cursor_row, table.scroll_offset.y
    table.clear()
    table.add_rows(rows)
    if rows and table.show_cursor:
        table.move_cursor(row=min(row, len(rows) - 1), scroll=False)
    table.scroll_to(y=offset, animate=False)


def draw_sparkline(values: Any) -> str:
    """Returns a character for each value, as high as it is beside the largest."""
    numbers = [float(value) for value in values]
    largest = max(numbers, default=0.0)
    if not largest:
        return ""
    return "".join(BARS[round(number / largest * (len(BARS) - 1))] for number in numbers)


def run_page(run: Callable[[Show], None], stopping: threading.Event) -> None:
    """Shows a session until the user quits, it is stopped, or the target ends.

    Args:
        run: runs the session, with what shows a second of it.
        stopping: set when the user quits.

    Raises:
        NfprobeError: from the session.
    """
    page = TopPage(stopping)
    failed: list[BaseException] = []

    def measure() -> None:
        try:
            run(lambda view: page.call_from_thread(page.show, view))
        except BaseException as error:
            failed.append(error)
        finally:
            page.call_from_thread(page.exit)

    page.call_later(lambda: threading.Thread(target=measure, name="nfprobe-top").start())
    page.run()
    if failed:
        raise failed[0]
