"""Lineage without a receiver: names of tables in every kind of lake, bounds of expectations, the key that is sent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from openlineage.client.event_v2 import RunEvent

from include.intervals.reporting.lineage import _transport
from include.intervals.reporting.lineage_events import AttemptTold, events_of
from include.intervals.verdict import Verdict
from include.ledger.intervals.findings import ExpectationResult, Findings, Validation
from include.pipelines import load_pipeline

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
INTERVAL = {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"}
TABLE = {
    "table": "nest_cameras",
    "partition": "date=2026-11-20/interval=2026-11-20T05",
    "revision": "r-1",
    "rows": 190,
}


def met(low: float | None, high: float | None) -> ExpectationResult:
    return ExpectationResult(
        "nest_cameras", "expect_rows", "", "as many rows as counted", True, "", 0, low=low, high=high
    )


def events(lake: str, results: Sequence[ExpectationResult] = ()) -> list[RunEvent]:
    findings = Findings(validation=Validation(True, "nest_cameras", tuple(results)))
    verdict = Verdict("nest_cameras", INTERVAL, "1a2b3c", findings=findings, registered=[TABLE])
    return list(events_of(AttemptTold(load_pipeline("nest_cameras"), 1, verdict, NOW, NOW, lake, "broker:9092")))


@pytest.mark.parametrize(
    ("lake", "namespace", "name"),
    [
        ("s3a://bucket/lake", "s3://bucket", "lake/tables/nest_cameras"),
        ("s3a://bucket", "s3://bucket", "tables/nest_cameras"),
        ("gs://bucket/lake", "gs://bucket", "lake/tables/nest_cameras"),
        ("hdfs://namenode:8020/lake", "hdfs://namenode:8020", "/lake/tables/nest_cameras"),
        (
            "abfss://container@account.dfs.core.windows.net/lake",
            "abfss://container@account.dfs.core.windows.net",
            "lake/tables/nest_cameras",
        ),
    ],
)
def test_table_is_named_by_its_store_when_the_lake_lies_in_one(lake: str, namespace: str, name: str) -> None:
    [table] = events(lake)[1].outputs
    assert (table.namespace, table.name) == (namespace, name)


def test_table_is_named_by_its_path_when_the_lake_s_uri_is_encoded() -> None:
    lake = Path("/srv/the lake").as_uri()
    [table] = events(lake)[1].outputs
    assert (table.namespace, table.name) == ("file", "/srv/the lake/tables/nest_cameras")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1234567, 1234567, "1234567 to 1234567"),
        (1234567.0, 1763614800123456.0, "1234567 to 1763614800123456"),
        (0.0001234567, None, "0.0001234567 to "),
        (None, 0.5, " to 0.5"),
        (None, None, None),
    ],
)
def test_bounds_are_sent_in_full_when_they_have_many_digits(
    low: float | None, high: float | None, expected: str | None
) -> None:
    [read] = events("file:///lake", [met(low, high)])[3].inputs
    assert read.inputFacets is not None
    [assertion] = read.inputFacets["dataQualityAssertions"].assertions  # type: ignore[attr-defined]
    assert assertion.expected == expected


def test_key_is_sent_as_it_is_when_the_url_escapes_a_character_of_it() -> None:
    transport = _transport("http://:a%2Fb%40c@receiver:5000")
    assert transport.config.auth.get_bearer() == "Bearer a/b@c"  # type: ignore[attr-defined]
