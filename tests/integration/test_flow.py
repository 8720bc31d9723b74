# SPDX-License-Identifier: Apache-2.0
"""--flow: of a testpmd's packets exactly those that tcpdump finds in the capture that it plays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.cli.main import main
from tests.integration.test_testpmd import ROOM, wait_until_armed
from tests.support import packet_digest as digest
from tests.support.otlp_receiver import Receiver
from tests.support.testpmd import Testpmd, pcap_device
from tests.support.traffic import read_pcap

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PACKETS = 2000
FLOW = "dst port 443 and net 10.0.0.0/27"
OTHERS = ("udp and not port 53 or icmp", "ip6 and src portrange 10000-10020", "host 10.0.0.9 or less 70", "tcp or ip6")


def ids_by_tcpdump(capture: Path, expression: str, output: Path) -> list[str]:
    with open(output, "wb") as file:
        words = ["tcpdump", "-r", str(capture), "-w", "-", expression]
        subprocess.run(words, stdout=file, stderr=subprocess.DEVNULL, check=True)
    return sorted(f"{digest.describe(frame, length).id:016x}" for _, frame, length in read_pcap(output))


def ids_sent(receiver: Receiver) -> list[str]:
    found = []
    for span in receiver.spans():
        values = {entry.key: entry.value for entry in span.attributes}
        if not span.parent_span_id:
            found.append(values["nf.packet.id"].string_value)
            assert values["nf.sampling.reason"].string_value == "sample"
    return sorted(found)


def test_the_packets_of_a_flow(
    nfprobe: Any,
    start_testpmd: Callable[..., Testpmd],
    capture: Callable[[int], Path],
    receiver: Receiver,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    played, recording, endpoint = capture(PACKETS), tmp_path / "flow.nfp", f"http://127.0.0.1:{receiver.port}"
    testpmd = start_testpmd(pcap_device(played), mode="io")
    wrong = nfprobe.run("attach", testpmd.pid, "--flow", "dst prot 443 and", "--endpoint", endpoint)
    assert (wrong.returncode, "--flow 'dst prot 443 and' cannot be used: " in wrong.stderr) == (2, True), wrong.stderr
    assert nfprobe.run("status", testpmd.pid).returncode == 1
    options = ["--trial", "0s", "--packets", "all", "--sample", "1", *ROOM, "--endpoint", endpoint, "--spool", "none"]
    words = ["attach", testpmd.pid, *options, "--flow", FLOW, "--record", recording, "--json"]
    monitor = nfprobe.start(*words)
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    testpmd.command("start")
    testpmd.wait_for_packets(PACKETS)
    testpmd.command("stop", "Done")
    summary = nfprobe.end(monitor)
    assert summary["packets"]["transmitted"] == PACKETS  # all of them are measured
    expected = ids_by_tcpdump(played, FLOW, tmp_path / "out.pcap")
    assert ids_sent(receiver) == expected
    assert 0 < len(expected) < PACKETS / 2
    live = receiver.requests
    for expression in (FLOW, *OTHERS):
        receiver.requests = []
        words = ["export", str(recording), "--sample", "1", "--endpoint", endpoint, "--flow", expression]
        assert main(words) == 0
        assert ids_sent(receiver) == ids_by_tcpdump(played, expression, tmp_path / "out.pcap")
        assert expression != FLOW or receiver.requests == live
    check_views(str(recording), expected, tmp_path / "tables", capsys)


def check_views(recording: str, expected: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", recording, "--json", "--slowest", "50", "--flow", FLOW]) == 0
    document = json.loads(capsys.readouterr().out)["packets"]
    shown = [packet["id"] for packet in document["slowest"]]
    assert document["flow"] == FLOW
    assert shown
    assert set(shown) <= set(expected)
    assert main(["report", recording, "--flow", FLOW]) == 0
    assert f"below only packets of: {FLOW}" in capsys.readouterr().out
    assert main(["report", recording, "--flow", "tcp[13] & 2 != 0"]) == 2
    assert main(["tables", recording, "-o", str(folder), "--flow", FLOW]) == 0
    parquet = pytest.importorskip("pyarrow.parquet")
    tables = {path.parent.name: parquet.read_table(path) for path in folder.glob("*/*.parquet")}
    assert sorted(tables["packets"]["packet_id"].to_pylist()) == expected
    assert set(tables["causes"]["packet_id"].to_pylist()) <= set(expected)
