# SPDX-License-Identifier: Apache-2.0
"""What spans really carry is what schema/attributes.yaml says, and docs/attributes.md is written from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.base.columns import HANDOVER, NONE
from otel_nfprobe.base.holdrows import HOLD
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.export.resource import describe_target, make_resource_attributes
from otel_nfprobe.export.span import TAIL, SpanEncoder, Tails
from otel_nfprobe.export.timescale import TimeScale
from tests.support.span_expectation import NAMES, THREADS, attributes_of, make_clock, make_parts
from tests.support.synthetic_columns import make_columns
from tests.unit.export.test_span_random import randomise

ROOT = Path(__file__).resolve().parents[3]
SCHEMA: dict[str, Any] = yaml.load((ROOT / "schema" / "attributes.yaml").read_text(), yaml.CSafeLoader)
TYPES = {"string": str, "int": int, "double": float, "boolean": bool}
ADD = "add it to schema/attributes.yaml and run scripts/attribute-table"


@cache
def definitions() -> dict[str, dict[str, Any]]:
    found = [item for group in SCHEMA["groups"] for item in group["attributes"] if "id" in item]
    assert len({item["id"] for item in found}) == len(found)
    return {item["id"]: item for item in found}


@cache
def group(name: str) -> dict[str, str]:
    """Attributes of a group and whether they are required."""
    (found,) = [one for one in SCHEMA["groups"] if one["id"] == name]
    return {item["ref"]: item["requirement_level"] for item in found["attributes"]}


@cache
def required(name: str) -> set[str]:
    return {key for key, level in group(name).items() if level == "required"}


@cache
def members(key: str) -> set[Any] | None:
    """The values of an attribute that has a few."""
    kind = definitions()[key]["type"]
    return {member["value"] for member in kind["members"]} if isinstance(kind, dict) else None


def check_values(name: str, values: dict[str, Any]) -> None:
    allowed, known = group(name), definitions()
    assert required(name) <= values.keys()
    for key, value in values.items():
        assert key in allowed, f"{name} has {key}: {ADD}"
        few = members(key)
        if few is not None:
            assert value in few, key
        else:
            kind = known[key]["type"]
            parts = value if kind.endswith("[]") else [value]
            assert set(map(type, parts)) == {TYPES[kind.removesuffix("[]")]}, key


def test_the_encoder_writes_what_is_defined() -> None:
    written = set()
    for source in (ROOT / "native" / "core").glob("otlp*.c"):
        written |= set(re.findall(r'NFP_KEY\("([^"]+)"\)', source.read_text()))
    for source in (ROOT / "otel_nfprobe" / "export").glob("span*.py"):
        written |= set(re.findall(r'(?:encode_attribute|add_numbered)\("([^"]+)"', source.read_text()))
    of_spans = {key for one in SCHEMA["groups"] if one["type"] == "span" for key in group(one["id"])}
    assert written - of_spans == set(), ADD
    assert of_spans - written == set(), "nothing writes these any more"
    used = {item["ref"] for one in SCHEMA["groups"] for item in one["attributes"] if "ref" in item}
    assert used == definitions().keys()


def test_spans_carry_what_is_defined() -> None:
    random, count = np.random.default_rng(8), 1000
    columns = make_columns(count, 8)
    randomise(columns, random)
    tails = np.zeros(count, dtype=TAIL)
    tails["kind"], tails["by"] = random.integers(0, 10, count), random.choice([b"", b"softirq NET_RX"], count)
    tails["function"] = random.choice([0, 1, 3, NONE], count)
    tails["flow_packet"], tails["flags"] = random.integers(0, count, count), random.integers(0, 2, count)
    for name in ("link_high", "link_low", "link_span"):
        tails[name] = random.integers(1, 2**63, count)
    columns.holds = np.zeros(1, HOLD)
    columns.holds["size"], columns.holds["text"] = 3, ord("x")
    columns.handovers = np.zeros(count, HANDOVER)
    columns.handovers["packet"] = np.arange(count)
    columns.handovers["batch"] = random.integers(0, len(columns.batches), count)
    scale = TimeScale(1000)
    encoder = SpanEncoder({"service.name": "x"}, NAMES, 7, make_clock(), correlate_window_ns=10**9, time_scale=scale)
    encoder.set_threads(THREADS)
    encoder.set_numbers(
        NumberNames(
            reasons={0: "ip4-input: ttl", 2: "x" * 2000},
            interfaces={1: "tap0", 1 << 20: "y"},
            threads={THREADS[0][0]: "1"},
        )
    )
    for field in ("receive_interface", "done_number"):
        columns.packets[field] = random.choice([0, 1, 2, 3, 4, 1 << 20, 0xFFFFFFFF], count)
    groups = {"queue wait": "span.nf.queue_wait", "batch": "span.nf.batch"}
    seen: set[str] = set()
    reasons = random.integers(1, 16, count).astype(np.uint8)
    for request in encoder.encode(
        columns, np.arange(count, dtype=np.uint32), reasons, Tails(tails, make_parts(random, tails))
    ):
        message = ExportTraceServiceRequest.FromString(request.data)
        for span in message.resource_spans[0].scope_spans[0].spans:
            name = groups.get(span.name, "span.nf.call") if span.parent_span_id else "span.nf.packet"
            values = attributes_of(span.attributes)
            check_values(name, values)
            seen |= values.keys()
    # Those of a broker's messages, and of a trace larger than a request, are not in these columns.
    every = {key for one in ("packet", "queue_wait", "batch", "call") for key in group(f"span.nf.{one}")}
    left = {key for key in every - seen if not key.startswith("messaging.")}
    assert left == {"nf.batch.calls_cut", "nf.counter.invalid"}  # of long batches, and with counters


def test_the_resource_carries_what_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME", "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS"):
        monkeypatch.delenv(name, raising=False)
    check_values("entity.nf.target", make_resource_attributes(describe_target(os.getpid())))


def test_the_page_is_up_to_date() -> None:
    words = [sys.executable, ROOT / "scripts" / "attribute-table", "--check"]
    assert subprocess.run(list(map(str, words)), check=False).returncode == 0, "scripts/attribute-table"
