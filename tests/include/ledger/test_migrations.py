"""The ledger's migrations against its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, make_url, text

from include.ledger.database import upgrade
from include.ledger.models import Base
from tests.conftest import Home

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def database(new_home: Callable[..., Home]) -> Iterator[str]:
    home = new_home()
    home.run("up", "postgres")
    yield home.database.replace("postgresql://", "postgresql+psycopg2://")
    home.end()


@pytest.fixture
def old(database: str) -> Iterator[Engine]:
    """A database for a ledger of an older version."""
    with create_engine(database, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("CREATE DATABASE old"))
        empty = create_engine(make_url(database).set(database="old"))
        yield empty
        empty.dispose()
        connection.execute(text("DROP DATABASE old"))


def test_ledger_equals_the_models_when_it_is_migrated(database: str) -> None:
    with create_engine(database).connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    assert differences == []


def test_table_and_column_have_a_comment_when_they_exist(database: str) -> None:
    with create_engine(database).connect() as connection:
        found = inspect(connection)
        tables = [name for name in found.get_table_names() if name != "alembic_version"]
        assert len(tables) == len(Base.metadata.tables)
        for table in tables:
            assert found.get_table_comment(table)["text"], table
            for column in found.get_columns(table):
                assert column["comment"], f"{table}.{column['name']}"


def test_rows_keep_their_fate_when_a_ledger_with_outcomes_is_migrated(old: Engine) -> None:
    with old.begin() as connection:
        upgrade(connection, "0009")
        connection.execute(
            text(
                "INSERT INTO micro_batches (id, pipeline, query, query_id, batch_id, token, records, rows, seconds) "
                "VALUES (1, 'p', 'archive', 'q', 0, 1, 2, 2, 0.5)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO landing_files (micro_batch_id, outcome, path, rows, bytes, event_time_min, "
                "event_time_max) SELECT 1, f, 'landing/p/0/outcome=' || f, 1, 9, '2026-11-18', '2026-11-19' "
                "FROM unnest(ARRAY['archived', 'empty']) f"
            )
        )
        connection.execute(
            text(
                "INSERT INTO replays (pipeline, topic, topic_id, topic_partition, record_offset, outcome, replayed_by, "
                "decoder_version, micro_batch_id) VALUES ('p', 't', 'i', 0, 7, 'empty', 'test', '1', 1)"
            )
        )
    with old.begin() as connection:
        upgrade(connection)
        files = connection.execute(text("SELECT fate, path, rows FROM landing_files ORDER BY fate")).all()
        # What was landed before stays where it was landed.
        assert [tuple(row) for row in files] == [
            ("archived", "landing/p/0/outcome=archived", 1),
            ("empty", "landing/p/0/outcome=empty", 1),
        ]
        assert connection.scalar(text("SELECT fate FROM replays WHERE record_offset = 7")) == "empty"
        indexes = connection.execute(
            text("SELECT indexdef FROM pg_indexes WHERE tablename = 'landing_files'")
        ).scalars()
        assert [each for each in indexes if "WHERE ((fate)::text = 'archived'" in each]
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


_BEFORE_NOTES = """
INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state)
SELECT h, 'p', '2026-01-01Z'::timestamptz + h * interval '1 hour',
    '2026-01-01Z'::timestamptz + (h + 1) * interval '1 hour', 'test', CASE h WHEN 7 THEN 'failed' ELSE 'registered' END
FROM unnest(ARRAY[0, 1, 2, 3, 4, 7, 8]) h;
INSERT INTO interval_ranges (interval_id, topic, topic_partition, topic_id, from_offset, until_offset)
SELECT id, 't', 0, 'i', id, id + 1 FROM intervals;
INSERT INTO attempts (id, interval_id, run_by, code_version, source)
SELECT id, id, 'test', '1', 'kafka' FROM intervals;
INSERT INTO builds (id, attempt_id, interval_id, findings, changes, published_at, passed, columns)
SELECT id, id, id, '{}', '{"points": [], "drops": []}', now(), true,
    CASE WHEN id > 2 THEN '{"p": {}, "p_view": {}}'::jsonb WHEN id > 0 THEN '{"p": {}}'::jsonb END
