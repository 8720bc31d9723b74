# SPDX-License-Identifier: Apache-2.0
"""A double of VPP in which packets take special ways, measured: what was said of them, and the capture files that the
double reads and writes."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import DROPPED, PUNTED, TRANSMITTED, Columns, Rows
from otel_nfprobe.pipeline.pipeline import PipelineCounts
from tests.integration.test_vpp_packets import COUNT, LATE, Traffic, placed
from tests.support.probed import Talker

ALL, NONE = ("--packets", "all"), ("--packets", "none")
MODES = (ALL, LATE, NONE)
KINDS = 32
BEFORE = 100  # packets that came before


@dataclass(frozen=True)
class Ways:
    """What became of the packets of a double; ids are of the same code in Python, as the files have them."""

    traffic: Traffic
    columns: Columns
    counts: PipelineCounts
    summary: dict[str, Any]
    options: tuple[str, ...]

    @cached_property
    def came(self) -> list[int]:
        return self.traffic.digests(0)

    def written(self, disposition: int) -> Counter[int]:
        """Ids of the packets that the double has transmitted, dropped or punted, as they left."""
        return Counter(self.traffic.digests((TRANSMITTED, DROPPED, PUNTED).index(disposition) + 1))

    def gone(self, disposition: int) -> Counter[int]:
        """The same as it was measured, of packets that were received."""
        packets = self.columns.packets
        return Counter(packets["done_digest"][packets["disposition"] == disposition].tolist())

    def packets(self) -> Rows:
        """Batch by batch and in each as they were received."""
        return placed(self.columns)

    def is_described(self) -> bool:
        """Whether every packet was followed from its receipt on."""
        return self.options == ALL

    def check_totals(self, received: int = COUNT, again: int = 0) -> None:
        """Where packets are matched with what was received, those that were made here are counted apart.

        Args:
            again: transmitted packets that were not written: they came back.
        """
        counts = self.counts
        assert not any(self.summary["records"]["lost"].values())
        assert self.summary["functions"]["switched_off"] == {}
        assert counts.received == received
        assert counts.transmitted + counts.generated == self.written(TRANSMITTED).total() + again
        assert counts.dropped == self.written(DROPPED).total()
        assert counts.punted == self.written(PUNTED).total()
        for name in ("received", "dropped", "punted"):
            assert self.summary["packets"].get(name, 0) == getattr(counts, name)
        packets = self.summary["packets"]
        assert packets["transmitted"] == self.written(TRANSMITTED).total() + again
        assert packets.get("generated", 0) == counts.generated
        assert packets["unknown"] == counts.unknown + counts.pending or not self.is_described()


def met(kind: int) -> list[int]:
    """Which of the packets meet the node that takes those of this kind."""
    return [number for number in range(COUNT) if (number + BEFORE) % KINDS == kind]


class Meter:
    """Starts doubles and measures them.

    Args:
        start: starts the program.
    """

    def __init__(self, start: Callable[[], subprocess.Popen[str]], nfprobe: Any, folder: Path) -> None:
        self._start, self._nfprobe, self._folder = start, nfprobe, folder

    def measure(self, what: str, options: tuple[str, ...], frames: Sequence[bytes] | None = None) -> Ways:
        """A double that does this, whose nodes have all been called; see vpp.c."""
        double = Talker(self._start())
        assert double.ask(what) == f"{what} 1"
        traffic = Traffic(double, self._folder, frames)
        columns, counts, summary = traffic.measure(self._nfprobe, self._folder / "vpp.nfprobe", *options)
        return Ways(traffic, columns, counts, summary, options)


def twice(digests: Rows) -> list[int]:
    """Which ids are there two times."""
    found, count = np.unique(digests, return_counts=True)
    return [int(digest) for digest in found[count == 2]]
