"""Columns that a Delta table cannot take: refused until it has the feature that Delta wants for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import UsageError
from include.ledger.streams.generations import StreamGeneration
from include.pipelines.spec import Archive
from include.spark.run import run_job
from include.spark.submission import submission
from tests.conftest import REPOSITORY, Home, settings_of, warm_jvm


@pytest.mark.services
def test_new_column_of_a_delta_table_is_refused_until_the_table_can_take_it(new_home: Callable[..., Home]) -> None:
    home = new_home()
    file = home.path / "found.json"
    # Nothing asks the ledger.
    database = {"TIDEMARK_DATABASE_URL": "postgresql://nobody@127.0.0.1:9"}
    with settings_of(home, **database, **warm_jvm().environment()):
        job = submission("stream", str(file), name="new delta time", delta=True)
        assert run_job(replace(job, job=str(REPOSITORY / "tests" / "support" / "new_delta_time"))) == 0
    found = json.loads(file.read_text())
    assert "DELTA_FEATURES_REQUIRE_MANUAL_ENABLEMENT" in found["delta"]
    assert "/delta/timed cannot take the column place.since: without Delta's feature timestampNtz" in found["refused"]
    # Before anything was appended by the new declaration.
    assert (found["shown"][:2], "place" in found["shown"]) == (["id", "at"], False)
    assert found["rows"] == ["2026-11-20 05:00:00"]
    widened = found["widened"]
    assert "DELTA_FAILED_TO_MERGE_FIELDS" in widened["delta"]
    said = (
        "/delta/widened has other types, which it kept while it was not declared: place.floor int, declared is bigint"
    )
    assert said in widened["refused"]
    assert found["types"] == ["int", "struct<floor:bigint>"]
    assert found["wide rows"] == [[7, 2**40]]
    # The statement changes no row: the rows of all intervals are not written again.
    assert found["foreign"] is False
    # A commit with the rows of an interval that is not to be put is another ledger's.
    assert found["of others"] == [False, True]
    known, newest, missing = found["commits"]
    assert (len(known), len(newest), known == newest, missing) == (36, 36, False, None)
    # Nothing was replaced by nothing twice; another session's commit came before the last.
    assert found["own"] == [0, None, None, 2]


class TableOfBefore:
    """A Delta table without the feature."""

    @staticmethod
    def isDeltaTable(*_: object) -> bool:  # noqa: N802
        return True

    @classmethod
    def forPath(cls, *_: object) -> Any:  # noqa: N802
        frame = SimpleNamespace(collect=lambda: [{"tableFeatures": ["appendOnly", "invariants"]}])
        return SimpleNamespace(detail=lambda: SimpleNamespace(select=lambda _: frame))


@pytest.fixture
def pipeline(monkeypatch: pytest.MonkeyPatch) -> Any:
    from spark_jobs.archive import delta

    monkeypatch.setattr(delta, "DeltaTable", TableOfBefore)
    columns = "at TIMESTAMP, since TIMESTAMP WITHOUT TIME ZONE"
    archive = Archive(rows="rows", columns=columns, event_time="at", delta=True)
    return SimpleNamespace(name="timed", archive=archive, archive_columns=columns)


REFUSED = "timed: the Delta table .*/delta/timed cannot take the column since"


def test_stream_does_not_start_when_its_delta_table_cannot_take_a_column(pipeline: Any) -> None:
    from spark_jobs.streaming.queries import StreamQueries

    class Queries(StreamQueries):
        def running(self) -> bool:
            return False

    nothing: Any = None
    with pytest.raises(UsageError, match=REFUSED):
        Queries(nothing, pipeline, nothing, StreamGeneration("timed", 1, {}, {}), until_caught_up=True)


def test_nothing_is_registered_when_the_delta_table_cannot_take_a_column(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.publication import publish_build

    monkeypatch.setattr(publish_build, "_check_reconciled", lambda run: 1)
    monkeypatch.setattr(publish_build, "check_storage", lambda pipeline: None)
    run: Any = SimpleNamespace(pipeline=pipeline, spark=None)
    with pytest.raises(UsageError, match=REFUSED):
        publish_build._publish_alone(run, lambda: None)
