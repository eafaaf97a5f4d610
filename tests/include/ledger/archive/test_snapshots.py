"""Housekeeping's commit between the reads of landing files and of removed ranges, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from include.ledger.archive import landing_files, removal, snapshots
from include.ledger.database import session
from include.ledger.intervals import attempts, pins
from include.ledger.models import Revision
from include.offsets import OffsetRange
from tests.support.committed import DAY, commit, register, span

pytestmark = pytest.mark.services


def remove_between(monkeypatch: pytest.MonkeyPatch, batches: Iterable[int]) -> list[int]:
    """Remove the batches' files, by another connection, between the query of the landing files and the rest.

    Returns a list with an entry for each time that this happened.
    """
    removals: list[int] = []

    def removing_first(asked: Callable[..., list[OffsetRange]]) -> Callable[..., list[OffsetRange]]:
        def ask(ledger: Session, pipeline: str, *arguments: Any) -> list[OffsetRange]:
            removal.mark_removed(pipeline, batches)
            removals.append(len(removals))
            return asked(ledger, pipeline, *arguments)

        return ask

    monkeypatch.setattr(removal, "removed_in", removing_first(removal.removed_in))
    return removals


def landed(pipeline: str) -> list[str]:
    return [f"landing/{pipeline}/{number}/fate=archived/part.parquet" for number in (0, 1)]


def test_rows_of_ranges_lie_in_one_place_when_files_are_removed_meanwhile(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = register(pipeline, 0, 0, 10)
    batches = [commit(pipeline, 0, 0, 5, archived=5), commit(pipeline, 1, 5, 10, archived=5)]
    with monkeypatch.context() as patched:
        removals = remove_between(patched, batches)
        located = snapshots.rows_of_ranges(pipeline, "no_table", [span(0, 10)])
    assert len(removals) == 1
    assert (located.paths, located.removed, located.holdings) == (landed(pipeline), [], [])
    after = snapshots.rows_of_ranges(pipeline, "no_table", [span(0, 10)])
    assert (after.paths, after.removed) == ([], [span(0, 10)])
    assert [each.interval_id for each in after.holdings] == [interval]


def test_rows_of_time_lie_in_one_place_when_files_are_removed_meanwhile(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = register(pipeline, 0, 0, 10)
    batches = [commit(pipeline, 0, 0, 5, archived=5), commit(pipeline, 1, 5, 10, archived=5)]
    note_revision(pipeline, interval)
    span_of_time = (DAY, DAY + timedelta(hours=1))
    with monkeypatch.context() as patched:
        removals = remove_between(patched, batches)
        located = snapshots.rows_of_time(pipeline, pipeline, *span_of_time)
    assert len(removals) == 1
    assert (located.paths, located.removed) == (landed(pipeline), [])
    after = snapshots.rows_of_time(pipeline, pipeline, *span_of_time)
    assert (after.paths, after.removed) == ([], [span(0, 10)])
    assert (list(after.revisions), after.ranges) == ([interval], {interval: [span(0, 10)]})
    assert [each.topic_id for each in after.ranges[interval]] == ["id"], "its rows do not say it"


def test_rows_are_in_both_places_when_each_is_asked_for_in_a_transaction_of_its_own(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batches = [commit(pipeline, 0, 0, 5, archived=5), commit(pipeline, 1, 5, 10, archived=5)]
    paths = landing_files.files_covering(pipeline, [span(0, 10)], "archived")
    removal.mark_removed(pipeline, batches)
    assert (paths, removal.removed_ranges(pipeline, [span(0, 10)])) == (landed(pipeline), [span(0, 10)])


def test_next_transaction_is_an_ordinary_one_when_a_snapshot_has_ended(pipeline: str) -> None:
    snapshots.rows_of_ranges(pipeline, "no_table", [span(0, 10)])
    with session() as ledger:
        assert ledger.connection().get_isolation_level() == "READ COMMITTED"


def note_revision(table: str, interval: int) -> None:
    """A registered revision of the interval's day."""
    pinned = pins.find_interval(table, DAY)
    assert pinned is not None
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka")
    with session() as ledger:
        ledger.add(
            Revision(
                id=f"r-{interval}",
                attempt_id=attempt,
                code_version="1",
                table_name=table,
                table_partition=f"date={DAY.date()}/interval=0",
                interval_id=interval,
                state="registered",
                location="file:///nowhere",
                rows=10,
                content_hash="hash",
                files={},
            )
        )
