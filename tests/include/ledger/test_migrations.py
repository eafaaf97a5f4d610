"""The ledger's migrations against its models."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, inspect

from include.ledger.models import Base
from tests.conftest import Home

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def database(new_home: Callable[..., Home]) -> Iterator[str]:
    home = new_home()
    home.run("up", "postgres")
    yield home.database.replace("postgresql://", "postgresql+psycopg2://")
    home.end()


def test_migrated_ledger_is_what_the_models_say(database: str) -> None:
    with create_engine(database).connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), Base.metadata)
    assert differences == []


def test_every_table_and_column_carries_a_comment(database: str) -> None:
    with create_engine(database).connect() as connection:
        found = inspect(connection)
        tables = [name for name in found.get_table_names() if name != "alembic_version"]
        assert len(tables) == len(Base.metadata.tables)
        for table in tables:
            assert found.get_table_comment(table)["text"], table
            for column in found.get_columns(table):
                assert column["comment"], f"{table}.{column['name']}"
