"""A month of five pipelines: what pages ask of the ledger is answered from indexes, and in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.dialects import postgresql

from include.ledger.database import session
from include.ledger.pages import calendar, interval, trend
from include.offsets import OffsetRange, TopicPartition
from tests.conftest import Home
from tests.support.ledger_month import HOURS, PARTITIONS, PER_HOUR, fill, month_before

pytestmark = pytest.mark.services

NAMES = [f"pipeline_{n}" for n in range(5)]
WIDE = NAMES[0]
START = month_before(datetime(2026, 11, 20, 12, tzinfo=UTC))
END = START + timedelta(hours=HOURS)
SECONDS = 1.0
"""For a page; its queries are a part of that."""

BATCH_TABLES = ("micro_batches", "micro_batch_ranges", "landing_files")


@pytest.fixture(scope="module")
def month(postgres: Home) -> Home:
    fill(postgres.database, {name: [name, f"{name}_view"] for name in NAMES}, START, WIDE)
    return postgres


def plan_of(query: object) -> str:
    """The plan of a query, one line a step."""
    compiled = query.compile(dialect=postgresql.dialect(), compile_kwargs={"literal_binds": True})  # type: ignore[attr-defined]
    with session() as ledger:
        return "\n".join(ledger.execute(text("EXPLAIN " + str(compiled).replace(":", "\\:"))).scalars())


def seconds_of(work: Callable[[], object]) -> float:
    """The shorter of two runs: the first one fills the caches."""
    taken = []
    for _ in range(2):
        started = time.monotonic()
        work()
        taken.append(time.monotonic() - started)
    return min(taken)


def test_calendar_of_a_month_is_whole_and_in_time(month: Home) -> None:
    known = calendar.known_intervals(NAMES, START, END)
    assert len(known) == len(NAMES) * HOURS
    assert {len(each.delivered) for each in known} == {2}
    assert {(each.state, each.is_published, each.exit_code, each.unexplained) for each in known} == {
        ("registered", True, 0, 0)
    }
    assert seconds_of(lambda: calendar.known_intervals(NAMES, START, END)) < SECONDS
    assert calendar.pinned_time(NAMES)[WIDE] == (START, END)


def test_trend_of_a_table_is_whole_and_in_time(month: Home) -> None:
    def ask() -> None:
        builds = trend.built_intervals(WIDE, START, END)
        assert len(builds) == HOURS
        assert len(trend.registered_rows(WIDE, WIDE, START, END)) == HOURS
        fates = trend.fates(WIDE, START, END)
        assert {each.archived for each in fates.values()} == {PARTITIONS * (PER_HOUR - 3)}
        assert len(trend.expectations(WIDE, [each.build for each in builds])) == 8 * HOURS
        assert len(trend.quarantine_by_hour(WIDE, START, END)) == 3 * HOURS

    assert seconds_of(ask) < SECONDS


def test_interval_of_200_topic_partitions_is_whole_and_in_time(month: Home) -> None:
    found = interval.whole_interval(WIDE, START + timedelta(hours=5))
    assert found is not None
    assert len(found.ranges) == PARTITIONS
    assert found.before is not None
    assert found.before.to_time == found.interval.from_time
    assert found.after is not None
    assert seconds_of(lambda: interval.whole_interval(WIDE, START + timedelta(hours=5))) < SECONDS
    assert interval.whole_interval(WIDE, END + timedelta(days=9)) is None


def test_micro_batches_are_found_by_index_when_a_month_of_them_lies_behind(month: Home) -> None:
    within = OffsetRange(TopicPartition(f"{WIDE}-log", 7), 5 * PER_HOUR, 6 * PER_HOUR, "topic-id")
    (batch,) = interval.batches_of(WIDE, within)
    assert (batch.from_offset, batch.until_offset) == (within.from_offset, within.until_offset)
    assert [fate for fate, _ in batch.files] == ["archived", "quarantined"]
    for query in (interval.batches_query(WIDE, within), interval.files_query([batch.micro_batch])):
        plan = plan_of(query)
        assert "Index" in plan
        for table in BATCH_TABLES:
            assert f"Seq Scan on {table}" not in plan, plan


def test_pages_over_time_ask_no_micro_batches_and_find_their_intervals_by_index(month: Home) -> None:
    span = (START + timedelta(days=29), END)
    asked = [
        calendar.intervals_query(NAMES, *span),
        calendar.delivered_query(NAMES, *span),
        trend.builds_query(WIDE, *span),
        trend.registered_query(WIDE, WIDE, *span),
        trend.fates_query(WIDE, *span),
        trend.expectations_query(WIDE, [1, 2, 3]),
    ]
    for query in asked:
        plan = plan_of(query)
        assert not any(table in plan for table in BATCH_TABLES), plan
        assert "Seq Scan" not in plan, plan
