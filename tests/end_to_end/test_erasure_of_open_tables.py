"""A thousand persons are erased from Iceberg tables, too, by an erasure that is killed at each step of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from include.iceberg import catalog as iceberg_catalog
from tests.conftest import Home, last_hours
from tests.support import audit, duckdb_iceberg, persons, remnants
from tests.support.checkout import HomeOfCheckout, copy_checkout
from tests.support.persons import MARK, PERSONS

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.faults]

START = last_hours(3)
SECOND = START + timedelta(hours=1)
DECLARED = "include/pipelines/wiki_changes.py"
TABLES = {
    "wiki_changes": ("id", "user", "kafka_partition", "kafka_offset"),
    "wiki_changes_user_edits": ("user", "count"),
}

KILLED_AT = (
    "erased_revisions_retired",
    "erased_head_said_again",
    "erased_snapshots_expired",
    "metadata_deleted",
    "metadata_deleted:2",
    "erased_files_swept",
)
"""Of the sweep, in order."""


@pytest.fixture(scope="module")
def landed(in_process: Home, tmp_path_factory: pytest.TempPathFactory) -> HomeOfCheckout:
    """Two hours, published; both tables are Iceberg tables."""
    made = copy_checkout(tmp_path_factory.mktemp("open") / "checkout", in_process)
    made.edit(DECLARED, 'subject="user",', 'subject="user",\n        iceberg=True,')
    made.edit(DECLARED, 'windows=TimeWindow("10m"),', 'windows=TimeWindow("10m"),\n            iceberg=True,')
    home = HomeOfCheckout(in_process.path, code=made.path)
    persons.produce(home, START)
    home.run("stream", "wiki_changes", "--until-caught-up")
    for start in (START - timedelta(hours=1), START, SECOND):
        assert home.interval("wiki_changes", start)["reconciliation"]["unexplained"] == 0
    return home


@pytest.fixture(scope="module")
def before(landed: HomeOfCheckout) -> dict[str, list[str]]:
    """Tags of each table's verdicts, oldest first."""
    return {name: tags(name) for name in TABLES}


@pytest.fixture(scope="module")
def erased(
    landed: HomeOfCheckout, before: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """The command's final output."""
    assert list(remnants.in_files(landed.lake / "iceberg", MARK))
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("\n".join(PERSONS) + "\n", encoding="utf-8")
    asked: Sequence[str] = ("erase", "wiki_changes", "--keys-file", str(keys), "--reason", "a request")
    for moment in KILLED_AT:
        killed = landed.run(*asked, expect=None, TIDEMARK_CRASH_AT=moment)
        assert killed.returncode < 0, f"not killed at {moment}: {killed.stderr[-3000:]}"
        asked = ("erase", "wiki_changes", "--resume")
    account: dict[str, Any] = landed.json(*asked, "--json")
    return account


def load(name: str) -> Table:
    with iceberg_catalog.opened() as catalog:
        return catalog.load_table(("lake", name))


def tags(name: str) -> list[str]:
    return sorted(each for each in load(name).refs() if each != "main")


def comparable(rows: list[dict[str, Any]], names: Sequence[str]) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[each] for each in names) for row in rows), key=repr)


def test_no_file_of_the_lake_holds_a_key(landed: HomeOfCheckout, erased: dict[str, Any]) -> None:
    assert (erased["keys"], erased["records"], erased["built_intervals"]) == (1000, 2200, 2)
    assert erased["ended_at"]
    assert list(remnants.in_files(landed.lake, MARK)) == []
    assert [remnants.in_database(landed, MARK, name) for name in ("ledger", "catalog")] == [[], []]


@pytest.mark.parametrize("name", TABLES)
def test_every_reader_finds_what_hive_finds(landed: HomeOfCheckout, erased: dict[str, Any], name: str) -> None:
    columns = TABLES[name]
    listed = ", ".join(f"`{each}`" for each in columns)
    wanted = comparable(landed.json("sql", f"SELECT {listed} FROM lake.{name}", "--json"), columns)
    assert wanted
    table = load(name)
    assert comparable(table.scan().to_arrow().to_pylist(), columns) == wanted
    assert comparable(pl.scan_iceberg(table).select(columns).collect().to_dicts(), columns) == wanted
    quoted = ", ".join(f'"{each}"' for each in columns)
    found = duckdb_iceberg.query(f"SELECT {quoted} FROM iceberg_scan('{table.metadata_location}')")
    assert comparable(found, columns) == wanted


def test_verdicts_with_erased_rows_are_gone_and_the_others_can_be_travelled_to(
    landed: HomeOfCheckout, before: dict[str, list[str]], erased: dict[str, Any]
) -> None:
    for name, known in before.items():
        table, kept = load(name), tags(name)
        # Of the hour before the first person, and of the verdict after the last.
        assert kept[0] == known[0]
        assert len(kept) == 2
        assert kept[1] not in known
        for each in table.snapshots():
            rows: pa.Table = table.scan(snapshot_id=each.snapshot_id).to_arrow()
            assert not any(user.startswith(MARK) for user in rows["user"].to_pylist())
    findings = json.loads(landed.run("doctor", "--json", expect=None).stdout)["findings"]
    assert [each for each in findings if each["kind"]] == []


def test_intervals_are_run_again_and_committed_as_ever(landed: HomeOfCheckout, erased: dict[str, Any]) -> None:
    verdict = landed.interval("wiki_changes", START, "--source", "kafka")
    assert (verdict["records"]["erased"], verdict["reconciliation"]["unexplained"]) == (1100, 0)
    table = load("wiki_changes")
    assert {each["tag"] for each in verdict["iceberg"]} <= {*tags("wiki_changes")}
    registered = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "wiki_changes")
    label = START.strftime("%Y-%m-%dT%H")
    assert audit.identities(table.scan(row_filter=f"interval = '{label}'").to_arrow()) == audit.identities(registered)
