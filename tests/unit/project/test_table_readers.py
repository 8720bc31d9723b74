# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/tables.md for the files of a fleet, as they stand there, in each reader that is installed.

ClickHouse is chdb, which is ClickHouse as a Python package. It and PySpark take more than 500 MB each, so they are used
where somebody has installed them: pip install chdb pyspark.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from otel_nfprobe.cli.main import main
from tests.support.synthetic_recording import write_recording

PAGE = Path(__file__).resolve().parents[3] / "docs" / "tables.md"
FIREWALL = Path(__file__).parents[1] / "recording" / "recordings" / "firewall.nfp"


def statement(reader: str) -> str:
    """What the page gives for this reader: the first piece of code in its row."""
    (row,) = re.findall(rf"^\* {reader}: (.*(?:\n  .*)*)", PAGE.read_text(), re.MULTILINE)
    row = re.sub(r"\n +(\.?)", lambda found: found[1] or " ", row)
    found = re.match(r"``(.+?)``(?!`)|`(.+?)`", row)
    assert found is not None
    return found[1] or found[2]


@pytest.fixture(autouse=True)
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of two hosts in tables/ of the current folder."""
    recording = write_recording(tmp_path / "one.nfp")
    assert main(["tables", str(recording), str(FIREWALL), "-o", str(tmp_path / "tables")]) == 0
    monkeypatch.chdir(tmp_path)


def expected(quantile: str = "quantile_cont") -> dict[str, Any]:
    """By DuckDB: host, and its latency."""
    rows = duckdb.sql(statement("DuckDB").replace("quantile_cont", quantile)).fetchall()
    assert len(rows) == 2
    return dict(rows)


def test_polars() -> None:
    import polars  # takes 0.3 s, and each process of the tests imports this file

    # It takes the nearest row.
    found = dict(eval(statement("Polars"), {"polars": polars}).rows())
    assert found.keys() == expected().keys()
    latencies = polars.read_parquet("tables/packets/*.parquet")
    for host, latency in found.items():
        assert latency in latencies.filter(polars.col("host") == host)["latency_ns"].to_list()


def test_clickhouse() -> None:
    chdb = pytest.importorskip("chdb", reason="ClickHouse is not installed: pip install chdb")
    rows = [line.split("\t") for line in str(chdb.query(statement("ClickHouse"), "TabSeparated")).splitlines()]
    assert {host: float(latency) for host, latency in rows} == pytest.approx(expected())


def test_spark(tmp_path: Path) -> None:
    sql = pytest.importorskip("pyspark.sql", reason="Spark is not installed: pip install pyspark")
    if shutil.which("java") is None:
        pytest.skip("Spark needs java")
    builder = sql.SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path / "warehouse"))
    session = (
        builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
    )
    try:
        rows = session.sql(statement("Spark").replace("s3a://BUCKET", str(tmp_path))).collect()
    finally:
        session.stop()
    assert {row[0]: row[1] for row in rows} == expected("quantile_disc")
