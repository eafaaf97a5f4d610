"""Which columns of an output's table lose declared values, and how these are widened: no database."""

from __future__ import annotations

import pytest

from include.outputs.columns import Stored, changes
from include.outputs.connection import Database
from include.outputs.dialects import Dialect, Mariadb, Postgres
from include.pipelines.spec.ddl import fields_of

POSTGRES = Postgres(Database("postgresql", "db", 5432, "hits", "writer", ""))
MARIADB = Mariadb(Database("mariadb", "db", 3306, "hits", "writer", ""))


def changed(declared: str, stored: Stored, dialect: Dialect = POSTGRES) -> dict[str, str]:
    return changes(dialect, fields_of(f"n {declared}"), {"n": stored})


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ("BIGINT", Stored("integer", 32, 0)),
        ("BIGINT", Stored("numeric", 18, 0)),
        ("BIGINT", Stored("double precision", 53)),
        ("INT", Stored("smallint", 16, 0)),
        ("INT", Stored("mediumint", 7, 0)),
        ("INT", Stored("real", 24)),
        ("SMALLINT", Stored("tinyint", 3, 0)),
        ("DECIMAL(14, 4)", Stored("numeric", 10, 2)),
        ("DECIMAL(14, 4)", Stored("decimal", 14, 2)),
        ("DECIMAL(14, 4)", Stored("numeric", 13, 4)),
        ("DECIMAL(10, 0)", Stored("integer", 32, 0)),
        ("DECIMAL(5, 2)", Stored("bigint", 64, 0)),
        ("DECIMAL(20, 2)", Stored("double", 22)),
        ("DOUBLE", Stored("real", 24)),
        ("DOUBLE", Stored("bigint", 64, 0)),
        ("DOUBLE", Stored("numeric", 5, 2)),
        ("FLOAT", Stored("integer", 32, 0)),
        ("REAL", Stored("tinyint", 3, 0)),
        ("FLOAT", Stored("decimal", 38, 10)),
        ("TIMESTAMP", Stored("date")),
        ("TIMESTAMP_NTZ", Stored("date")),
        ("TIMESTAMP WITH LOCAL TIME ZONE", Stored("date")),
    ],
)
def test_column_loses_values_when_it_is_narrower_than_declared(declared: str, stored: Stored) -> None:
    assert len(changed(declared, stored)) == 1


@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ("TINYINT", Stored("tinyint", 3, 0)),
        ("TINYINT", Stored("smallint", 16, 0)),
        ("INT", Stored("bigint", 64, 0)),
        ("INT", Stored("double precision", 53)),
        ("BIGINT", Stored("bigint", 64, 0)),
        ("BIGINT", Stored("numeric", 19, 0)),
        ("BIGINT", Stored("numeric")),
        ("BIGINT", Stored("text")),
        ("DECIMAL(10, 2)", Stored("numeric", 10, 2)),
        ("DECIMAL(10, 2)", Stored("decimal", 14, 4)),
        ("DECIMAL(10, 2)", Stored("numeric")),
        ("DECIMAL(9, 0)", Stored("int", 10, 0)),
        ("DECIMAL", Stored("decimal", 10, 0)),
        ("FLOAT", Stored("real", 24)),
        ("DOUBLE", Stored("double", 22)),
        ("DOUBLE", Stored("numeric")),
        ("DOUBLE", Stored("text")),
        ("FLOAT", Stored("double precision", 53)),
        ("REAL", Stored("numeric")),
        ("DATE", Stored("timestamp with time zone")),
        ("TIMESTAMP", Stored("datetime")),
        ("STRING", Stored("character varying")),
        ("BOOLEAN", Stored("tinyint", 3, 0)),
        ("ARRAY<STRING>", Stored("jsonb")),
    ],
)
def test_column_stays_when_it_holds_what_is_declared(declared: str, stored: Stored) -> None:
    assert changed(declared, stored) == {}


def test_column_of_a_created_table_loses_nothing_whatever_is_declared() -> None:
    # What `information_schema` says about the types that are created.
    created = {"integer": Stored("integer", 32, 0), "smallint": Stored("smallint", 16, 0), "double": Stored("double")}
    for declared in ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "TIMESTAMP", "DATE"):
        for dialect in (POSTGRES, MARIADB):
            [each] = fields_of(f"n {declared}")
            kind = dialect.type_of(each)
            assert changed(declared, created.get(kind, Stored(kind)), dialect) == {}, (declared, kind)


@pytest.mark.parametrize("dialect", [POSTGRES, MARIADB])
@pytest.mark.parametrize(
    ("declared", "stored"),
    [
        ("REAL", "FLOAT"),
        ("INTEGER", "INT"),
        ("NUMERIC(5, 2)", "DECIMAL(5, 2)"),
        ("TIMESTAMP_LTZ", "TIMESTAMP"),
        ("TIMESTAMP WITH LOCAL TIME ZONE", "TIMESTAMP"),
        ("TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP_NTZ"),
    ],
)
def test_column_is_created_alike_when_its_type_has_another_word(dialect: Dialect, declared: str, stored: str) -> None:
    [one], [other] = fields_of(f"n {declared}"), fields_of(f"n {stored}")
    assert dialect.type_of(one) == dialect.type_of(other) != dialect.types["STRING"]


def test_action_widens_and_never_narrows_when_a_column_is_changed() -> None:
    assert changed("BIGINT", Stored("integer", 32, 0)) == {
        "would lose values: the column n is integer, declared is bigint": 'ALTER COLUMN "n" TYPE bigint'
    }
    assert changed("BIGINT", Stored("int", 10, 0), MARIADB) == {
        "would lose values: the column n is int, declared is bigint": "MODIFY COLUMN `n` bigint"
    }
    assert changed("FLOAT", Stored("integer", 32, 0)) == {
        "would lose values: the column n is integer, declared is double precision": (
            'ALTER COLUMN "n" TYPE double precision'
        )
    }
    assert changed("DECIMAL(14, 2)", Stored("numeric", 12, 6)) == {
        "would lose values: the column n is numeric(12,6), declared is decimal(14,2)": (
            'ALTER COLUMN "n" TYPE decimal(18,6)'
        )
    }
