# SPDX-License-Identifier: Apache-2.0
"""How long after a packet has left its network function its trace can be found in Jaeger.

A busy testpmd, a real monitor, the stack's Jaeger (`make stack-build`), directly and through its Collector,
which waits a second before it decides (`decision_wait`). Jaeger is asked for its newest traces all the time;
a trace's age when it is first seen is the latency: from the end of the packet's transmit call.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from typing import Any

import numpy as np

from tests.benchmarks.busy_stack import say_if_missing, start_stack
from tests.benchmarks.busy_testpmd import Session, busy_testpmd, packets_per_second
from tests.benchmarks.rounds import make_parser, write_figures
from tests.support.testpmd import Testpmd

SPANS_PER_TRACE = 4  # packet, batch, receive, transmit
POLL_S = 0.01
RATES, RATES_SHORT = [10.0, 1000.0, 100_000.0], [1000.0]
SECONDS_SHORT = 1.0
PATHS = {"Jaeger": "JAEGER_OTLP", "Collector, Jaeger": "COLLECTOR_OTLP"}  # and the port that spans are sent to
PATHS_SHORT = ("Collector, Jaeger",)
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def newest(query_port: int, service: str, limit: int) -> list[dict[str, Any]]:
    """The traces that arrived last."""
    now_us = time.time_ns() // 1000
    query = {"service": service, "start": now_us - 10_000_000, "end": now_us + 1_000_000, "limit": limit}
    with _OPENER.open(
        f"http://127.0.0.1:{query_port}/api/traces?{urllib.parse.urlencode(query)}", timeout=30
    ) as answer:
        traces: list[dict[str, Any]] = json.load(answer)["data"]
    return traces


def age_s(trace: dict[str, Any]) -> float:
    """Since its last span ended."""
    return time.time() - max(span["startTime"] + span["duration"] for span in trace["spans"]) / 1e6


def watch(session: Session, query_port: int, service: str, seconds: float) -> tuple[list[float], float]:
    """Ages in seconds of the traces that became visible, when they did. The first answer is not counted.

    Returns them, and how long before now the first trace was made, in seconds.
    """
    deadline, seen, ages, first_s = None, set(), [], 0.0
    while deadline is None or time.monotonic() < deadline:
        session.check()
        traces = newest(query_port, service, 20)
        fresh = [trace for trace in traces if trace["traceID"] not in seen]
        seen.update(trace["traceID"] for trace in fresh)
        if deadline is None:
            deadline = time.monotonic() + seconds if traces else None
            first_s = seconds + max(map(age_s, traces), default=0.0)
            continue
        ages += map(age_s, fresh)
        time.sleep(POLL_S)
    return ages, first_s


def measure(
    testpmd: Testpmd, endpoint: str, query_port: int, spans_per_second: float, seconds: float
) -> dict[str, Any]:
    service = f"visible-{time.time_ns()}"
    share = spans_per_second / SPANS_PER_TRACE / packets_per_second(testpmd)
    options = ["--packets", "slow", "--sample", f"{share:.9f}", "--endpoint", endpoint, "--service", service]
    session = Session(testpmd.pid, *options, "--spool", "none")
    ages, ran_s = watch(session, query_port, service, seconds)
    summary = session.end()
    result: dict[str, Any] = {"wanted_spans_per_second": spans_per_second, "seen": len(ages)}
    result["spans_per_second"] = summary["spans"]["exported"] / ran_s
    result["dropped"] = summary["spans"]["dropped"]
    result["lost"] = sum(summary["records"]["lost"].values())
    if ages:
        names = ("low_s", "median_s", "high_s", "p99_s")
        result |= zip(names, np.quantile(ages, [0.25, 0.5, 0.75, 0.99]).tolist(), strict=True)
    return result


def show(result: dict[str, Any]) -> None:
    """Prints one measurement."""
    found = "none"
    if result["seen"]:
        quartiles = f"quartiles {result['low_s']:.3f} .. {result['high_s']:.3f}"
        found = f"median {result['median_s']:.3f} s ({quartiles}), p99 {result['p99_s']:.3f} s"
    print(
        f"{result['path']:18s} {result['wanted_spans_per_second']:9,.0f} spans/s asked,"
        f" {result['spans_per_second']:9,.0f} sent ({result['dropped']:,} dropped, {result['lost']:,} records lost):"
        f" {found} of {result['seen']} traces",
        flush=True,
    )


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement (default 10)")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="spans a second")
    arguments = parser.parse_args()
    if say_if_missing():
        return 0
    rates, seconds, paths = arguments.rates, arguments.seconds, PATHS
    if arguments.short:
        rates, seconds, paths = RATES_SHORT, SECONDS_SHORT, PATHS_SHORT
    results = []
    with ExitStack() as stop:
        stack, _ = start_stack(stop.enter_context(tempfile.TemporaryDirectory()), stop, "jaeger", "collector")
        testpmd = stop.enter_context(busy_testpmd())
        for name in paths:
            for rate in rates:
                endpoint = f"http://127.0.0.1:{stack.port(PATHS[name])}"
                result = measure(testpmd, endpoint, stack.port("JAEGER_QUERY"), rate, seconds)
                results.append({"path": name, **result})
                show(results[-1])
    write_figures(arguments.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
