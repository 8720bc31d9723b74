# SPDX-License-Identifier: Apache-2.0
"""Memory over time: a monitor of a busy testpmd that exports to a Collector, by the minute.

Prints packets a second, the monitor's resident memory and CPU, and at the end what was lost and dropped, and the
packets that the monitor has counted beside testpmd's own count. The Collector and Jaeger are the stack's
(`make stack-build`). `make bench` runs it for some minutes; the hour of the requirements is `--minutes 60`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from typing import Any

from tests.benchmarks.busy_stack import say_if_missing, start_stack
from tests.benchmarks.busy_testpmd import Session, busy_testpmd, cpu_seconds, resident_mib
from tests.benchmarks.rounds import make_parser, write_figures
from tests.support.testpmd import Testpmd

SHORT_MINUTES, SHORT_INTERVAL_S = 1 / 30, 1.0


def watch(session: Session, testpmd: Testpmd, minutes: float, interval_s: float) -> list[dict[str, float]]:
    """One row per interval, and one at least."""
    rows: list[dict[str, float]] = []
    pid, end = session.process.pid, time.monotonic() + 60 * minutes
    packets, cpu, begun = testpmd.telemetry()[1], cpu_seconds(pid), time.monotonic()
    while not rows or time.monotonic() < end:
        time.sleep(min(interval_s, max(0.1, end - time.monotonic())))
        session.check()
        seconds = time.monotonic() - begun
        rows.append(
            {
                "packets_per_second": (testpmd.telemetry()[1] - packets) / seconds,
                "resident_mib": resident_mib(pid),
                "cores": (cpu_seconds(pid) - cpu) / seconds,
            }
        )
        packets, cpu, begun = testpmd.telemetry()[1], cpu_seconds(pid), time.monotonic()
        testpmd.drain_output()
        row = rows[-1]
        print(
            f"{len(rows):4d}  {row['packets_per_second']:12,.0f} packets/s  {row['resident_mib']:8.1f} MiB"
            f"  {row['cores']:5.2f} cores",
            flush=True,
        )
    return rows


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--interval", type=float, default=30, metavar="SECONDS", help="of one row (default 30)")
    parser.add_argument("--sample", default="0.0001", help="share of packets that become spans (default 0.0001)")
    parser.add_argument("--packets", default="slow", choices=("slow", "all"), help="as of nfprobe attach")
    arguments = parser.parse_args()
    if say_if_missing():
        return 0
    extent = (SHORT_MINUTES, SHORT_INTERVAL_S) if arguments.short else (arguments.minutes, arguments.interval)
    with ExitStack() as stop:
        stack, _ = start_stack(stop.enter_context(tempfile.TemporaryDirectory()), stop, "jaeger", "collector")
        testpmd = stop.enter_context(busy_testpmd())
        endpoint = f"http://127.0.0.1:{stack.port('COLLECTOR_OTLP')}"
        options = ["--packets", arguments.packets, "--sample", arguments.sample, "--endpoint", endpoint]
        before = testpmd.telemetry()
        session = Session(testpmd.pid, *options)
        rows = watch(session, testpmd, *extent)
        summary: dict[str, Any] = session.end()
        own = [now - then for now, then in zip(testpmd.telemetry(), before, strict=True)]
    spans = summary["spans"]
    print(f"spans exported {spans['exported']:,}, dropped {spans['dropped']:,}; lost {summary['records']['lost']}")
    print(f"packets by the monitor {summary['packets']}, by testpmd itself, a moment longer: received and sent {own}")
    write_figures(arguments.json, {"interval_s": extent[1], "rows": rows, "summary": summary, "own": own})
    return 0


if __name__ == "__main__":
    sys.exit(main())
