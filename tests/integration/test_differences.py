# SPDX-License-Identifier: Apache-2.0
"""`nfprobe diff` on recordings of examples/firewall, with and without a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.firewall import DESCRIPTION

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PACKETS = 20_000
OPTIONS = ("--rate", "20000", "--packets", str(PACKETS))
FAULT = ("--slow-every", "1", "--slow-us", "500")  # ten times what a batch takes: more than other work makes of it


@pytest.fixture
def record(firewall_binary: Path, nfprobe: Any, tmp_path: Path) -> Callable[..., Path]:
    """Records a whole run of the firewall: record(name, *options)."""

    def run(name: str, *options: str) -> Path:
        path = tmp_path / f"{name}.nfprobe"
        words = ["--adapter", DESCRIPTION, "--record", path, "--ring-size", "64MiB", "--"]
        done = nfprobe.run("run", *words, firewall_binary, *OPTIONS, *options)
        assert done.returncode == 0, done.stderr
        return path

    return run


def test_the_faulty_function_comes_first(record: Callable[..., Path], nfprobe: Any) -> None:
    good = record("good", "--slow-every", "0")
    again = record("again", "--slow-every", "0")
    faulty = record("faulty", *FAULT)

    diff = nfprobe.json("diff", good, faulty)
    first = diff["functions"][0]
    # "usual" on a machine with nothing else to do. Where the sizes of batches vary, as they do beside other work, so
    # does what a packet of them takes, and only the mean tells: which of both is for tests/unit/report/test_diff.py.
    assert first["name"] == "fw_output"
    assert first["stands_out"] in ("usual", "mean")
    assert first["change_ns"] > 10 * first["a"]["self_ns_per_unit"]
    assert diff["packets"]["a"]["received"] == diff["packets"]["b"]["received"] == PACKETS
    for side in "ab":
        of = [function[side] for function in diff["functions"] if function["name"] == "fw_classify"]
        assert of[0]["calls"] == diff["batches"][side]["count"]

    text = nfprobe.run("diff", good, faulty).stdout
    assert text.index("fw_output ") < text.index("function ")

    # The other way round it is the same change. Of runs without the fault it is not said. (That nothing else stands
    # out by chance is for tests/unit/report/test_diff.py: other work on this machine slows functions down in one of
    # them.)
    back = nfprobe.json("diff", faulty, good)["functions"][0]
    assert (back["name"], back["change_ns"]) == ("fw_output", -first["change_ns"])
    alike = nfprobe.json("diff", good, again, "--at-least", "100%")
    assert "fw_output" not in [function["name"] for function in alike["functions"] if function["stands_out"]]
    assert alike["only_a"] == alike["only_b"] == []
