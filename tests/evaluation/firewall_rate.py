# SPDX-License-Identifier: Apache-2.0
"""For table 3: examples/firewall with more packets than it can take, which says itself how long it was busy with them.

Each round is a new process. Probes are in place before its first packet; after the last one it prints how many it
received and for how long it had worked. Its functions are known, so they are named here, those of every batch first.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from tests.benchmarks.uprobe_peer import uprobes
from tests.evaluation.broker import Running, find_offset, watch_by_nfprobe
from tests.evaluation.extent import Extent

SOURCE = Path(__file__).resolve().parents[2] / "examples" / "firewall"
NAME, BATCH, RING = "examples/firewall", 32, "64MiB"
RATE, PACKETS, PACKETS_SHORT = 5_000_000, 300_000, 20_000
ONCE_A_BATCH = ("fw_classify", "fw_receive", "fw_parse", "fw_count", "fw_transmit", "fw_output", "fw_drop")
OFTEN = ("fw_ring_get", "fw_ring_put")
FUNCTIONS = (*ONCE_A_BATCH, *OFTEN)
Watch = Callable[[Running], AbstractContextManager[object]]


def find_batch_ns(said: str) -> float:
    """Of a batch of 32, from what the firewall prints when it ends."""
    counts = json.loads(said)
    return float(counts["busy_share"] * counts["seconds"] * 1e9 / counts["received"] * BATCH)


def measure(extent: Extent, watch: Watch | None = None) -> float:
    """Nanoseconds of a batch in one process, with its functions watched or not.

    Raises:
        ValueError: records were lost.
        OSError: the tool was refused.
    """
    packets = PACKETS_SHORT if extent.is_short else PACKETS
    words = [extent.folder / "firewall", "--packets", packets, "--rate", RATE, "--slow-every", 0]
    words += ["--worker-cpu", extent.cpus[1], "--start-on-stdin"]
    pipe = subprocess.PIPE
    with subprocess.Popen(list(map(str, words)), stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "ready\n"
            with watch(process) if watch else nullcontext():
                said, _ = process.communicate("\n", timeout=120)
        finally:
            process.kill()
    return find_batch_ns(said)


def probe(functions: Sequence[str]) -> Watch:
    """nfprobe, in a process of its own."""
    named = [word for name in functions for word in ("--functions", f"firewall:{name}")]
    return watch_by_nfprobe("--adapter", "none", "--packets", "none", "--ring-size", RING, *named)


def probe_by_bpf(binary: Path, functions: Sequence[str]) -> Watch:
    """A uprobe and a uretprobe at each."""

    @contextmanager
    def watch(running: Running) -> Iterator[None]:
        with uprobes(running.pid, binary, [find_offset(binary, name) for name in functions]):
            yield

    return watch


def build(folder: Path) -> Path:
    subprocess.run(["make", "-s", "-C", str(SOURCE), f"BUILD={folder}"], check=True)
    return folder / "firewall"
