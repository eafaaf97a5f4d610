"""Columns that are renamed by declaration: every reader finds every value, by one name or by the other, at any time."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyiceberg.table import Table

from include.iceberg import catalog as iceberg_catalog
from tests.conftest import Home, iso, last_hours
from tests.support import audit, duckdb_iceberg
from tests.support.checkout import HomeOfCheckout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

TABLE, VIEW = "wiki_changes", "wiki_changes_user_edits"
START = last_hours(4)
HOURS = [START + timedelta(hours=n) for n in range(3)]
DECLARED, TRANSFORMS = "include/pipelines/wiki_changes.py", "spark_jobs/transforms/wiki_changes.py"
SUITE = "expectations/wiki_changes.py"

ICEBERG = {
    DECLARED: [
        ('subject="user",', 'subject="user",\n        iceberg=True,'),
        ('windows=TimeWindow("10m"),', 'windows=TimeWindow("10m"),\n            iceberg=True,'),
    ]
}
# `namespace` becomes wider, too.
RENAMED = {
    DECLARED: [
        (
            "server_name STRING, wiki STRING, type STRING, namespace INT,",
            "server_name STRING, site STRING, type STRING, space BIGINT,",
        ),
        ('subject="user",', 'subject="user",\n        renamed={"site": "wiki", "space": "namespace"},'),
        ("TIMESTAMP>, count BIGINT", "TIMESTAMP>, edits BIGINT"),
        ('measures=("count",),', 'measures=("edits",),\n            renamed={"edits": "count"},'),
        ('measure="count"', 'measure="edits"'),
    ],
    TRANSFORMS: [
        (
            "message[name].alias(name) for",
            'message[name].alias({"wiki": "site", "namespace": "space"}.get(name, name)) for',
        ),
        ('.alias("count")', '.alias("edits")'),
        ('"window", "count")', '"window", "edits")'),
    ],
    SUITE: [('column="count"', 'column="edits"')],
}  # fmt: skip
BACK = {
    DECLARED: [
        ("server_name STRING, site STRING,", "server_name STRING, wiki STRING,"),
        ('renamed={"site": "wiki", ', 'renamed={"wiki": "site", '),
    ],
    TRANSFORMS: [('{"wiki": "site", "namespace": "space"}', '{"namespace": "space"}')],
}


def deployed(path: Path, home: Home, *changes: dict[str, list[tuple[str, str]]]) -> HomeOfCheckout:
    """The home as another deployment of the code uses it."""
    made = copy_checkout(path / "checkout", home)
    for change in changes:
        for file, edits in change.items():
            for old, new in edits:
                made.edit(file, old, new)
    return HomeOfCheckout(home.path, code=made.path)


@pytest.fixture(scope="module")
def first(in_process: Home, tmp_path_factory: pytest.TempPathFactory) -> HomeOfCheckout:
    """Three hours landed, two of them registered, by the names of before."""
    home = deployed(tmp_path_factory.mktemp("first"), in_process, ICEBERG)
    home.run("produce", TABLE, "--events", "900", "--start", iso(START), "--span", "3h")
    home.run("stream", TABLE, "--until-caught-up")
    for start in HOURS[:2]:
        assert home.interval(TABLE, start)["reconciliation"]["unexplained"] == 0
    return home


@pytest.fixture(scope="module")
def wanted(first: HomeOfCheckout) -> dict[tuple[int, int], tuple[str, int]]:
    """Wiki and namespace of each record, as its message has them."""
    found = {}
    for (_, partition, offset), record in audit.read_topic(first.kafka, "wiki-changes").items():
        change = json.loads(record.value or b"{}")
        if change.get("meta", {}).get("domain") != "canary":
            found[partition, offset] = (change["wiki"], change["namespace"])
    return found


@pytest.fixture(scope="module")
def tags(first: HomeOfCheckout) -> list[str]:
    """The verdicts' tags before the rename, oldest first."""
    return sorted(name for name in load(TABLE).refs() if name != "main")


