# SPDX-License-Identifier: Apache-2.0
"""What probes cost a real VPP: CPU time of its thread for a packet, without probes, with `--packets none` and `slow`.

Target: the VPP that NFPROBE_VPP names (tests/support/real_vpp.py), one thread, its packet generator as fast as it
can; it forwards, or an ACL of 1,000 rules, all of which are looked at, comes before that. The three take turns of a
second; differences are of turns beside each other, medians over the rounds. With one packet in a frame there are 20
million records a second, more than a monitor that identifies packets keeps up with: rings are emptied unread. The
functions are those that `nfprobe attach` chooses, but for those outside of the graph's nodes.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.monitor.latecapture import NONE, SLOW
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.measured_session import Session, attached, without_frees
from tests.benchmarks.rounds import NO_FIGURE, Spread, find_cpus, lost, make_parser, spread, write_figures
from tests.support.real_vpp import MISSING, PREFIX, ROUTED, TWO, WARM_UP, RealVpp, Stream

OFF = "off"
MODES = (OFF, NONE, SLOW)
RULES = ", ".join([*(f"deny src 192.168.{rule // 250}.{rule % 250}/32" for rule in range(999)), "permit"])
FORWARD, ACL = "forwarding", "ACL, 1,000 rules"
SETTINGS = ((FORWARD, 256), (ACL, 256), (FORWARD, 1))  # and packets in a frame
RING_BYTES = 16 << 20
EMPTY_S = 0.003  # how often rings are emptied where nobody reads them
SETTLE_S, TURN_S, TURN_SHORT_S = 0.3, 1.0, 0.1
ROUNDS, ROUNDS_SHORT = 8, 1
Wait = Callable[[float], None]


def spawn(*words: object, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([str(word) for word in words], **options)  # type: ignore[call-overload, no-any-return]


def start(folder: Path, setting: str, frame: int) -> RealVpp:
    """A VPP that forwards from here on."""
    vpp = RealVpp(folder, spawn)
    vpp.configure(TWO)
    if setting == ACL:
        (folder / "acl").write_text(f"set acl-plugin acl {RULES}\n")  # too long for a line of vppctl
        vpp.ask(f"exec {folder / 'acl'}")
        vpp.configure("set acl-plugin interface pg0 input acl 0")
    vpp.add_streams([Stream(ROUTED, frame=frame)])
    vpp.play(WARM_UP)
    vpp.keep_playing()
    return vpp


def count_received(vpp: RealVpp) -> int:
    found = re.search(r"rx packets +(\d+)", vpp.ask("show interface pg0"))
    assert found is not None
    return int(found[1])


def read_cpu_ns(vpp: RealVpp) -> int:
    return int(Path(f"/proc/{vpp.pid}/task/{vpp.pid}/schedstat").read_text().split()[0])


def empty_rings(monitor: Monitor, seconds: float) -> None:
    """Waits, and says all the time that everything was read."""
    table = monitor.attachment.session._table  # what a monitor never does, no front door offers
    rings = [table[index] for index in monitor.attachment.session.thread_indexes()]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for ring in rings:
            ring.tail = ring.position
        time.sleep(EMPTY_S)


def measure(vpp: RealVpp, target: Target, choice: Choice, session: Session, is_read: bool, turn_s: float) -> float:
    """CPU time for a packet in one turn, in ns; NO_FIGURE: records were lost."""

    def turn(wait: Wait) -> float:
        packets, spent_ns = count_received(vpp), read_cpu_ns(vpp)
        wait(turn_s)
        return (read_cpu_ns(vpp) - spent_ns) / max(1, count_received(vpp) - packets)

    if session.packets == OFF:
        return turn(time.sleep)
    with attached(target, choice, session, lambda said: None) as monitor:
        monitor.run(SETTLE_S, lambda: None)
        if not is_read:
            empty_rings(monitor, SETTLE_S)
        before = lost(monitor)
        read = monitor.drain.run_until
        spent_ns = turn(lambda s: read(time.monotonic() + s) if is_read else empty_rings(monitor, s))
        return NO_FIGURE if lost(monitor) > before else spent_ns


def describe(name: str, found: Spread, off_ns: float) -> str:
    quartiles = f"({found.low:+.2f} .. {found.high:+.2f})"
    share = f"{found.median / off_ns:+.1%}"
    return f"  {name:15} {found.median:+8.2f} ns a packet {quartiles}, {share}{found.describe_dropped()}"


def run(setting: str, frame: int, rounds: int, turn_s: float, cpus: tuple[int, int]) -> dict[str, Spread]:
    """Prints and returns the figures of one setting."""
    with tempfile.TemporaryDirectory(prefix="vpp") as folder:
        os.sched_setaffinity(0, set(cpus))  # VPP takes the last one
        vpp = start(Path(folder), setting, frame)
        try:
            os.sched_setaffinity(0, {cpus[0]})
            target = Target(vpp.pid)
            choice = without_frees(choose(target, choose_adapter("vpp", target), [], []))
            sessions = [Session(RING_BYTES, mode) for mode in MODES]
            turns = [
                [measure(vpp, target, choice, session, frame > 1, turn_s) for session in sessions]
                for _ in range(rounds)
            ]
            found = np.array(turns)
        finally:
            vpp.process.kill()
            vpp.process.wait()
    off, none, slow = found.T
    added = {NONE: none - off, "slow, over none": slow - none, SLOW: slow - off}
    figures = {OFF: spread(off)} | {name: spread(values) for name, values in added.items()}
    usual_ns = figures[OFF].median
    print(f"{setting}, {frame} a frame: {usual_ns:.1f} ns a packet, {len(choice.requests())} functions")
    for name in added:
        print(describe(name, figures[name], usual_ns))
    return figures


def main() -> None:
    parser = make_parser(__doc__)
    arguments = parser.parse_args()
    if not PREFIX:
        print(f"skipped: {MISSING}")
        return
    cpus = find_cpus(arguments.short)
    rounds, turn_s = (ROUNDS_SHORT, TURN_SHORT_S) if arguments.short else (ROUNDS, TURN_S)
    figures = {f"{setting}, {frame}": run(setting, frame, rounds, turn_s, cpus) for setting, frame in SETTINGS}
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
