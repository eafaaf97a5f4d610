"""What attempts had built before builds were noted becomes one build each (migration 0011)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from include.ledger.database import upgrade
from tests.conftest import Home

pytestmark = pytest.mark.services

RECONCILED = '{"reconciliation": {"matched": 1, "pending": 0, "late": 0, "unexplained": 0}, "records": {"archived": 3}'


@pytest.fixture(scope="module")
def connection(new_home: Callable[..., Home]) -> Iterator[Connection]:
    """A ledger with a published attempt, and a later one that was built twice and killed while it registered."""
    home = new_home()
    home.run("up", "postgres")
    url = make_url(home.database.replace("postgresql://", "postgresql+psycopg2://"))
    with create_engine(url, isolation_level="AUTOCOMMIT").connect() as existing:
        existing.execute(text("CREATE DATABASE before_builds"))
    engine = create_engine(url.set(database="before_builds"))
    with engine.begin() as opened:
        upgrade(opened, "0010")
        execute(
            opened,
            "INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state) "
            "VALUES (1, 'p', '2026-11-18', '2026-11-19', 'test', 'registered')",
        )
        execute(
            opened,
            "INSERT INTO repins (interval_id, repinned_at, repinned_by, old_ranges, new_ranges) "
            "SELECT 1, now() + days * interval '1 day', 'test', '[]', '[]' FROM unnest(ARRAY[-1, 1]) days",
        )
        for number, verdict in (
            (1, f'{RECONCILED}, "validation": {{"success": true, "suite": "p"}}}}'),
            (2, RECONCILED + "}"),
        ):
            execute(
                opened,
                "INSERT INTO attempts (id, interval_id, run_by, code_version, source, verdict) "
                "VALUES (:id, 1, 'test', '1', 'kafka', CAST(:verdict AS jsonb))",
                id=number,
                verdict=verdict,
            )
        for name, partition, attempt, state, built in (
            ("r1", "date=1/i", 1, "registered", 1),
            ("r1", "date=2/i", 1, "registered", 1),
            ("r1", "date=3/i", 1, "registered", 1),
            ("r2", "date=2/i", 2, "built", 2),
            ("r3", "date=2/i", 2, "validated", 3),
            ("r3", "date=3/i", 2, "registering", 3),
        ):
            execute(
                opened,
                "INSERT INTO revisions (id, table_name, table_partition, interval_id, attempt_id, location, rows, "
                "content_hash, code_version, state, built_at, files) VALUES (:id, 't', :partition, 1, :attempt, "
                "'file:///lake', 1, 'h', '1', :state, make_timestamptz(2026, 11, 18, :built, 0, 0), '{}')",
                id=name,
                partition=partition,
                attempt=attempt,
                state=state,
                built=built,
            )
    with engine.begin() as opened:
        upgrade(opened)
        yield opened
    engine.dispose()
    home.end()


def execute(connection: Connection, statement: str, **values: object) -> list[Any]:
    result = connection.execute(text(statement), values)
    return [tuple(row) for row in result] if result.returns_rows else []


def test_each_attempt_has_one_build_and_passed_ones_are_published_when_migrated(connection: Connection) -> None:
    builds = "SELECT attempt_id, published_at IS NOT NULL, registering_at IS NOT NULL FROM builds ORDER BY id"
    assert execute(connection, builds) == [(1, True, False), (2, False, True)]
    unlinked = "SELECT count(*) FROM revisions r WHERE build_id IS NULL"
    assert execute(connection, unlinked) == [(0,)]


def test_repin_outdates_the_builds_that_were_noted_before_it_when_migrated(connection: Connection) -> None:
    assert execute(connection, "SELECT last_build FROM repins ORDER BY id") == [(0,), (2,)]


def test_what_an_attempt_built_first_is_discarded_when_it_was_built_twice(connection: Connection) -> None:
    states = "SELECT id, table_partition, state FROM revisions WHERE attempt_id = 2 ORDER BY id, table_partition"
    assert execute(connection, states) == [
        ("r2", "date=2/i", "discarded"),
        ("r3", "date=2/i", "validated"),
        ("r3", "date=3/i", "registering"),
    ]


def test_intent_has_points_drops_and_kept_revisions_when_a_begun_registration_is_migrated(
    connection: Connection,
) -> None:
    (changes,) = execute(connection, "SELECT changes FROM builds WHERE attempt_id = 2")[0]
    named = {part: [(each["revision"], each["partition"]) for each in each_part] for part, each_part in changes.items()}
    assert named == {"points": [("r3", "date=3/i")], "drops": [("r1", "date=1/i")], "kept": [("r3", "date=2/i")]}
