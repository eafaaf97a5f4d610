"""The ledger's migrations against its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url, text

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


def test_rows_keep_their_fate_when_a_ledger_with_outcomes_is_migrated(database: str) -> None:
    with create_engine(database, isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("CREATE DATABASE before_fates"))
    old = create_engine(make_url(database).set(database="before_fates"))
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
    old.dispose()
