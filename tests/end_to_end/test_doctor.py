"""Seeded corruptions of files, catalog and ledger: each is found and named, and mended where that can be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

from tests.conftest import Home, iso
from tests.support import audit
from tests.support.content_hashes import MESSAGES, START, check_hashes

pytestmark = [pytest.mark.services, pytest.mark.spark]


@pytest.fixture(scope="module")
def verdict(home: Home) -> dict[str, Any]:
    """One registered interval."""
    home.run("produce", "nest_cameras", *MESSAGES)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home.interval("nest_cameras", START)


@pytest.fixture(scope="module")
def archive(verdict: dict[str, Any]) -> dict[str, Any]:
    return next(r for r in verdict["registered"] if r["table"] == "nest_cameras")


@pytest.fixture(scope="module")
def file(archive: dict[str, Any]) -> Path:
    return next(Path(urlsplit(archive["location"]).path).glob("*.parquet"))


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


@dataclass(frozen=True)
class Repaired:
    """What was wrong, and what the doctor found of it before and after a repair."""

    strays: dict[Path, str]
    """Files that the lake should not have, and what kind of finding each is."""
    catalog: list[tuple[Any, ...]]
    """The catalog's partitions before they were changed."""
    found: list[dict[str, str]]
    plans: int
    left: list[dict[str, str]]

    def of(self, *kinds: str) -> list[dict[str, str]]:
        """Return the findings of these kinds."""
        return [each for each in self.found if each["kind"] in kinds]


@pytest.fixture(scope="module")
def repaired(home: Home, verdict: dict[str, Any], archive: dict[str, Any], file: Path) -> Repaired:
    """A repair of all that can be repaired."""
    table = home.lake / "tables" / "nest_cameras"
    strays = {
        file.with_name("part-00001-doubled.parquet"): "extra file",
        table / archive["partition"] / "r20261120T000000-999" / "part-0.parquet": "revision unknown to the ledger",
        table / archive["partition"] / "part-1.parquet": "file outside of a revision",
        home.lake / "landing" / "nest_cameras" / "0a1b-1" / "fate=archived" / "p.parquet": (
            "landing unknown to the ledger"
        ),
        home.lake / "quarantine" / "nest_cameras" / "stray.parquet": "landing unknown to the ledger",
    }
    for path, kind in strays.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "extra file":
            shutil.copy(file, path)
        else:
            path.write_bytes(path.name.encode())
    catalog = home.rows("catalog", PARTITIONS)
    change_catalog(home, archive)
    found = findings(home)
    # Without --repair nothing is touched.
    assert [path for path in strays if not path.exists()] == []
    done = home.run("doctor", "--repair", expect=None)
    return Repaired(strays, catalog, found, done.stderr.count("plan: "), findings(home, "--deep"))


@pytest.fixture(scope="module")
def lost(home: Home, verdict: dict[str, Any], file: Path) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """What the doctor found of a deleted file of a table and one of the quarantine, and again after a repair."""
    quarantined = next((home.lake / "quarantine" / "nest_cameras").glob("*.parquet"))
    with put_back(file), put_back(quarantined):
        file.unlink()
        quarantined.unlink()
        return findings(home), findings(home, "--repair")


PARTITIONS = (
    'SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION" FROM "PARTITIONS" p JOIN "TBLS" t USING ("TBL_ID") '
    'JOIN "SDS" s ON s."SD_ID" = p."SD_ID" ORDER BY 1, 2'
)
"""The catalog's partitions: table, name and location."""


def change_catalog(home: Home, archive: dict[str, Any]) -> None:
    """Point the archive's partition at an older location, add an unregistered one, and remove that of the view."""
    part = 'SELECT p."PART_ID" FROM "PARTITIONS" p JOIN "TBLS" t USING ("TBL_ID") WHERE t."TBL_NAME" ='
    sd = f'(SELECT "SD_ID" FROM "PARTITIONS" WHERE "PART_ID" = ({part} \'nest_cameras\'))'
    stale = archive["location"].replace("file://", "file:").rsplit("/", 1)[0] + "/r20200101T000000-0"
    for statement in (
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
    ):
        home.rows("catalog", statement)


def again() -> str:
    return f"./tidemark interval nest_cameras --from {iso(START)} --to {iso(START + timedelta(hours=1))}"


def test_nothing_is_found_when_nothing_is_wrong(home: Home, verdict: dict[str, Any]) -> None:
    assert findings(home, "--deep") == []