FROM intervals WHERE state = 'registered';
-- A rerun without the view, and one that was not published.
INSERT INTO builds (id, attempt_id, interval_id, findings, changes, published_at, passed, columns) VALUES
    (11, 3, 3, '{}', '{"points": [{}], "drops": []}', now(), true, '{"p": {}}'),
    (12, 4, 4, '{}', NULL, NULL, false, '{"p": {}}');
INSERT INTO proofs (pipeline, build_id, tables, path, sha256) VALUES
    ('p', 1, '[]', 'a', 'a'), ('p', 3, '[]', 'b', 'b'), ('p', 4, '[]', 'c', 'c');
INSERT INTO revisions (id, table_name, table_partition, interval_id, attempt_id, location, rows, content_hash,
    code_version, state, registered_at, files)
SELECT 'r' || i.id, t, 'interval=' || i.id, i.id, i.id, 'file:///nowhere', 1, 'hash', '1', 'registered', now(), '{}'
FROM intervals i, unnest(ARRAY['p', 'p_view']) t WHERE i.state = 'registered' AND (t = 'p' OR i.id > 3);
INSERT INTO quarantine_counts (pipeline, hour, reason, records, last_batch)
SELECT p, '2026-01-01Z'::timestamptz + h * interval '1 hour', 'not_json', 2 + h, 1
FROM generate_series(0, 3) h, unnest(ARRAY['p', 'q']) p;
"""

_COMPLETENESS = ("waiting_spans", "pipeline_completeness", "table_completeness", "topic_partition_completeness")


def test_same_is_complete_and_unproved_when_an_older_ledger_is_migrated(old: Engine) -> None:
    def complete() -> dict[str, list[tuple[object, ...]]]:
        with old.connect() as connection:
            return {
                view: sorted(map(tuple, connection.execute(text(f"SELECT * FROM {view}"))), key=repr)
                for view in _COMPLETENESS
            }

    with old.begin() as connection:
        upgrade(connection, "0045")
        connection.exec_driver_sql(_BEFORE_NOTES)
    before = complete()
    assert {table: begin.hour for table, _, begin, *_ in before["table_completeness"]} == {"p": 0, "p_view": 4}
    with old.begin() as connection:
        upgrade(connection)
        apart = connection.scalars(text("SELECT id FROM intervals WHERE NOT adjoins ORDER BY id")).all()
        unproved = connection.scalars(text("SELECT id FROM builds WHERE NOT proved ORDER BY id")).all()
        counts = connection.execute(text("SELECT * FROM pinned_counts")).all()
        totals = connection.execute(text("SELECT * FROM quarantine_totals ORDER BY pipeline")).all()
    assert complete() == before
    assert list(map(tuple, counts)) == [("p", 7)]
    assert list(map(tuple, totals)) == [("p", "not_json", 14), ("q", "not_json", 14)]
    assert apart == [0, 7]
    # Of the third interval the rerun is to be proved, of two others there is no proof.
    assert unproved == [0, 2, 3, 8, 11, 12]


_SKIPPED = """
DROP TABLE outages;
ALTER TABLE micro_batches DROP COLUMN watched;
DROP INDEX ix_micro_batch_ranges_span;
CREATE INDEX ix_micro_batch_ranges_span ON micro_batch_ranges USING gist (int8range(from_offset, until_offset));
DROP INDEX ix_interval_ranges_span;
CREATE INDEX ix_interval_ranges_span ON interval_ranges USING gist (int8range(from_offset, until_offset));
ALTER TABLE limits_versions DROP COLUMN erased_rules;
"""


def test_skipped_migrations_are_made_up_for_when_a_ledger_counts_as_past_them(old: Engine) -> None:
    with old.begin() as connection:
        upgrade(connection, "0053")
        connection.exec_driver_sql(_SKIPPED)
    with old.begin() as connection:
        upgrade(connection)
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
        spans = text("SELECT indexdef FROM pg_indexes WHERE indexname LIKE '%ranges_span'")
        assert ["numrange" in each for each in connection.scalars(spans)] == [True, True]


_STARTED = """
INSERT INTO generations (pipeline, number, started_by, reason, fingerprints, positions) VALUES
    ('p', 0, 'x', 'first start', '{"archive": {}, "v": {"event time": "a"}}', '{}'),
    ('p', 1, 'x', 'new views', '{"archive": {}, "v": {"event time": "b"}, "w": {"event time": "b"}}', '{}'),
    ('p', 2, 'x', 'not started', '{}', '{}'),
    ('q', 0, 'x', 'first start', '{"archive": {}, "gone": {"event time": "a"}, "v": {"event time": "b"}}', '{}'),
    ('r', 0, 'x', 'first start', '{"archive": {}, "v": {"event time": "a"}}', '{}'),
    ('r', 1, 'x', 'without views', '{"archive": {}}', '{}')
