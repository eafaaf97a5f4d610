"""The ledger in numbers: exactly what counting all rows gives, after every change of one."""

from __future__ import annotations

import random
from dataclasses import replace

import psycopg2
import pytest

from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.intervals import attempts
from include.ledger.streams import writers
from include.ledger.streams.overview import quarantined_by_reason
from include.ledger.totals import interval_counts
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from tests.conftest import Home
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build, register

pytestmark = pytest.mark.services

NAMES = ("one", "other")
_INTERVALS = """
    SELECT pipeline, state, count(*), max(to_time) FROM intervals WHERE pipeline = ANY(%s) GROUP BY 1, 2 ORDER BY 1, 2
"""
_REASONS = (
    "SELECT reason, sum(records)::bigint FROM quarantine_counts WHERE pipeline = %s GROUP BY 1 ORDER BY 2 DESC, 1"
)


def check(home: Home, *pipelines: str) -> dict[tuple[str, str], int]:
    """Compare what the ledger tells with a count of all rows; return the intervals by pipeline and state."""
    told = [each for each in interval_counts() if each.pipeline in pipelines]
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        cursor.execute(_INTERVALS, [list(pipelines)])
        counted = cursor.fetchall()
        assert [(each.pipeline, each.state, each.count, each.last_end) for each in told] == counted
        for pipeline in pipelines:
            cursor.execute(_REASONS, [pipeline])
            assert [(each.reason, each.records) for each in quarantined_by_reason(pipeline)] == cursor.fetchall()
    return {(pipeline, state): number for pipeline, state, number, _ in counted}


def test_intervals_are_counted_by_state_when_they_are_pinned_built_fail_and_are_built_again(postgres: Home) -> None:
    name = "counted_intervals"
    assert check(postgres, name) == {}
    tries = [begin_attempt(name, hour(number)) for number in (2, 0, 1)]
    assert check(postgres, name) == {(name, "pinned"): 3}
    for attempt in tries[:2]:
        register(attempt, note_build(attempt))
        attempts.end_attempt(attempt, 0, {})
    attempts.end_attempt(tries[2], 4, {})
    assert check(postgres, name) == {(name, "registered"): 2, (name, "failed"): 1}
    # The last one runs again, and the latest is pinned again.
    again = build_and_register(name, hour(1))
    attempts.end_attempt(again, 0, {})
    assert check(postgres, name) == {(name, "registered"): 3}
    postgres.ledger(
        "UPDATE intervals SET state = 'pinned' WHERE pipeline = %s AND from_time = %s", name, hour(2).from_time
    )
    assert check(postgres, name) == {(name, "registered"): 2, (name, "pinned"): 1}


def test_reasons_are_counted_when_micro_batches_bring_quarantined_records(postgres: Home) -> None:
    lease, topic = writers.acquire("counted_reasons"), "counted"
    batch = BatchCommit(lease.pipeline, ARCHIVE, lease.pipeline, 0, topics={topic: TopicIdentity(topic, "id", 1)})
    for number, reasons in enumerate([{}, {"not_json": 2}, {"not_json": 3, "poison": 7}, {"poison": 1}]):
        ranges = [OffsetRange(TopicPartition(topic, 0), 10 * number, 10 * number + 10)]
        micro_batches.commit(lease, replace(batch, batch_id=number, ranges=ranges, reasons=reasons))
        check(postgres, lease.pipeline)
    told = quarantined_by_reason(lease.pipeline)
    assert [(each.reason, each.records) for each in told] == [("poison", 8), ("not_json", 5)]
    behind = replace(batch, batch_id=9, ranges=[OffsetRange(TopicPartition(topic, 0), 0, 10)], reasons={"poison": 9})
    with pytest.raises(Exception, match="the last commit ended at 40"):
        micro_batches.commit(lease, behind)
    assert quarantined_by_reason(lease.pipeline) == told


@pytest.mark.parametrize("seed", range(3))
def test_totals_are_those_of_all_rows_when_somebody_changes_rows_at_random(postgres: Home, seed: int) -> None:
    """As code of another version may, or a person: the totals follow the rows, whoever writes these."""
    chosen = random.Random(seed)
    names = [f"{name}_{seed}" for name in NAMES]
    of_hour = "pipeline = %(name)s AND from_time = %(hour)s"
    statements = {
        "INSERT INTO intervals (pipeline, from_time, to_time, pinned_by, state) "
        "VALUES (%(name)s, %(hour)s, %(hour)s + interval '1 hour', 'test', %(state)s) ON CONFLICT DO NOTHING": 6,
        f"UPDATE intervals SET state = %(state)s WHERE {of_hour}": 6,
        f"DELETE FROM intervals WHERE {of_hour}": 1,
        "INSERT INTO quarantine_counts VALUES (%(name)s, %(hour)s, %(reason)s, 3, 1) "
        "ON CONFLICT (pipeline, hour, reason) DO UPDATE SET records = quarantine_counts.records + 1": 8,
        "UPDATE quarantine_counts SET records = records + 5 WHERE reason = %(reason)s AND pipeline = %(name)s": 2,
    }
    with psycopg2.connect(postgres.database) as connection:
        connection.autocommit = True
        for number in range(120):
            (statement,) = chosen.choices(list(statements), list(statements.values()))
            values = {
                "name": chosen.choice(names),
                "hour": hour(chosen.randrange(24)).from_time,
                "state": chosen.choice(["pinned", "registered", "failed"]),
                "reason": chosen.choice(["not_json", "poison"]),
            }
            with connection.cursor() as cursor:
                cursor.execute(statement, values)
            if number % 10 == 9:
                check(postgres, *names)
