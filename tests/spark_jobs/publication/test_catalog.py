"""The catalog's columns follow the declaration: old and new partitions of a table are read by the columns of now."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from include.catalog import storage
from include.services.postgres import prepare_databases
from include.spark.run import run_job
from include.spark.submission import submission
from tests.conftest import REPOSITORY, Home, settings_of, warm_jvm

pytestmark = [pytest.mark.services]


@pytest.fixture(scope="module")
def at_home(new_home: Callable[..., Home]) -> Iterator[Home]:
    """PostgreSQL alone, with this process's settings in it."""
    home = new_home()
    home.run("up", "postgres")
    with settings_of(home, **warm_jvm().environment()):
        yield home
    home.end()


@pytest.fixture(scope="module")
def found(at_home: Home) -> dict[str, Any]:
    file = at_home.path / "found.json"
    job = submission("repair_catalog", str(file), name="changed columns")
    assert run_job(replace(job, job=str(REPOSITORY / "tests" / "support" / "changed_columns"))) == 0
    text: dict[str, Any] = json.loads(file.read_text())
    return text


def files(found: dict[str, Any]) -> list[str]:
    return [str(each) for at in found["locations"] for each in Path(at.removeprefix("file://")).glob("*.parquet")]


def test_spark_reads_old_and_new_partitions_when_columns_were_added_and_widened(found: dict[str, Any]) -> None:
    new, old = found["rows"]
    assert (old["id"], old["extra"], old["of"]) == ("old", None, {"a": 7, "b": None})
    assert (new["id"], new["extra"], new["of"]) == ("new", "set", {"a": 7, "b": "set"})
    for row in (old, new):
        values = [row[name] for name in ("n", "small", "x", "price", "day", "many")]
        assert values == [7, 7, 0.5, "1.2500", "2026-11-20", [7]]
    assert found["names"] == found["declared"]


def test_pyarrow_and_duckdb_read_partitions_by_one_schema_when_old_and_new_differ(found: dict[str, Any]) -> None:
    paths = files(found)
    schema = pa.unify_schemas([ds.dataset(path).schema for path in paths], promote_options="permissive")
    by_arrow = ds.dataset(paths, schema=schema).to_table().sort_by("id").to_pylist()
    quoted = ", ".join(f"'{path}'" for path in paths)
    by_duckdb = duckdb.sql(f"SELECT * FROM read_parquet([{quoted}], union_by_name=true) ORDER BY id")
    rows = [dict(zip(by_duckdb.columns, row, strict=True)) for row in by_duckdb.fetchall()]
    for new, old in (by_arrow, rows):
        assert (new["extra"], old["extra"]) == ("set", None)
        assert (new["of"], old["of"]) == ({"a": 7, "b": "set"}, {"a": 7, "b": None})
        for name in ("n", "small", "x", "price", "day", "many"):
            assert new[name] == old[name]


def test_other_readers_find_the_declared_columns_when_they_read_the_metastore(
    at_home: Home, found: dict[str, Any]
) -> None:
    stored = storage("changed")
    assert stored is not None
    assert [each["name"] for each in json.loads(stored.columns)["fields"]] == found["declared"]
    assert stored.partition_columns == ("date", "interval")
    query = (
        'SELECT c."COLUMN_NAME", c."TYPE_NAME" FROM "TBLS" t JOIN "SDS" s ON s."SD_ID" = t."SD_ID" '
        'JOIN "COLUMNS_V2" c ON c."CD_ID" = s."CD_ID" WHERE t."TBL_NAME" = %s ORDER BY c."INTEGER_IDX"'
    )
    columns = dict(at_home.rows("catalog", query, "changed"))
    assert {name: columns.get(name) for name in ("n", "x", "price")} == {
        "n": "bigint", "x": "double", "price": "decimal(12,4)",
    }  # fmt: skip


def test_narrower_declaration_is_refused_by_name_when_the_catalog_has_the_wider_one(found: dict[str, Any]) -> None:
    message, exit_code = found["narrower"]
    assert exit_code == 64
    assert "lake.changed" in message
    assert "extra string is not declared any more" in message
    assert "n is bigint in the catalog, declared is int" in message
    assert "declare a pipeline of another name" in message


def test_table_gets_other_columns_and_files_stay_when_nothing_was_registered_in_it(found: dict[str, Any]) -> None:
    anew = found["anew"]
    assert anew["tables"] == ["unused"]
    assert (anew["columns"][:2], anew["columns"][-2:]) == (["id", "at"], ["date", "interval"])
    assert "extra" not in anew["columns"]
    assert anew["stays"]


def test_catalog_orders_values_as_spark_does_when_its_database_was_made_in_another_collation(at_home: Home) -> None:
    """The embedded PostgreSQL has no collation in which `books` < `Z`."""
    by_default = 'ALTER TABLE "PARTITION_KEY_VALS" ALTER "PART_KEY_VAL" TYPE varchar(300) COLLATE "default"'
    at_home.rows("catalog", by_default)
    for _ in range(2):
        prepare_databases()
        found = at_home.rows(
            "catalog",
            "SELECT collation_name, character_maximum_length FROM information_schema.columns "
            "WHERE table_name = 'PARTITION_KEY_VALS' AND column_name = 'PART_KEY_VAL'",
        )
        assert found == [("C", 300)]
