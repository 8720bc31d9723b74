# SPDX-License-Identifier: Apache-2.0
"""The files of examples/collector are what their programs take, and name only metrics that there are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from otel_nfprobe.metrics.metrics import MetricsMaker
from otel_nfprobe.metrics.metrics_listener import name_of
from otel_nfprobe.metrics.metrics_settings import Temporality
from tests.support.stack_services import EXAMPLES, Stack
from tests.support.synthetic_columns import make_columns
from tests.unit.metrics.test_metrics import START_NS, TICKS_PER_SECOND, calls, durations, snapshot, statistics_of

pytestmark = pytest.mark.stack

STACK_DIRECTORY = Path.home() / ".cache/nfprobe/stack"
SUFFIXES = ("_bucket", "_count", "_sum", "_total")
# Not nfprobe's: the Collector's own, what its `count` connector makes (collector.yaml), Prometheus's.
OTHERS = {"otelcol_receiver_refused_spans", "otelcol_exporter_enqueue_failed_spans", "nf_packet_late", "ALERTS"}
COMMANDS = (
    ("promtool", "check", "config", "prometheus.yaml"),
    ("promtool", "check", "rules", "rules.yaml", "alerts.yaml"),
    ("promtool", "test", "rules", "rules.test.yaml"),
    ("amtool", "check-config", "alertmanager.yaml"),
    ("otelcol", "validate", "--config", "collector.yaml"),
    ("otelcol", "validate", "--config", "collector.yaml", "--config", "collector-tempo.yaml"),
    ("jaeger", "validate", "--config", "jaeger-memory.yaml"),
    ("jaeger", "validate", "--config", "jaeger-badger.yaml"),
)


def find_built(stack: Stack, name: str) -> Path:
    """Where `build` has put a program, if it is one of its."""
    return Path(stack.environment.get("NFPROBE_STACK_DIR") or STACK_DIRECTORY) / name


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_programs_take_their_files(stack: Stack, command: tuple[str, ...]) -> None:
    built = find_built(stack, command[0])
    words = [str(built) if built.exists() else command[0], *command[1:]]
    done = subprocess.run(words, cwd=EXAMPLES, env=stack.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def made_metrics() -> set[str]:
    """Names in Prometheus of all that nfprobe makes."""
    statistics = statistics_of(calls(0, durations(1)), make_columns(50))
    maker = MetricsMaker({}, START_NS, TICKS_PER_SECOND, Temporality(), explicit=True)
    made = maker.make(replace(snapshot(1, statistics, 10), dropped={"queue full": 1}))
    return {name_of(metric) for metric in made.resource_metrics[0].scope_metrics[0].metrics}


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression."""
    dashboard = json.loads((EXAMPLES / "grafana/dashboards/nfprobe.json").read_text())
    for panel in dashboard["panels"]:
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from (("variable", entry["query"]["query"]) for entry in dashboard["templating"]["list"])
    yield from (("annotation", entry["expr"]) for entry in dashboard["annotations"]["list"])
    for name in ("rules.yaml", "alerts.yaml"):
        for group in yaml.safe_load((EXAMPLES / name).read_text())["groups"]:
            yield from ((rule.get("record") or rule["alert"], rule["expr"]) for rule in group["rules"])


def named_metrics(expression: str) -> set[str]:
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|without) *\([^)]*\)|\"[^\"]*\"", " ", expression)
    names = set(re.findall(r"\b(?:nf[_:][\w:]+|otelcol_\w+|ALERTS)\b", bare))
    return {next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name) for name in names}


def test_every_metric_that_is_named_is_made() -> None:
    recorded = {where for where, _ in expressions() if where.startswith("nf:")}
    known = made_metrics() | recorded | OTHERS
    found = {where: named_metrics(expression) for where, expression in expressions()}
    assert all(found.values()), found
    assert {where: names - known for where, names in found.items() if names - known} == {}


def test_panels_have_places_of_their_own() -> None:
    panels = json.loads((EXAMPLES / "grafana/dashboards/nfprobe.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place: dict[str, Any] = panel["gridPos"]
        rows = range(place["y"], place["y"] + place["h"])
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in rows}
        assert not taken & cells, panel["title"]
        taken |= cells
        assert place["x"] + place["w"] <= 24
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_compose_file_is_of_its_schema_and_mounts_what_there_is() -> None:
    compose_spec = pytest.importorskip("compose_spec", reason="compose_spec has no wheel for this Python")
    text = (EXAMPLES / "compose.yaml").read_text()
    compose_spec.PyCompose.from_yaml(text).validate()
    for service in yaml.safe_load(text)["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (EXAMPLES / source).exists(), source


MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.name)
def test_manifests_are_of_their_schema(manifest: Path) -> None:
    documents = list(yaml.safe_load_all(manifest.read_text()))
    assert documents
    for document in documents:
        kubernetes_validate.validate(document, "1.33", strict=True)


def test_configurations_inside_manifests_are_taken(stack: Stack, tmp_path: Path) -> None:
    written = {}
    for manifest in MANIFESTS:
        for document in yaml.safe_load_all(manifest.read_text()):
            written |= document.get("data", {}) if document["kind"] == "ConfigMap" else {}
    assert set(written) == {"agent.yaml", "collector.yaml"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    collector = (str(find_built(stack, "otelcol")), "validate", "--config", str(tmp_path / "collector.yaml"))
    agent = (sys.executable, "-m", "otel_nfprobe", "agent", "--check", "--config", str(tmp_path / "agent.yaml"))
    for words in (collector, agent):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
