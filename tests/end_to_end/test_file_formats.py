"""Archives in other formats than Parquet, from Kafka to registered tables and back.

Avro with nested rows, also kept as a Delta table, whose own files are Parquet whatever the table's are; and CSV.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)
BOUNDS = ("--from", iso(START), "--to", iso(START + timedelta(hours=1)))
FORMATS = {"nest_cameras": "avro", "isp_hits": "csv"}
IN_DELTA = "nest_cameras"
TEXT = {"nest_cameras": "name_long", "isp_hits": "user"}


def declare(checkout: Checkout, pipeline: str, before: str, after: str) -> None:
    """Change the word in the declaration; the code of the pipeline is otherwise as shipped."""
    words = {name: f'file_format="{name}",\n        rules=(' if name else "rules=(" for name in (before, after)}
    checkout.edit(f"include/pipelines/{pipeline}.py", words[before], words[after])


@pytest.fixture(scope="module", params=list(FORMATS))
def pipeline(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkout(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = copy_checkout(tmp_path_factory.mktemp("formats") / "checkout", home)
    for name, file_format in FORMATS.items():
        declare(made, name, "", file_format)
    made.edit(f"include/pipelines/{IN_DELTA}.py", "file_format=", "delta=True,\n        file_format=")
    return made


@pytest.fixture(scope="module")
def verdict(checkout: Checkout, pipeline: str) -> dict[str, Any]:
    arguments = ("--events", "600", "--bad-fraction", "0.05", "--start", iso(START), "--span", "1h", "--seed", "3")
    checkout.run("produce", pipeline, *arguments)
    checkout.run("stream", pipeline, "--until-caught-up")
    found: dict[str, Any] = checkout.json("interval", pipeline, *BOUNDS)
    return found


def archive(verdict: dict[str, Any], pipeline: str) -> list[dict[str, Any]]:
    return [each for each in verdict["registered"] if each["table"] == pipeline]


def rows_of(location: str) -> list[dict[str, Any]]:
    """The rows of a registered folder, by readers that are not Spark's."""
    found: list[dict[str, Any]] = []
    for path in sorted(Path(location.removeprefix("file://")).glob("[!._]*")):
        if path.suffix == ".avro":
            with path.open("rb") as file:
                found += [dict(row) for row in fastavro.reader(file) if isinstance(row, dict)]
        else:
            assert path.name.endswith(".csv.gz")
            with gzip.open(path, "rt", encoding="utf-8", newline="") as text:
                found += [{k: None if v == "\\N" else v for k, v in row.items()} for row in csv.DictReader(text)]
    return found


def place(row: dict[str, Any]) -> tuple[str, int, int, int]:
    return row["kafka_topic"], int(row["kafka_partition"]), int(row["kafka_offset"]), int(row["kafka_element"])


def views_of(checkout: Checkout) -> list[tuple[int, str]]:
    """The ids of the views in the metastore, and their names."""
    query = """SELECT "TBL_ID", "TBL_NAME" FROM "TBLS" WHERE "TBL_TYPE" = 'VIRTUAL_VIEW' ORDER BY 1"""
    return checkout.home.rows("catalog", query)


def test_table_has_every_archived_row_once_for_every_reader(
    checkout: Checkout, pipeline: str, verdict: dict[str, Any]
) -> None:
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["validation"]["success"]
    found = [row for each in archive(verdict, pipeline) for row in rows_of(each["location"])]
    assert len(found) == sum(each["rows"] for each in archive(verdict, pipeline)) > 0
    assert max(Counter(map(place, found)).values()) == 1
    records = audit.in_ranges(audit.read_topic(checkout.home.kafka, found[0]["kafka_topic"]), verdict["ranges"])
    assert len({place(row)[:3] for row in found}) == verdict["records"]["archived"]
    assert {place(row)[:3] for row in found} <= records.keys()
    names = ", ".join(f"kafka_{name}" for name in ("topic", "partition", "offset", "element"))
    text = TEXT[pipeline]
    selected = checkout.json("sql", f"SELECT {names}, `{text}`, kafka_timestamp FROM lake.{pipeline}", "--json")
    assert {place(row): row[text] for row in selected} == {place(row): row[text] for row in found}
    assert {row["kafka_timestamp"][:13] for row in selected} == {START.strftime("%Y-%m-%dT%H")}


