"""What Spark tells of running queries: kept per query in a bounded number of rows, the newest ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.ledger.streams import progress
from include.ledger.streams.progress import KEPT, QueryProgress
from tests.conftest import Home

pytestmark = pytest.mark.services

FIRST = QueryProgress(
    "archive", 0, datetime(2026, 11, 20, 5, tzinfo=UTC), 100, 50.5, 75.0, 1.5, {"addBatch": 1.25, "walCommit": 0.25},
    datetime(2026, 11, 20, 4, tzinfo=UTC), 7, 2048,
)  # fmt: skip


def numbered(query: str, number: int) -> QueryProgress:
    return replace(FIRST, query=query, batch_id=number, at=FIRST.at + timedelta(seconds=number))


def test_newest_rows_of_each_query_stay_when_more_are_noted_than_are_kept(postgres: Home) -> None:
    progress.note("nest_cameras", [numbered("hourly_counts", 0)])
    for start in range(0, KEPT + 40, 20):
        progress.note("nest_cameras", [numbered("archive", start + each) for each in range(20)])
    found = progress.recent("nest_cameras")
    assert [each.batch_id for each in found["archive"]] == list(range(40, KEPT + 40))
    assert found["hourly_counts"] == [numbered("hourly_counts", 0)]
    assert postgres.ledger("SELECT count(*) FROM query_progress") == [(KEPT + 1,)]


def test_fewer_rows_are_read_when_fewer_are_asked_for(postgres: Home) -> None:
    progress.note("isp_hits", [numbered("archive", each) for each in range(5)])
    assert [each.batch_id for each in progress.recent("isp_hits", 2)["archive"]] == [3, 4]
    assert progress.recent("gps_positions") == {}