@pytest.fixture(scope="module")
def renaming(first: HomeOfCheckout, tags: list[str], tmp_path_factory: pytest.TempPathFactory) -> HomeOfCheckout:
    """The deployment that declares new names; the third hour is registered by it."""
    home = deployed(tmp_path_factory.mktemp("renaming"), first, ICEBERG, RENAMED)
    home.run("new-generation", TABLE, "--reason", "a measure has another name")
    home.run("stream", TABLE, "--until-caught-up")
    assert home.interval(TABLE, HOURS[2])["reconciliation"]["unexplained"] == 0
    return home


@pytest.fixture(scope="module")
def renamed(renaming: HomeOfCheckout) -> HomeOfCheckout:
    """The same after all older intervals were built again; killed once, after Hive's tables changed."""
    before = renaming.json("rename", TABLE, "--dry-run", "--json")
    assert before["left"] == [iso(start) for start in HOURS[:2]]
    assert before["shown_as"] == {TABLE: {"site": "wiki", "space": "namespace"}, VIEW: {"edits": "count"}}
    killed = renaming.run("rename", TABLE, "--json", expect=None, TIDEMARK_CRASH_AT="columns_renamed")
    assert killed.returncode not in (0, 64), killed.stderr[-3000:]
    done = renaming.json("rename", TABLE, "--json")
    assert (done["built_intervals"], done["left"], done["shown_as"]) == (0, [], {})
    return renaming


def load(name: str) -> Table:
    with iceberg_catalog.opened() as catalog:
        return catalog.load_table(("lake", name))


