# SPDX-License-Identifier: Apache-2.0
"""What it costs a network function that nfprobe records why its threads did not run: interrupts, softirqs, other tasks,
steal time, page faults and sleeps.

Sessions with the default probes and `--packets slow`, with and without it, in pairs, in a random order: dpdk-testpmd
and Open vSwitch forward as fast as they can; examples/firewall polls for packets at an even pace; mosquitto sleeps
between messages. CPU time of the thread that has the packets for each of them; how many it had in a second, and the
99.9th percentile of their latency. Prints paired differences with quartiles. Rounds in which records
were lost are dropped.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.monitor.latecapture import SLOW
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.pipeline.statistics import Distribution
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_testpmd import OVS, start, threads_ns
from tests.benchmarks.measured_session import BlindMonitor, Session, attached, choose_by_trial, without_frees
from tests.benchmarks.rounds import NO_FIGURE, Spread, Watch, find_cpus, make_parser, spread, write_figures
from tests.support.paced_nfs import FIREWALL, paced_firewall, paced_mosquitto
from tests.support.traffic import make_frames, write_pcap

RING_BYTES = 16 << 20
TAIL = 0.999
FUNCTIONS_SHORT = ("testpmd", "mosquitto")  # one that polls, one that sleeps
UNITS = ("cpu_ns", "packets_per_s", "tail_ns")


class Measured(NamedTuple):
    """One round; not numbers where records were lost."""

    cpu_ns: float = NO_FIGURE
    packets_per_s: float = NO_FIGURE
    tail_ns: float = NO_FIGURE


@dataclass(frozen=True)
class Running:
    """A network function under its load, with the probes that a session with no option has.

    Attributes:
        read_packets: how many it has received, by its own count; None: it has none.
    """

    target: Target
    choice: Choice
    read_packets: Callable[[], int] | None = None


@contextmanager
def at_full_rate(mode: str, cpus: tuple[int, int]) -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "bench.pcap"
        write_pcap(capture, make_frames(1024))
        forwarder = start(mode, 0, capture, cpus)
        os.sched_setaffinity(0, {cpus[0]})
        try:
            target = Target(forwarder.pid)
            yield Running(target, without_frees(forwarder.choose(target)), forwarder.packets)
        finally:
            forwarder.stop()


@contextmanager
def firewall(cpus: tuple[int, int]) -> Iterator[Running]:
    with paced_firewall(cpus[1]) as nf:
        target = Target(nf.pid)
        yield Running(target, choose(target, choose_adapter(str(FIREWALL / "firewall.yaml"), target), [], []))


@contextmanager
def mosquitto(cpus: tuple[int, int]) -> Iterator[Running]:
    with paced_mosquitto(cpus[1]) as nf:
        target = Target(nf.pid)
        yield Running(target, without_frees(choose_by_trial("auto", target)))


FUNCTIONS: dict[str, Callable[[tuple[int, int]], AbstractContextManager[Running]]] = {
    "testpmd": lambda cpus: at_full_rate("macswap", cpus),
    "ovs": lambda cpus: at_full_rate(OVS, cpus),
    "firewall": firewall,
    "mosquitto": mosquitto,
}


def measure(nf: Running, make: type[Monitor], seconds: float, before_s: float) -> Measured:
    session = Session(RING_BYTES, SLOW, make=make)
    with attached(nf.target, nf.choice, session, lambda sentence: None) as monitor:
        monitor.run(before_s, lambda: None)
        read = nf.read_packets or (lambda: monitor.snapshot().received()[1])
        watch, before, begun_ns, begun_s = Watch(monitor), read(), threads_ns(nf.target.pid), time.monotonic()
        latencies = find_latencies(monitor)
        monitor.drain.run_until(begun_s + seconds)
        elapsed_s = time.monotonic() - begun_s
        spent_ns = max(ns - begun_ns.get(tid, 0) for tid, ns in threads_ns(nf.target.pid).items())
        packets = read() - before
        if watch.has_lost() or not packets:
            return Measured()
        tail_ticks = find_quantile(find_latencies(monitor) - latencies, TAIL)
        tail_ns = tail_ticks / monitor.drain.clock.ticks_per_second * 1e9
        return Measured(spent_ns / packets, packets / elapsed_s, tail_ns)


def find_latencies(monitor: Monitor) -> Counter[int]:
    """How many packets had which latency in ticks, to a few percent."""
    return Counter(dict(monitor.drain.statistics.histogram(Distribution.PACKET_TICKS).tolist()))


def find_quantile(values: Counter[int], quantile: float) -> float:
    edges = sorted(values)
    shares = np.cumsum([values[edge] for edge in edges]) / values.total()
    return float(edges[int(np.searchsorted(shares, quantile))])


def compare(nf: Running, rounds: int, seconds: float, before_s: float) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {"without": [], "with": []}
    makes = {"without": BlindMonitor, "with": Monitor}
    for _ in range(rounds):
        for label in random.sample(list(makes), len(makes)):
            found[label].append(measure(nf, makes[label], seconds, before_s))
    return found


def summarise(name: str, found: dict[str, list[Measured]]) -> dict[str, Any]:
    """Prints and returns, of each figure, its median without, and what is added in the pairs, in percent of it."""
    figures: dict[str, Any] = {"nf": name}
    for unit in UNITS:
        without, with_ = (np.array([getattr(one, unit) for one in found[label]]) for label in ("without", "with"))
        figures[unit] = spread(without)
        figures[f"{unit}_added"] = added = spread(100 * (with_ / without - 1))
        line = f"{name:10} {unit:14} {figures[unit].median:12,.1f} {_show(added)}"
        print(f"  {line}{added.describe_dropped()}", flush=True)
    return figures


def _show(added: Spread) -> str:
    return f"{added.median:+.2f} % (quartiles {added.low:+.2f} .. {added.high:+.2f})"


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=FUNCTIONS, help="one network function")
    parser.add_argument("--restarts", type=int, default=3, help="of each")
    parser.add_argument("--rounds", type=int, default=10, help="in each, with and without")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a session that count")
    parser.add_argument("--before", type=float, default=2.5, help="seconds until what comes too often is left out")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.restarts, arguments.rounds, arguments.seconds, arguments.before = 1, 1, 0.1, 0.1
    cpus, figures = find_cpus(arguments.short), []
    names = FUNCTIONS_SHORT if arguments.short else FUNCTIONS
    for name in [arguments.only] if arguments.only else names:
        found: dict[str, list[Measured]] = {"without": [], "with": []}
        for _ in range(arguments.restarts):
            os.sched_setaffinity(0, set(cpus))
            with FUNCTIONS[name](cpus) as nf:
                for label, measured in compare(nf, arguments.rounds, arguments.seconds, arguments.before).items():
                    found[label] += measured
        figures.append(summarise(name, found))
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
