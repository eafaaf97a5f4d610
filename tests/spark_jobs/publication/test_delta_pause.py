"""What a publication puts into the Delta table besides its own rows; real ledger, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest

from include.catalog.changes import CatalogChange
from include.doctor import open_tables
from include.errors import LockLost
from include.ledger.intervals import attempts
from include.ledger.intervals.revisions import left_out_of_delta
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.publication import delta, repair
from tests.conftest import Home
from tests.support.attempts import begin_attempt, hour, note_build, register
from tests.support.ledger_faults import end_lock
from tests.support.ledger_world import MemoryCatalog

pytestmark = pytest.mark.services


class Table:
    """A Delta table that notes what is done to it."""

    def __init__(self, pipeline: Pipeline, patch: pytest.MonkeyPatch) -> None:
        self.pipeline, self.done = pipeline, list[Any]()
        self.at_replace: Callable[[], None] = lambda: None
        for name, value in {
            "ensure_table": lambda *_: None,
            "latest_version": lambda *_: len(self.done),
            "has_foreign_writes": lambda *_: False,
            "pinned_version": lambda *_: 0,
            "_replace": self._replace,
            "pin_view": lambda _spark, _pipeline, version: self.done.append(version),
        }.items():
            patch.setattr(delta, name, value)

    def _replace(self, _spark: Any, _pipeline: Any, condition: str, *_: Any) -> None:
        self.done.append(condition)
        self.at_replace()

    def register(self, number: int) -> int:
        attempt = begin_attempt(self.pipeline.name, hour(number))
        register(attempt, note_build(attempt))
        return attempt

    def publish(self, attempt: int) -> None:
        run: Any = SimpleNamespace(spark=None, pipeline=self.pipeline, attempt=attempts.load_attempt(attempt))
        run.pinned = run.attempt.pinned
        delta.publish_delta(run, lambda: None)


@pytest.fixture
def table(postgres: Home, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Table:
    return Table(replace(load_pipeline("gps_positions"), name=request.node.name[:60]), monkeypatch)


def test_rows_of_a_killed_publication_are_put_into_the_table_when_another_interval_is_published(table: Table) -> None:
    for number in (2, 0, 1):
        table.register(number)
    table.publish(table.register(3))
    intervals = [f"interval = '{hour(number).label}'" for number in range(4)]
    assert table.done == [*intervals, 4]
    assert left_out_of_delta(table.pipeline.name) == []
    table.publish(table.register(4))
    assert table.done[5:] == [f"interval = '{hour(4).label}'", 6]


def test_rows_of_all_intervals_are_put_into_the_table_at_once_when_it_lacks_many(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "ONE_BY_ONE", 2)
    for number in range(2):
        table.register(number)
    table.publish(table.register(2))
    assert table.done == ["interval IS NOT NULL", 1]
    assert left_out_of_delta(table.pipeline.name) == []


def test_doctor_puts_the_rows_into_the_table_when_nothing_else_is_published(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.register(0)
    found = list(open_tables.check_delta_table(table.pipeline))
    assert [(each.repair, each.interval) for each in found] == [("put into Delta", hour(0))]
    changes = [CatalogChange(each.pipeline, each.table, "", "put into Delta") for each in found]
    world: Any = SimpleNamespace(catalog={})
    monkeypatch.setattr(repair, "load_pipeline", lambda _: table.pipeline)
    monkeypatch.setattr(repair, "check_storage", lambda _: None)
    monkeypatch.setattr(repair, "Catalog", MemoryCatalog)
    for _ in range(2):
        repair.repair(world, changes)
        assert table.done == [f"interval = '{hour(0).label}'", 1]
    assert list(open_tables.check_delta_table(table.pipeline)) == []


def test_doctor_names_many_intervals_at_once_when_the_table_lacks_them(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_tables, "MANY", 1)
    for number in range(2):
        table.register(number)
    (found,) = open_tables.check_delta_table(table.pipeline)
    view = f"lake.{table.pipeline.name}_delta"
    assert found.what == f"{view} lacks the registered rows of 2 intervals, the first of them {hour(0)}"


def test_view_stays_and_rows_are_still_to_come_when_the_lock_on_it_is_lost(table: Table, postgres: Home) -> None:
    attempt = table.register(0)
    table.publish(attempt)
    table.done.clear()
    with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
        table.at_replace = lambda: end_lock(cursor, f"delta:{table.pipeline.name}")
        with pytest.raises(LockLost):
            table.publish(attempt)
    assert table.done == [f"interval = '{hour(0).label}'"]
    assert [each.interval for each in left_out_of_delta(table.pipeline.name)] == [hour(0)]


def test_rows_of_another_pipeline_are_left_out_when_all_are_put_into_the_table_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A view of it had the archive's table before."""
    asked: list[tuple[str, str | None]] = []

    def registered(table: str, partition: str | None = None, *, pipeline: str | None = None) -> list[Any]:
        assert partition is None
        asked.append((table, pipeline))
        return []

    monkeypatch.setattr(delta.revisions, "registered", registered)
    monkeypatch.setattr(delta, "_replace", lambda *_: None)
    nothing: Any = None
    delta.restore_rows(nothing, load_pipeline("isp_hits"), {})
    assert asked == [("isp_hits", "isp_hits")]