"""


def test_event_time_is_that_of_the_newest_started_generation_and_unknown_when_its_views_differ(old: Engine) -> None:
    with old.begin() as connection:
        upgrade(connection, "0057")
        connection.exec_driver_sql(_STARTED)
        upgrade(connection)
        noted = connection.execute(text("SELECT pipeline, number, event_time FROM generations ORDER BY 1, 2")).all()
    assert [tuple(each) for each in noted if each.event_time] == [("p", 1, "b")]


_PUBLISHED = """
INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state)
SELECT id, CASE WHEN id < 10 THEN 'p' ELSE 'never' END, '2026-01-01Z'::timestamptz + id * interval '1 hour',
    '2026-01-01Z'::timestamptz + (id + 1) * interval '1 hour', 'test', 'registered'
FROM unnest(ARRAY[1, 2, 3, 4, 5, 10]) id;
INSERT INTO attempts (id, interval_id, run_by, code_version, source)
SELECT id, id, 'test', '1', 'kafka' FROM intervals;
INSERT INTO builds (id, attempt_id, interval_id, findings, published_at)
SELECT id, of, of, CASE WHEN noted THEN '{"delta": {"view": "lake.p_delta", "version": 1}}' ELSE '{}' END::jsonb,
    CASE WHEN published THEN '2026-01-01Z'::timestamptz + id * interval '1 day' END
FROM (VALUES
    (1, 1, false, true), -- before there was such a table
    (2, 2, true, true),
    (3, 3, false, true), -- its publication was killed
    (4, 4, false, true), -- the same, and it was run again
    (5, 4, true, true),
    (6, 5, true, true),
    (7, 5, false, true), -- a rerun was killed
    (8, 2, false, false),
    (9, 10, false, true)
) made (id, of, noted, published);
"""


def test_builds_are_in_the_delta_table_but_for_those_that_a_killed_publication_left_out(old: Engine) -> None:
    with old.begin() as connection:
        upgrade(connection, "0060")
        connection.exec_driver_sql(_PUBLISHED)
        upgrade(connection)
        lacking = connection.scalars(text("SELECT id FROM builds WHERE NOT in_delta ORDER BY id")).all()
    assert lacking == [3, 7, 8, 9]


_LISTED = """
INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state)
SELECT h, 'p', '2026-01-01Z'::timestamptz + h * interval '1 hour',
    '2026-01-01Z'::timestamptz + (h + 1) * interval '1 hour', 'test', CASE h WHEN 3 THEN 'failed' ELSE 'registered' END
FROM generate_series(1, 4) h;
INSERT INTO attempts (id, interval_id, run_by, code_version, source)
SELECT id, id, 'test', '1', 'kafka' FROM intervals;
INSERT INTO builds (id, attempt_id, interval_id, findings, registering_at, published_at, unexplained) VALUES
    (11, 1, 1, '{}', now(), now(), 0), (12, 1, 1, '{}', NULL, NULL, 0),
    (21, 2, 2, '{}', now(), now(), 0), (22, 2, 2, '{}', now(), NULL, 0),
    (31, 3, 3, '{}', NULL, NULL, 0), (32, 3, 3, '{}', NULL, NULL, 1);
INSERT INTO listed_rows (interval_id, report, key, "row", notified_at)
SELECT id, 'Offline', k, '{}', CASE k WHEN 'sent' THEN now() END FROM intervals, unnest(ARRAY['sent', 'unsent']) k;
"""


def test_listed_rows_are_of_the_build_that_is_or_may_be_registered_when_they_are_migrated(old: Engine) -> None:
    with old.begin() as connection:
        upgrade(connection, "0059")
        connection.exec_driver_sql(_LISTED)
        upgrade(connection)
        rows = text("SELECT interval_id, build_id, key, notified_at IS NOT NULL FROM listed_rows ORDER BY 1, 2, 3")
        noted = list(map(tuple, connection.execute(rows)))
    builds = {1: 11, 2: 22, 3: 31, 4: 0}
    assert noted == [(at, of, key, key == "sent") for at, of in builds.items() for key in ("sent", "unsent")]
