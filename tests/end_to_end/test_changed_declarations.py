"""Declarations that change between two intervals: a column, a measure and a wider type more; another reference."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
HOUR = timedelta(hours=1)
PIPELINE = "include/pipelines/nest_cameras.py"
TRANSFORMS = "spark_jobs/transforms/nest_cameras.py"
REFERENCE = "include/pipelines/nest_cameras.device_locations.csv"
VIEW = "nest_cameras_hourly_counts"
ANOTHER_COLUMN = ("is_online BOOLEAN,", "is_online BOOLEAN, battery_level INT,")
ANOTHER_MEASURE = {
    PIPELINE: [
        ("count BIGINT", "count BIGINT, people BIGINT"),
        ('measures=("count",)', 'measures=("count", "people")'),
    ],
    TRANSFORMS: [
        ('F.count(F.lit(1)).alias("count")', 'F.count(F.lit(1)).alias("count"), F.count("device_id").alias("people")'),
        ('.select("zip_code", "window", "count")', '.select("zip_code", "window", "count", "people")'),
    ],
}


def bounds(hour: int) -> tuple[str, ...]:
    return ("--from", iso(START + hour * HOUR), "--to", iso(START + (hour + 1) * HOUR))


@pytest.fixture(scope="module")
def first(home: Home) -> dict[str, Any]:
    """Two hours landed, the first of them registered."""
    home.run("produce", "nest_cameras", "--events", "600", "--start", iso(START), "--span", "2h")
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home.interval("nest_cameras", START)


@pytest.fixture(scope="module")
def moved(home: Home, first: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A deployment whose reference has every camera at another zip code."""
    checkout = copy_checkout(tmp_path_factory.mktemp("moved") / "checkout", home)
    text = (checkout.path / REFERENCE).read_text().splitlines()
    lines = [text[0], *(f"{line.split(',')[0]},10001" for line in text[1:])]
    (checkout.path / REFERENCE).write_text("\n".join(lines) + "\n")
    return checkout


def hashes(verdict: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(each["table"], each["partition"]): each["content_hash"] for each in verdict["registered"]}


def zip_codes(verdict: dict[str, Any]) -> set[str]:
    locations = [each["location"] for each in verdict["registered"] if each["table"] == VIEW]
    return {row["zip_code"] for row in audit.read_parquet(locations).to_pylist()}


def test_registered_interval_is_built_again_by_the_content_of_then_and_a_new_one_by_that_of_now(
    first: dict[str, Any], moved: Checkout
) -> None:
    again = moved.json("interval", "nest_cameras", *bounds(0))
    assert hashes(again) == hashes(first)
    assert again["code_version"] == first["code_version"]
    assert again["reconciliation"]["unexplained"] == 0
    partition = next(each["partition"] for each in first["registered"] if each["table"] == VIEW)
    assert moved.json("rebuild", VIEW, partition, "--json")["equal"] is True
    second = moved.json("interval", "nest_cameras", *bounds(1))
    assert zip_codes(second) == {"10001"}


def test_interval_is_refused_when_the_content_of_then_is_gone_and_built_by_that_of_now_when_asked(
    home: Home, first: dict[str, Any], moved: Checkout
) -> None:
    # The registered rows: by the shipped content, and by the moved one.
    kept = sorted((home.lake / "references" / "nest_cameras" / "device_locations").glob("*.csv"))
    assert len(kept) == 2
    shipped = next(path for path in kept if "10001" not in path.read_text().splitlines()[1])
    content = shipped.read_bytes()
    shipped.unlink()
    refused = moved.run("interval", "nest_cameras", *bounds(0), expect=64).stderr
    assert "another content of the reference device_locations" in refused
    assert "is gone" in refused
    built = moved.json("interval", "nest_cameras", *bounds(0), "--new-references")
    assert zip_codes(built) == {"10001"}
    shipped.write_bytes(content)
    assert zip_codes(moved.json("interval", "nest_cameras", *bounds(0))) == {"10001"}


