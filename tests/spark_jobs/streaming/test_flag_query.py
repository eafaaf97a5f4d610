"""How the query for flags learns that new limits may be learned, on a real PostgreSQL and without Spark."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from include.ledger.database import engine
from include.ledger.streams import writers
from include.ledger.streams.generations import StreamGeneration
from include.pipelines import load_pipeline
from spark_jobs.streaming import flag_query
from spark_jobs.streaming.flag_query import FlagQuery
from spark_jobs.streaming.restarts import PoisonRestarts
from spark_jobs.streaming.started_code import StreamVersions
from tests.conftest import Home
from tests.support import ledger_history
from tests.support.ledger_history import PIPELINE
from tests.support.ledger_reads import statements_of

pytestmark = pytest.mark.services


def learning(monkeypatch: pytest.MonkeyPatch) -> tuple[FlagQuery, list[int]]:
    """A query, and how many revisions it learned from, each time."""
    learned: list[int] = []

    def note(spark: object, pipeline: object, views: object, revisions: list[object]) -> list[Any]:
        learned.append(len(revisions))
        return []

    monkeypatch.setattr(flag_query, "learned", note)
    pipeline, spark = load_pipeline(PIPELINE), None
    restarts = PoisonRestarts(PIPELINE, threading.Event())
    generation = StreamGeneration(PIPELINE, 0, {}, {})
    versions = StreamVersions("decoder", {}, "rules")
    lease = writers.acquire(PIPELINE)
    return FlagQuery(spark, pipeline, lease, generation, restarts, versions, until_caught_up=True), learned


def test_files_of_revisions_are_read_only_when_a_revision_is_new(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger_history.fill(postgres.database, 5)
    query, learned = learning(monkeypatch)
    found = []
    for state in ("registered", "registered", "superseded", "registered"):
        ledger_history.change(postgres.database, f"UPDATE revisions SET state = '{state}' WHERE id = 'r-4'")
        with statements_of(engine()) as sent:
            query._learn()
        found.append(any(re.search(r"\brevisions\.files\b", each) for each in sent))
    assert found == [True, False, True, True]
    assert learned == [5, 4, 5]
