"""Seeded corruptions of files, catalog and ledger: each is found and named, and mended where that can be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
import pyarrow.parquet as pq
import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit

pytestmark = pytest.mark.services

START = last_hours(2)


@pytest.fixture(scope="module")
def verdict(home: Home) -> dict[str, Any]:
    """One registered interval."""
    arguments = ("--events", "800", "--bad-fraction", "0.05", "--start", iso(START), "--span", "59m")
    home.run("produce", "nest_cameras", *arguments)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home.interval("nest_cameras", START)


@pytest.fixture(scope="module")
def archive(verdict: dict[str, Any]) -> dict[str, Any]:
    return next(r for r in verdict["registered"] if r["table"] == "nest_cameras")


@pytest.fixture(scope="module")
def file(archive: dict[str, Any]) -> Path:
    return next(Path(urlsplit(archive["location"]).path).glob("*.parquet"))


def change(home: Home, database: str, *statements: str) -> list[tuple[Any, ...]]:
    address = home.database.replace("/ledger", f"/{database}")
    with psycopg2.connect(address) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def findings(home: Home, *options: str) -> list[dict[str, str]]:
    result = home.run("doctor", "--json", *options, expect=None)
    bad = [f for f in json.loads(result.stdout)["findings"] if not f["ok"]]
    assert result.returncode == (1 if bad else 0)
    return bad


@contextmanager
def put_back(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    try:
        yield content
    finally:
        path.write_bytes(content)


def again() -> str:
    return f"./tidemark interval nest_cameras --from {iso(START)} --to {iso(START + timedelta(hours=1))}"


def test_nothing_is_found_when_nothing_is_wrong(home: Home, verdict: dict[str, Any]) -> None:
    assert findings(home, "--deep") == []


def test_missing_file_is_named_with_the_interval_to_run_when_it_was_deleted(
    home: Home, archive: dict[str, Any], file: Path
) -> None:
    with put_back(file):
        file.unlink()
        found = findings(home)
        assert [(f["kind"], f["remedy"]) for f in found] == [("file missing", again())]
        assert file.name in found[0]["what"]
        assert archive["partition"] in found[0]["what"]
        # Lost content cannot be restored: repairing leaves it as it is and reports that.
        assert [f["kind"] for f in findings(home, "--repair")] == ["file missing"]


def test_wrong_size_is_found_when_a_file_was_cut(home: Home, archive: dict[str, Any], file: Path) -> None:
    with put_back(file) as content:
        file.write_bytes(content[:-10])
        found = findings(home)
    assert [f["kind"] for f in found] == ["wrong size"]
    assert f"{len(content) - 10} bytes, {len(content)} when built" in found[0]["what"]


def test_flipped_byte_is_found_by_its_hash_when_the_size_is_the_same(
    home: Home, archive: dict[str, Any], file: Path
) -> None:
    with put_back(file) as content:
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        file.write_bytes(flipped)
        assert findings(home) == []
        found = findings(home, "--deep")
    assert [f["kind"] for f in found] == ["changed content"]
    assert file.name in found[0]["what"]


def test_doubled_file_is_moved_aside_when_repaired(home: Home, archive: dict[str, Any], file: Path) -> None:
    doubled = file.with_name("part-00001-doubled.parquet")
    shutil.copy(file, doubled)
    assert [f["kind"] for f in findings(home)] == ["extra file"]
    # Without --repair nothing is touched.
    assert doubled.exists()
    assert findings(home, "--repair") == []
    assert not doubled.exists()
    moved = list((home.lake / "lost+found").rglob(doubled.name))
    assert [path.read_bytes() for path in moved] == [file.read_bytes()]
    assert len(audit.read_parquet([archive["location"]])) == archive["rows"]


def test_unknown_directories_and_files_are_moved_aside_when_repaired(home: Home, archive: dict[str, Any]) -> None:
    table = home.lake / "tables" / "nest_cameras"
    seeded = {
        table / archive["partition"] / "r20261120T000000-999" / "part-0.parquet": "revision unknown to the ledger",
        table / archive["partition"] / "part-1.parquet": "file outside of a revision",
        home.lake / "landing" / "nest_cameras" / "0a1b-1" / "fate=archived" / "p.parquet": (
            "landing unknown to the ledger"
        ),
        home.lake / "quarantine" / "nest_cameras" / "stray.parquet": "landing unknown to the ledger",
    }
    for path in seeded:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(path.name.encode())
    assert sorted(f["kind"] for f in findings(home)) == sorted(seeded.values())
    assert findings(home, "--repair") == []
    for path in seeded:
        assert not path.exists()
        assert [p.read_bytes() for p in (home.lake / "lost+found").rglob(path.name)] == [path.name.encode()]


def test_catalog_follows_the_ledger_when_its_entries_were_changed(home: Home, verdict: dict[str, Any]) -> None:
    archive, view = (r for r in sorted(verdict["registered"], key=lambda r: r["table"]))
    query = (
        'SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION" FROM "PARTITIONS" p JOIN "TBLS" t USING ("TBL_ID") '
        'JOIN "SDS" s ON s."SD_ID" = p."SD_ID" ORDER BY 1, 2'
    )
    before = change(home, "catalog", query)
    assert len(before) == 2
    # The archive's partition points at an older location, and there is an unregistered partition beside it.
    part = 'SELECT p."PART_ID" FROM "PARTITIONS" p JOIN "TBLS" t USING ("TBL_ID") WHERE t."TBL_NAME" ='
    sd = f'(SELECT "SD_ID" FROM "PARTITIONS" WHERE "PART_ID" = ({part} \'nest_cameras\'))'
    stale = archive["location"].replace("file://", "file:").rsplit("/", 1)[0] + "/r20200101T000000-0"
    change(
        home,
        "catalog",
        f"""UPDATE "SDS" SET "LOCATION" = '{stale}' WHERE "SD_ID" =
            (SELECT "SD_ID" FROM "PARTITIONS" WHERE "PART_ID" = ({part} 'nest_cameras'))""",
        _copied(
            "SERDES", '{"SERDE_ID": 900001}', f"""s."SERDE_ID" = (SELECT "SERDE_ID" FROM "SDS" WHERE "SD_ID" = {sd})"""
        ),
        _copied("SDS", '{"SD_ID": 900001, "SERDE_ID": 900001}', f's."SD_ID" = {sd}'),
        f"""INSERT INTO "PARTITIONS" ("PART_ID", "CREATE_TIME", "LAST_ACCESS_TIME", "PART_NAME", "SD_ID", "TBL_ID")
            SELECT 900001, "CREATE_TIME", "LAST_ACCESS_TIME", 'date=2020-01-01/interval=2020-01-01T00', 900001, "TBL_ID"
            FROM "PARTITIONS" WHERE "PART_ID" = ({part} 'nest_cameras')""",
        """INSERT INTO "PARTITION_KEY_VALS" ("PART_ID", "PART_KEY_VAL", "INTEGER_IDX")
            VALUES (900001, '2020-01-01', 0), (900001, '2020-01-01T00', 1)""",
        # The view's partition is unknown to the catalog.
        f'DELETE FROM "PARTITION_KEY_VALS" WHERE "PART_ID" = ({part} \'nest_cameras_hourly_counts\')',
        f'DELETE FROM "PARTITION_PARAMS" WHERE "PART_ID" = ({part} \'nest_cameras_hourly_counts\')',
        f'DELETE FROM "PARTITIONS" WHERE "PART_ID" = ({part} \'nest_cameras_hourly_counts\')',
    )
    found = findings(home)
    assert sorted(f["kind"] for f in found) == [
        "catalog points elsewhere",
        "partition unknown to the ledger",
        "revision not in the catalog",
    ]
    assert any("r20200101T000000-0" in f["what"] and archive["revision"] in f["what"] for f in found)
    assert any("interval=2020-01-01T00" in f["what"] for f in found)
    assert any(view["revision"] in f["what"] and "not in the catalog" in f["what"] for f in found)

    repaired = home.run("doctor", "--repair")
    assert repaired.stderr.count("plan: ") == 3
    assert findings(home, "--deep") == []
    assert change(home, "catalog", query) == before


def _copied(table: str, changes: str, condition: str) -> str:
    record = f"jsonb_populate_record(s, '{changes}'::jsonb)"
    rows = f'(SELECT {record} AS row FROM "{table}" s WHERE {condition}) copy'
    return f'INSERT INTO "{table}" SELECT (copy.row).* FROM {rows}'


def test_interval_without_revisions_is_found_when_the_ledger_lost_them(home: Home, archive: dict[str, Any]) -> None:
    where = f"WHERE id = '{archive['revision']}' AND table_name = 'nest_cameras'"
    change(home, "ledger", f"UPDATE revisions SET state = 'discarded' {where}")
    try:
        found = findings(home)
    finally:
        change(home, "ledger", f"UPDATE revisions SET state = 'registered' {where}")
    assert sorted(f["kind"] for f in found) == ["interval without revisions", "partition unknown to the ledger"]
    assert next(f["remedy"] for f in found if f["kind"] == "interval without revisions") == again()


def test_explain_shows_footers_as_they_are_when_a_file_was_replaced(
    home: Home, archive: dict[str, Any], file: Path
) -> None:
    found = home.json("explain", "nest_cameras", archive["partition"], "--json")
    (described,) = found["files"]
    table = audit.read_parquet([archive["location"]])
    offsets = table["kafka_offset"].to_pylist()
    assert described["now"]["rows"] == described["rows"] == len(table) == found["rows"]
    assert described["now"]["kafka_offset"] == described["kafka_offset"] == [min(offsets), max(offsets)]
    assert described["differs"] == []
    assert found["catalog"] == {"location": archive["location"], "agrees": True}
    assert found["run"]["run_by"]
    assert found["run"]["code_version"]
    assert found["run"]["exit_code"] == 0
    assert [(r["revision"], r["state"]) for r in found["revisions"]] == [(archive["revision"], "registered")]
    assert sum(r["archived"] for r in found["ranges"]) == len(
        {*zip(table["kafka_partition"].to_pylist(), offsets, strict=True)}
    )
    with put_back(file):
        pq.write_table(table.slice(1), file)
        replaced = home.json("explain", "nest_cameras", archive["partition"], "--json")
        assert set(replaced["files"][0]["differs"]) >= {"rows", "bytes"}
        file.unlink()
        missing = home.json("explain", "nest_cameras", archive["partition"], "--json")
        assert missing["files"][0]["differs"] == ["file"]
    shown = home.run("explain", "nest_cameras", archive["partition"]).stdout
    assert archive["revision"] in shown


@pytest.mark.slow
def test_lost_landing_file_is_read_from_the_registered_revision_when_repaired(
    home: Home, archive: dict[str, Any]
) -> None:
    next((home.lake / "landing").rglob("fate=archived/**/*.parquet")).unlink()
    assert [f["kind"] for f in findings(home)] == ["landing file missing"]
    assert findings(home, "--repair") == []
    rebuilt = home.json("rebuild", "nest_cameras", archive["partition"], "--source", "archive", "--json")
    assert rebuilt["equal"] is True


def test_lost_quarantine_file_stays_a_finding_when_repaired(home: Home, verdict: dict[str, Any]) -> None:
    path = next((home.lake / "quarantine" / "nest_cameras").glob("*.parquet"))
    with put_back(path):
        path.unlink()
        found = findings(home, "--repair")
    assert [f["kind"] for f in found] == ["landing file missing"]
    assert path.name in found[0]["what"]
    assert "restore the file" in found[0]["remedy"]
