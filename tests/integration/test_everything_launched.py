# SPDX-License-Identifier: Apache-2.0
"""All functions at once, from before the first instruction of programs that nobody here wrote.

`nfprobe run` starts them with every function of theirs and of their libraries probed; they say and count what
they do without.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.strategies import STRATEGIES
from tests.integration.test_everything import PYTHON, WORK
from tests.support.openvswitch import OpenVswitch
from tests.support.testpmd import Testpmd, pcap_device
from tests.support.whole import LADDER

pytestmark = [pytest.mark.integration, pytest.mark.shared]

# Each strategy forced is a matter of the longer runs: what they share with an attach is tested there every day.
WAYS = [LADDER, *(pytest.param(strategy, marks=pytest.mark.long) for strategy in STRATEGIES)]
LIBRARIES = ("libz.so.1", "libsqlite3.so.0", "libcrypto.so.3")
PACKETS = 5000
FRAMES = 12
MANY, FEW = 1000, 400  # functions; few read arguments that are on the stack
UNENDED_MAX = 200  # calls that are open when a program ends by exit(), or when its last threads are ended


def launcher(nfprobe: Any, way: str, globs: Sequence[str]) -> list[str]:
    """The words before a command that start it with all these functions probed."""
    words = [*nfprobe.command, "run", "--json", "--adapter", "none", "--ring-size", "128MiB"]
    for glob in globs:
        words += ["--functions", glob]
    return [*words, *(() if way == LADDER else ("--strategy", way)), "--"]


def assert_consistent(summary: Any, functions: int) -> None:
    """Many functions have probes, and every entry its exit, but for calls that the program's end cut off."""
    assert summary["functions"]["probed"] > functions
    assert summary["not_restored"] == []
    if not any(summary["records"]["lost"].values()):
        assert summary["unpaired"]["exits"] == 0
        assert summary["unpaired"]["entries"] <= UNENDED_MAX


def summary_in(text: str) -> Any:
    return json.loads(next(line for line in reversed(text.splitlines()) if line.startswith('{"pid"')))


def run_both(
    nfprobe: Any, way: str, globs: Sequence[str], command: Sequence[object], text: str, **options: Any
) -> tuple[str, Any]:
    """Runs a command as it is and with probes. Returns what it says and the summary; both must say the same."""
    words = [str(word) for word in command]
    plain = subprocess.run(words, input=text, capture_output=True, text=True, timeout=500, check=True, **options)
    probed = subprocess.run(
        [*launcher(nfprobe, way, globs), *words],
        input=text, capture_output=True, text=True, timeout=500, check=False, **options,
    )  # fmt: skip
    assert probed.returncode == 0, probed.stderr
    assert probed.stdout == plain.stdout
    return plain.stdout, summary_in(probed.stderr)


@pytest.mark.parametrize("way", WAYS)
def test_python_and_its_libraries(way: str, nfprobe: Any) -> None:
    """Digests and signatures are those that were published; SQL, compression and Python's own tests as ever."""
    if not Path(PYTHON).exists():
        pytest.skip(f"there is no {PYTHON}")
    work = "compress\nquery\ndigest\nsign\nown_tests\n"
    globs = [*(f"{library.split('.')[0]}.so*:*" for library in LIBRARIES), "python3*:*"]
    environment = {**os.environ, "LD_PRELOAD": " ".join(LIBRARIES)}  # there before the first instruction
    said, summary = run_both(nfprobe, way, globs, [PYTHON, WORK], work, env=environment)
    assert said.endswith("skipped\n")
    assert_consistent(summary, FEW if way == "copied" else MANY)


@pytest.mark.parametrize("way", WAYS)
def test_openssl(way: str, nfprobe: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"a packet" * 100_000)
    command = ["openssl", "dgst", "-sha256", data]
    said, summary = run_both(nfprobe, way, ["libcrypto.so*:*", "libssl.so*:*", "openssl:*"], command, "")
    assert said.split()[-1] == hashlib.sha256(data.read_bytes()).hexdigest()
    assert_consistent(summary, FEW if way == "copied" else MANY)


@pytest.mark.parametrize("way", WAYS)
def test_libstdcxx_with_exceptions(way: str, nfprobe: Any, compile_target: Callable[..., Path]) -> None:
    binary = compile_target("everyday", "-std=c++17")
    globs = ["libstdc++.so*:*", "libgcc_s.so*:*", f"{binary.name}:*"]
    _, summary = run_both(nfprobe, way, globs, [binary], "streams 20\n")
    assert summary["functions"]["probed"] > 100


@pytest.mark.parametrize("way", WAYS)
def test_testpmd_and_its_libraries(
    way: str, nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    globs = ["dpdk-testpmd:*", "librte_*:*"]
    testpmd = start_testpmd(pcap_device(capture(PACKETS)), launcher=launcher(nfprobe, way, globs))
    testpmd.command("start")
    testpmd.wait_for_packets(PACKETS)
    testpmd.command("stop")
    assert testpmd.counters() == (PACKETS, PACKETS)
    output = testpmd.command("quit", '"program"')
    assert_consistent(summary_in(output + testpmd.rest()), 100)
    assert testpmd.process.wait(120) == 0


@pytest.mark.parametrize("way", [LADDER, *(way for way in WAYS[1:] if way.values != ("got",))])
def test_open_vswitch(way: str, nfprobe: Any, tmp_path: Path) -> None:
    """A program that exports nothing: no GOT slot leads to its functions."""
    if not OpenVswitch.is_installed():
        pytest.skip("Open vSwitch is not installed: scripts/set-up test")
    switch = OpenVswitch(tmp_path, launcher(nfprobe, way, ["ovs-vswitchd*:*"]))
    try:
        assert switch.receive(FRAMES) == repr([FRAMES, FRAMES * 106, FRAMES, FRAMES])
    finally:
        switch.stop()
    assert_consistent(summary_in(switch.said_by_launcher()), 100)
