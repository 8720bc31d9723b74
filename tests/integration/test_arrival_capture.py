# SPDX-License-Identifier: Apache-2.0
"""Arrival times from the generator's capture, compared with the stamps that the same packets carry."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from otel_nfprobe.base.columns import Columns, concatenate
from otel_nfprobe.causes.arrival import FROM_CAPTURE
from otel_nfprobe.cli.arrival_options import take_arrivals
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay
from tests.integration.test_arrival_bounds import DESCRIPTION
from tests.support.traffic import make_frames, write_pcap

pytestmark = pytest.mark.integration

NEAR_NS = 100_000  # between a packet's stamp and its record in the capture, unless the thread was interrupted there


class Session(NamedTuple):
    recording: Path
    capture: Path
    packets: int


@pytest.fixture(scope="module")
def record(
    compile_target: Callable[..., Path], nfprobe: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Session]:
    """record(polls, full_polls): a program that stamps its packets and captures them, too."""

    def run(polls: int, full_polls: int) -> Session:
        folder, binary = tmp_path_factory.mktemp("arrivals"), compile_target("queues", "-rdynamic")
        described = DESCRIPTION | {"buffer": {**DESCRIPTION["buffer"], "arrival": {"offset": 16, "unit": "ticks"}}}
        (folder / "queues.yaml").write_text(yaml.safe_dump(described).replace("MODULE", binary.name))
        options = (
            "--packets",
            "all",
            "--adapter",
            folder / "queues.yaml",
            "--record",
            folder / "nfp",
            "--ring-size",
            "64MiB",
            "--json",
        )
        done = nfprobe.run("run", *options, "--", binary, folder / "log", folder / "pcap", polls, full_polls, 0)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stderr.splitlines()[-1])
        return Session(folder / "nfp", folder / "pcap", summary["packets"]["received"])

    return run


@pytest.fixture(scope="module")
def session(record: Callable[..., Session]) -> Session:
    return record(3000, 100)


def read(path: Path, **arrivals: Any) -> tuple[RecordingFacts, Columns]:
    """A recording's packets, with arrivals from a capture where one is given."""
    reader = RecordingReader(path)
    facts = read_facts(reader)
    options = {"arrivals_by": "id", "arrivals_offset": 0, "key": None, "inner": False} | arrivals
    if arrivals:
        take_arrivals(argparse.Namespace(recording=path, verb="report", **options), reader, facts)
    with Pipeline(facts.roles) as pipeline:
        return facts, concatenate(replay(reader, facts, pipeline))


def compare(session: Session, **options: Any) -> None:
    """Nearly every packet's arrival from the capture is that of its stamp."""
    facts, matched = read(session.recording, arrivals=session.capture, **options)
    _, stamped = read(session.recording)
    known = matched.packets["flags"] & FROM_CAPTURE == FROM_CAPTURE
    assert facts.arrivals is not None
    assert known.sum() == facts.arrivals.matched
    assert known.mean() > 0.98
    apart = matched.packets["arrival_ticks"].astype(np.int64) - stamped.packets["arrival_ticks"].astype(np.int64)
    assert (np.abs(apart[known]) < facts.make_clock().find_ticks(NEAR_NS)).mean() > 0.98
    assert (matched.packets["digest"] == stamped.packets["digest"]).all()


def test_arrivals_by_id_are_the_stamps(session: Session) -> None:
    compare(session)
    compare(session, arrivals_by="content")


def test_another_clock_is_found_out(session: Session, tmp_path: Path, nfprobe: Any) -> None:
    moved = bytearray(session.capture.read_bytes())
    at = 24
    while at < len(moved):
        seconds = int.from_bytes(moved[at : at + 4], "little") + 3600
        moved[at : at + 4] = seconds.to_bytes(4, "little")
        at += 16 + int.from_bytes(moved[at + 8 : at + 12], "little")
    capture = tmp_path / "moved.pcap"
    capture.write_bytes(moved)
    done = nfprobe.run("report", session.recording, "--arrivals", capture, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packets"]["arrivals"]["matched"] == 0
    assert "--arrivals-offset auto" in done.stderr
    compare(session._replace(capture=capture), arrivals_offset="auto")
    compare(session._replace(capture=capture), arrivals_offset=-3600 * 10**9)


def test_report_says_where_arrivals_are_from(session: Session, nfprobe: Any) -> None:
    done = nfprobe.run("report", session.recording, "--arrivals", session.capture, "--json")
    assert done.returncode == 0, done.stderr
    packets = json.loads(done.stdout)["packets"]
    found = packets["arrivals"]
    assert found["matched"] + found["absent"] + found["impossible"] == session.packets
    assert "capture" in {packet["arrival_source"] for packet in packets["slowest"]}
    assert f"{found['matched']:,} of {session.packets:,} packets got their arrival from" in done.stderr


def test_capture_of_other_traffic_gives_nothing(session: Session, nfprobe: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.pcap"
    write_pcap(other, make_frames(500))
    done = nfprobe.run("report", session.recording, "--arrivals", other, "--json")
    assert done.returncode == 0, done.stderr
    packets = json.loads(done.stdout)["packets"]
    assert packets["arrivals"]["matched"] == 0
    assert packets["arrivals"]["absent"] == session.packets
    assert "It has other traffic" in done.stderr
    assert {packet["arrival_source"] for packet in packets["slowest"]} <= {"mbuf stamp", "poll", "saturated"}
    done = nfprobe.run("report", session.recording, "--arrivals", other, "--arrivals-offset", "auto")
    assert done.returncode == 2
    done = nfprobe.run("report", session.recording, "--arrivals", session.recording)
    assert done.returncode == 2
    assert "not a capture file" in done.stderr


def test_order_needs_one_queue(session: Session, record: Callable[..., Session], nfprobe: Any) -> None:
    done = nfprobe.run("report", session.recording, "--arrivals", session.capture, "--arrivals-by", "order")
    assert done.returncode == 2
    assert "more than one queue" in done.stderr
    compare(record(0, 300), arrivals_by="order")