def by_record(rows: list[dict[str, Any]], *names: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    return {(row["kafka_partition"], row["kafka_offset"]): tuple(row[name] for name in names) for row in rows}


def by_hive(home: HomeOfCheckout, *names: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    columns = ", ".join(f"`{name}`" for name in names)
    rows = home.json("sql", f"SELECT kafka_partition, kafka_offset, {columns} FROM lake.{TABLE}", "--json")
    return by_record(rows, *names)


def by_others(*names: str) -> list[dict[tuple[int, int], tuple[Any, ...]]]:
    """What PyIceberg, Polars and DuckDB find."""
    table, columns = load(TABLE), ["kafka_partition", "kafka_offset", *names]
    listed = ", ".join(f'"{name}"' for name in columns)
    return [
        by_record(table.scan(selected_fields=tuple(columns)).to_arrow().to_pylist(), *names),
        by_record(pl.scan_iceberg(table).select(columns).collect().to_dicts(), *names),
        by_record(duckdb_iceberg.query(f"SELECT {listed} FROM iceberg_scan('{table.metadata_location}')"), *names),
    ]


def locations(home: HomeOfCheckout, table: str) -> list[str]:
    rows = home.json("sql", f"SELECT DISTINCT input_file_name() AS file FROM lake.{table}", "--json")
    return sorted({row["file"] for row in rows})


def by_files(home: HomeOfCheckout, *names: str) -> dict[tuple[int, int], tuple[Any, ...]]:
    """What pyarrow finds in the registered files, without any catalog."""
    rows: list[dict[str, Any]] = []
    for file in locations(home, TABLE):
        table = ds.dataset(file.replace("file:///", "/"), format="parquet").to_table()
        assert set(names) <= set(table.column_names), (file, table.column_names)
        rows += table.select(["kafka_partition", "kafka_offset", *names]).to_pylist()
    return by_record(rows, *names)


def test_tables_show_the_former_name_when_older_files_lack_the_new_one(
    renaming: HomeOfCheckout, wanted: dict[tuple[int, int], tuple[str, int]]
) -> None:
    assert by_hive(renaming, "wiki", "namespace") == wanted
    assert all(found == wanted for found in by_others("wiki", "namespace"))
    assert by_files(renaming, "wiki", "namespace") == wanted
    assert renaming.run("sql", f"SELECT site FROM lake.{TABLE}", expect=None).returncode != 0
    (counted,) = renaming.json("sql", f"SELECT count(*) AS n, count(`count`) AS c FROM lake.{VIEW}", "--json")
    assert int(counted["n"]) == int(counted["c"]) > 0
    findings = json.loads(renaming.run("doctor", "--json", expect=None).stdout)["findings"]
    assert [each for each in findings if each["kind"]] == []
    assert any("lack the new name" in each["what"] and each["notice"] for each in findings)


def test_every_reader_finds_all_values_by_the_new_name_when_all_files_have_it(
    renamed: HomeOfCheckout, wanted: dict[tuple[int, int], tuple[str, int]]
) -> None:
    assert by_hive(renamed, "site", "space") == wanted
    for found in by_others("site", "space"):
        assert found == wanted
    assert by_files(renamed, "site", "space") == wanted
    assert renamed.run("sql", f"SELECT wiki FROM lake.{TABLE}", expect=None).returncode != 0
    schema = load(TABLE).schema()
    assert "wiki" not in schema.column_names
    assert str(schema.find_type("space")) == "long"
    (hive,) = renamed.json("sql", f"SELECT sum(edits) AS n FROM lake.{VIEW}", "--json")
    rows: pa.Table = load(VIEW).scan().to_arrow()
    assert sum(rows["edits"].to_pylist()) == int(hive["n"]) > 0
    findings = json.loads(renamed.run("doctor", "--json", "--deep", expect=None).stdout)["findings"]
    assert [each for each in findings if each["kind"]] == []


def test_former_name_is_found_when_a_verdict_of_before_is_travelled_to_by_its_tag(
    renamed: HomeOfCheckout, tags: list[str], wanted: dict[tuple[int, int], tuple[str, int]]
) -> None:
    table = load(TABLE)
    snapshot = table.refs()[tags[-1]].snapshot_id
    then = by_record(table.scan(snapshot_id=snapshot).to_arrow().to_pylist(), "wiki", "namespace")
    assert then
    assert then == {at: wanted[at] for at in then}


def test_reruns_and_rebuilds_give_the_same_and_proofs_hold_when_a_column_was_renamed(
    renamed: HomeOfCheckout, wanted: dict[tuple[int, int], tuple[str, int]]
) -> None:
    known = locations(renamed, TABLE)
    for source in ("archive", "kafka"):
        verdict = renamed.interval(TABLE, HOURS[0], "--source", source)
        assert verdict["reconciliation"]["unexplained"] == 0
    assert locations(renamed, TABLE) == known
    renamed.run("rebuild", TABLE, next(e["partition"] for e in verdict["registered"] if e["table"] == TABLE))
    for proof in {each["proof"] for each in verdict["registered"]}:
        renamed.run("verify", proof.removeprefix("file://"))
    assert by_hive(renamed, "site", "space") == wanted


BESIDE = ("log_params STRING, schema_uri", "log_params STRING, wiki STRING, schema_uri")
REFUSED = {
    "has title beside title_url": [
        ("title STRING,\n            title_url STRING,", "title STRING,"),
        ('renamed={"site": "wiki", ', 'renamed={"title": "title_url", "site": "wiki", '),
    ],
    "and wiki is declared, too": [BESIDE],
    "by its former name wiki": [BESIDE, ('renamed={"site": "wiki", "space": "namespace"}', "renamed={}")],
    "no column log_param that could become log_text": [
        ("log_params STRING, schema_uri", "log_text STRING, schema_uri"),
        ('renamed={"site": "wiki", ', 'renamed={"site": "wiki", "log_text": "log_param", '),
    ],
}


@pytest.mark.parametrize("told", REFUSED)
def test_rename_is_refused_before_anything_is_built_when_a_column_has_or_had_the_name(
    renamed: HomeOfCheckout, tmp_path: Path, told: str
) -> None:
    home = deployed(tmp_path, renamed, ICEBERG, RENAMED, {DECLARED: REFUSED[told]})
    folders = sorted((renamed.lake / "tables" / TABLE).rglob("r*"))
    refused = home.run("interval", TABLE, "--from", iso(HOURS[0]), "--to", iso(HOURS[1]), expect=64)
    assert told in refused.stderr
    assert sorted((renamed.lake / "tables" / TABLE).rglob("r*")) == folders


def test_every_reader_finds_all_values_when_a_column_is_renamed_back(
    renamed: HomeOfCheckout, wanted: dict[tuple[int, int], tuple[str, int]], tmp_path: Path
) -> None:
    home = deployed(tmp_path, renamed, ICEBERG, RENAMED, BACK)
    assert home.json("rename", TABLE, "--json")["built_intervals"] == 3
    assert by_hive(home, "wiki", "space") == wanted
    assert all(found == wanted for found in by_others("wiki", "space"))
    assert by_files(home, "wiki", "space") == wanted