@pytest.fixture(scope="module")
def wider(home: Home, moved: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A deployment with another column of the archive, and another measure of the view."""
    checkout = copy_checkout(tmp_path_factory.mktemp("wider") / "checkout", home)
    (checkout.path / REFERENCE).write_bytes((moved.path / REFERENCE).read_bytes())
    checkout.edit(PIPELINE, *ANOTHER_COLUMN)
    for file, edits in ANOTHER_MEASURE.items():
        for old, new in edits:
            checkout.edit(file, old, new)
    return checkout


def columns(home: Home, table: str) -> list[str]:
    found = home.json("sql", f"SELECT * FROM lake.{table} LIMIT 1", "--json")
    return sorted(found[0])


def doctor(checkout: Checkout) -> list[dict[str, Any]]:
    found = json.loads(checkout.run("doctor", "--json", expect=None).stdout)["findings"]
    kinds = ("catalog lags the declaration", "columns that files do not fit")
    return [each for each in found if each.get("kind") in kinds]


def test_added_column_and_measure_are_in_the_catalog_and_doctor_tells_and_repairs_one_that_lags(
    home: Home, wider: Checkout
) -> None:
    found = doctor(wider)
    assert {each["kind"] for each in found} == {"catalog lags the declaration"}
    assert len(found) == 2
    wider.run("doctor", "--repair", expect=None)
    assert doctor(wider) == []
    assert "people" in columns(home, VIEW)
    wider.run("new-generation", "nest_cameras", "--reason", "another measure")
    wider.run("stream", "nest_cameras", "--until-caught-up")
    verdict = wider.json("interval", "nest_cameras", *bounds(1))
    assert verdict["reconciliation"]["unexplained"] == 0
    assert "battery_level" in columns(home, "nest_cameras")
    query = f"SELECT `interval`, sum(count) AS c, sum(people) AS p FROM lake.{VIEW} GROUP BY 1"
    rows = wider.json("sql", query, "--json")
    by_hour = {row["interval"]: (row["c"], row["p"]) for row in rows}
    old, new = (by_hour[f"{START + hour * HOUR:%Y-%m-%dT%H}"] for hour in (0, 1))
    assert old[1] is None
    assert new[1] == new[0] > 0


def test_older_code_is_refused_before_anything_is_built_when_the_catalog_follows_newer_code(
    home: Home, wider: Checkout
) -> None:
    before = sorted(Path(home.lake / "tables").rglob("*.parquet"))
    refused = home.run("interval", "nest_cameras", *bounds(1), expect=64).stderr
    assert f"lake.{VIEW}" in refused or "lake.nest_cameras" in refused
    assert "is not declared any more" in refused
    assert sorted(Path(home.lake / "tables").rglob("*.parquet")) == before


def test_every_record_is_in_one_interval_when_a_topic_leaves_the_source_and_is_deleted(
    home: Home, tmp_path: Path
) -> None:
    with_former = copy_checkout(tmp_path / "checkout", home)
    with_former.edit(
        "include/pipelines/wiki_changes.py", 'subscribe=("wiki-changes",)', 'subscribe=("wiki-changes", "wiki-former")'
    )
    # A client must outlive its futures.
    admin = AdminClient({"bootstrap.servers": home.kafka})
    admin.create_topics([NewTopic("wiki-former", 1)])["wiki-former"].result(30)
    produce = ("produce", "wiki_changes", "--events", "100", "--start", iso(START), "--span", "1h")
    home.run(*produce)
    copied = home.producer()
    for record in audit.read_topic(home.kafka, "wiki-changes").values():
        copied.produce("wiki-former", record.value)
    assert copied.flush(30) == 0
    with_former.run("stream", "wiki_changes", "--until-caught-up")
    home.run(*produce)
    admin.delete_topics(["wiki-former"])["wiki-former"].result(30)
    refused = home.run("stream", "wiki_changes", "--until-caught-up", expect=64).stderr
    assert "./tidemark unsubscribe wiki_changes wiki-former" in refused
    home.run("unsubscribe", "wiki_changes", "wiki-former", "--reason", "its producer is gone")
    home.run("stream", "wiki_changes", "--until-caught-up")
    assert {each["lag"] for each in home.json("lag", "wiki_changes", "--json")} == {0}
    verdict = home.interval("wiki_changes", START)
    assert verdict["reconciliation"]["unexplained"] == 0
    archived = audit.coordinates_of(
        audit.read_parquet(each["location"] for each in verdict["registered"] if each["table"] == "wiki_changes")
    )
    quarantined = home.json("quarantine", "list", "wiki_changes", "--limit", "5000", "--json")
    of_topics = Counter([topic for topic, _, _ in archived] + [each["topic"] for each in quarantined])
    assert set(archived.values()) == {1}
    assert of_topics.keys() == {"wiki-former", "wiki-changes"}
    assert verdict["records"]["in_ranges"] == of_topics.total() + verdict["records"]["empty"] == 300