def test_content_hashes_are_those_of_earlier_code(spark: Any, verdict: dict[str, Any]) -> None:
    check_hashes(spark, "nest_cameras", verdict)


def test_missing_file_is_named_with_the_interval_to_run_when_it_was_deleted(
    archive: dict[str, Any], file: Path, lost: tuple[list[dict[str, str]], list[dict[str, str]]]
) -> None:
    found, left = ([each for each in listed if each["kind"] == "file missing"] for listed in lost)
    assert [f["remedy"] for f in found] == [again()]
    assert file.name in found[0]["what"]
    assert archive["partition"] in found[0]["what"]
    # Lost content cannot be restored: repairing leaves it as it is and reports that.
    assert left == found


def test_lost_quarantine_file_stays_a_finding_when_repaired(
    home: Home, lost: tuple[list[dict[str, str]], list[dict[str, str]]]
) -> None:
    found, left = ([each for each in listed if each["kind"] != "file missing"] for listed in lost)
    assert [f["kind"] for f in left] == ["landing file missing"]
    assert next((home.lake / "quarantine" / "nest_cameras").glob("*.parquet")).name in left[0]["what"]
    assert "restore the file" in left[0]["remedy"]
    assert found == left


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
        explained = home.run("explain", archive["table"], archive["partition"])
    assert [f["kind"] for f in found] == ["changed content"]
    assert "no: sha256" in explained.stdout
    assert file.name in found[0]["what"]


def test_all_is_repaired_that_the_ledger_or_a_copy_still_tells(repaired: Repaired) -> None:
    of_catalog = ["catalog points elsewhere", "partition unknown to the ledger", "revision not in the catalog"]
    # The view's table lacks its partition, and states a time.
    of_catalog.append("completeness told otherwise")
    assert sorted(f["kind"] for f in repaired.found) == sorted([*repaired.strays.values(), *of_catalog])
    assert repaired.plans == len(repaired.found)
    assert repaired.left == []


def test_doubled_file_is_moved_aside_when_repaired(
    home: Home, archive: dict[str, Any], file: Path, repaired: Repaired
) -> None:
    [doubled] = [path for path, kind in repaired.strays.items() if kind == "extra file"]
    [found] = repaired.of("extra file")
    assert doubled.name in found["what"]
    assert not doubled.exists()
    moved = list((home.lake / "lost+found").rglob(doubled.name))
    assert [path.read_bytes() for path in moved] == [file.read_bytes()]
    assert len(audit.read_parquet([archive["location"]])) == archive["rows"]


def test_unknown_directories_and_files_are_moved_aside_when_repaired(home: Home, repaired: Repaired) -> None:
    seeded = {path: kind for path, kind in repaired.strays.items() if kind != "extra file"}
    assert sorted(f["kind"] for f in repaired.of(*seeded.values())) == sorted(seeded.values())
    for path in seeded:
        assert not path.exists()
        assert [p.read_bytes() for p in (home.lake / "lost+found").rglob(path.name)] == [path.name.encode()]


def test_catalog_follows_the_ledger_when_its_entries_were_changed(
    home: Home, verdict: dict[str, Any], repaired: Repaired
) -> None:
    archive, view = (r for r in sorted(verdict["registered"], key=lambda r: r["table"]))
    assert len(repaired.catalog) == 2
    [elsewhere] = repaired.of("catalog points elsewhere")
    assert "r20200101T000000-0" in elsewhere["what"]
    assert archive["revision"] in elsewhere["what"]
    [unknown] = repaired.of("partition unknown to the ledger")
    assert "interval=2020-01-01T00" in unknown["what"]
    [absent] = repaired.of("revision not in the catalog")
    assert view["revision"] in absent["what"]
    assert "not in the catalog" in absent["what"]
    assert home.rows("catalog", PARTITIONS) == repaired.catalog


def _copied(table: str, changes: str, condition: str) -> str:
    record = f"jsonb_populate_record(s, '{changes}'::jsonb)"
    rows = f'(SELECT {record} AS row FROM "{table}" s WHERE {condition}) copy'
    return f'INSERT INTO "{table}" SELECT (copy.row).* FROM {rows}'


def test_interval_without_revisions_is_found_when_the_ledger_lost_them(home: Home, archive: dict[str, Any]) -> None:
    where = f"WHERE id = '{archive['revision']}' AND table_name = 'nest_cameras'"
    home.rows("ledger", f"UPDATE revisions SET state = 'discarded' {where}")
    try:
        found = findings(home)
    finally:
        home.rows("ledger", f"UPDATE revisions SET state = 'registered' {where}")
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