def test_rows_say_what_the_records_in_kafka_say(checkout: Checkout, pipeline: str, verdict: dict[str, Any]) -> None:
    found = [row for each in archive(verdict, pipeline) for row in rows_of(each["location"])]
    records = audit.read_topic(checkout.home.kafka, found[0]["kafka_topic"])
    for row in found:
        message = json.loads(records[place(row)[:3]].value or b"")
        if pipeline == "isp_hits":
            assert (row["user"], row["isp"], row["zipcode"]) == (
                message.get("user"),
                message["isp"],
                message["zipcode"],
            )
            continue
        cameras = list(message["devices"]["cameras"].values())
        sent = next(camera for camera in cameras if camera["device_id"] == row["device_id"])
        assert row["activity_zones"] == sent.get("activity_zones")
        assert row["last_event"]["image_url"] == sent["last_event"].get("image_url")


def test_delta_view_has_the_validated_rows_as_the_table_has_them(
    checkout: Checkout, pipeline: str, verdict: dict[str, Any]
) -> None:
    if pipeline != IN_DELTA:
        assert verdict["delta"] == {}
        return
    columns = "kafka_topic, kafka_partition, kafka_offset, kafka_element, device_id, name_long, last_event, interval"
    table, view = (
        sorted(map(json.dumps, checkout.json("sql", f"SELECT {columns} FROM {name}", "--json")))
        for name in (f"lake.{pipeline}", verdict["delta"]["view"])
    )
    assert table == view
    assert len(table) == sum(each["rows"] for each in archive(verdict, pipeline)) > 0


def test_rerun_changes_nothing_and_a_rebuild_is_equal(
    checkout: Checkout, pipeline: str, verdict: dict[str, Any]
) -> None:
    views = views_of(checkout)
    assert views or pipeline != IN_DELTA
    again = checkout.json("interval", pipeline, *BOUNDS)
    assert again["registered"] == verdict["registered"]
    # The same one: dropped and created again, it would be missing in between.
    assert views_of(checkout) == views
    checkout.run("housekeeping", pipeline, "--older-than", "0s")
    assert list((checkout.home.lake / "landing" / pipeline).rglob("fate=archived/**/*.parquet")) == []
    first = archive(verdict, pipeline)[0]
    # From the registered files alone.
    rebuilt = checkout.json("rebuild", pipeline, first["partition"], "--source", "archive", "--json")
    assert rebuilt["equal"], rebuilt
    assert (rebuilt["rebuilt_hash"], rebuilt["rows"]) == (first["content_hash"], first["rows"])


def test_partition_is_explained_down_to_its_files_and_the_doctor_finds_nothing(
    checkout: Checkout, pipeline: str, verdict: dict[str, Any]
) -> None:
    for each in archive(verdict, pipeline)[:3]:
        explained = checkout.json("explain", pipeline, each["partition"], "--json")
        assert explained["catalog"]["agrees"]
        (file,) = explained["files"]
        offsets = [place(row)[2] for row in rows_of(each["location"])]
        assert file["rows"] == len(offsets)
        assert file["kafka_offset"] == [min(offsets), max(offsets)]
        assert (file["differs"], file["now"]) == ([], {name: file[name] for name in ("sha256", "bytes")})
    found = json.loads(checkout.run("doctor", "--deep", "--json").stdout)["findings"]
    assert [each for each in found if not each["ok"]] == []


def test_another_format_is_refused_while_files_of_the_first_are_registered(
    checkout: Checkout, pipeline: str, verdict: dict[str, Any]
) -> None:
    declare(checkout, pipeline, FORMATS[pipeline], "orc")
    refused = checkout.run("interval", pipeline, *BOUNDS, expect=64).stderr
    declare(checkout, pipeline, "orc", FORMATS[pipeline])
    assert f"lake.{pipeline} has registered {FORMATS[pipeline]} files, declared is orc" in refused
    assert f'declare file_format="{FORMATS[pipeline]}" again' in refused
    (count,) = checkout.json("sql", f"SELECT count(*) AS rows FROM lake.{pipeline}", "--json")
    assert count["rows"] == sum(each["rows"] for each in archive(verdict, pipeline))
