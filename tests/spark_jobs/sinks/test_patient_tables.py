"""A view's table in PostgreSQL is written again, from its first row, when PostgreSQL was away: without services."""

from __future__ import annotations

from typing import Any

import pytest

from include.errors import ServiceUnreachable
from include.ledger.patience import patient
from include.pipelines import load_pipeline
from spark_jobs.sinks import jdbc_table
from spark_jobs.sinks.jdbc_table import JdbcTableTarget

PIPELINE = load_pipeline("nest_cameras")


@pytest.mark.parametrize("replaces", [False, True])
def test_all_rows_are_written_again_when_postgresql_was_away_in_the_midst_of_them(
    monkeypatch: pytest.MonkeyPatch, *, replaces: bool
) -> None:
    tries: list[tuple[list[int], int, bool]] = []

    def merge(shape: Any, rows: Any, version: int, *, replace: bool = False, **_: Any) -> None:
        if not tries:
            tries.append(([next(rows)], version, replace))
            raise ServiceUnreachable("the connection was lost")
        tries.append((list(rows), version, replace))

    monkeypatch.setattr(jdbc_table, "merge", merge)
    monkeypatch.setattr(JdbcTableTarget, "_rows", lambda self, values: iter(values))
    target = JdbcTableTarget(PIPELINE, PIPELINE.views[0], lambda: None)
    values: Any = [1, 2, 3]
    with patient(20):
        (target.replace if replaces else target.write)(values, 7)
    assert tries == [([1], 7, replaces), ([1, 2, 3], 7, replaces)]


def test_stream_ends_when_postgresql_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(*_: Any, **__: Any) -> None:
        raise ServiceUnreachable("the connection was lost")

    monkeypatch.setattr(jdbc_table, "merge", merge)
    monkeypatch.setattr(JdbcTableTarget, "_rows", lambda self, values: iter(values))
    values: Any = []
    with patient(0.5), pytest.raises(ServiceUnreachable, match="was lost"):
        JdbcTableTarget(PIPELINE, PIPELINE.views[0], lambda: None).write(values, 7)
