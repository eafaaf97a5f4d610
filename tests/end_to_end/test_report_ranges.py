"""`./tidemark report`: reports and fates over any offset ranges, from either side, and nothing registered."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conftest import Home, iso, last_hours
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)
TABLES = ("intervals", "interval_ranges", "attempts", "builds", "revisions", "listed_rows", "micro_batches")
FATES = ("archived", "empty", "quarantined")


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """An hour of records, two in a hundred bad, landed by the stream."""
    home.produce("nest_cameras", 8000, START, "1h", bad=0.02, seed=7)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home


@pytest.fixture(scope="module")
def verdict(landed: Home) -> dict[str, Any]:
    return landed.interval("nest_cameras", START)


def rows_of_the_ledger(home: Home) -> dict[str, int]:
    return {table: home.ledger(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def ranges_option(rows: list[dict[str, Any]]) -> str:
    return ",".join(f"{r['topic']}:{r['partition']}:{r['from_offset']}-{r['until_offset']}" for r in rows)


def report(home: Home, ranges: str, source: str) -> dict[str, Any]:
    found: dict[str, Any] = home.json("report", "nest_cameras", "--ranges", ranges, "--source", source, "--json")
    return found


@pytest.mark.parametrize("source", ["kafka", "archive"])
def test_report_over_an_interval_s_ranges_is_the_interval_s_and_selects_by_value_when_read_from(
    landed: Home, verdict: dict[str, Any], source: str
) -> None:
    before = rows_of_the_ledger(landed)
    # As for a user: by a spark-submit of its own, with its jars.
    landed.own_drivers = source == "kafka"
    found = report(landed, ranges_option(verdict["ranges"]), source)
    landed.own_drivers = False
    assert found["records"] == {name: verdict["records"][name] for name in found["records"]}
    assert set(FATES) < set(found["records"])
    locations = [r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras_hourly_counts"]
    counts = {
        (row["zip_code"], iso(row["window"]["start"])): row["count"]
        for row in audit.read_parquet(locations).to_pylist()
    }
    busy = {key: count for key, count in counts.items() if count > 1000}
    assert busy
    assert len(busy) < len(counts)
    # Both readings of the report: the batch view, and the last value of the compacted topic.
    shown = found["reports"]["Busy hours"]["rows"]
    assert {(row["zip_code"], row["from"]): row["batch_view"] for row in shown} == busy
    assert {(row["zip_code"], row["from"]): row["speed_view"] for row in shown} == busy
    assert rows_of_the_ledger(landed) == before


def test_parts_of_an_interval_give_exactly_their_offsets_when_read_from_either_side(
    landed: Home, verdict: dict[str, Any]
) -> None:
    # Two parts of one topic partition, and one of another.
    asked = "nest-logs:0:110-220,nest-logs:0:300-1400,nest-logs:1:7-8"
    from_kafka, from_archive = (report(landed, asked, source) for source in ("kafka", "archive"))
    every = audit.read_topic(landed.kafka, "nest-logs")
    records = {c: record for part in from_kafka["ranges"] for c, record in audit.in_ranges(every, [part]).items()}
    assert len(records) == 1211
    fates = audit.expected(records)
    expected = dict(zip(FATES, (len(fates.archived), len(fates.empty), len(fates.bad)), strict=True))
    assert from_kafka["records"] == {"in_ranges": 1211, **expected, "erased": 0, "gaps": 0, "lost": 0}
    offline = last_offline(fates.rows)
    assert {row["device_id"] for row in from_kafka["reports"]["Cameras offline"]["rows"]} == offline
    for part in ("records", "reports", "ranges"):
        assert from_archive[part] == from_kafka[part]


def last_offline(rows: dict[Any, dict[str, Any]]) -> set[str]:
    """Cameras whose last state in the log is offline."""
    last = {camera["device_id"]: camera["is_online"] for _, camera in sorted(rows.items(), key=lambda row: row[0])}
    return {device for device, is_online in last.items() if not is_online}


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ("nest-logs:0:220-110", 64, "the range of nest-logs-0 from offset 220 until 110 holds none"),
        ("nest-logs:0", 64, "not an offset range: 'nest-logs:0'"),
        ("nest-logs:0:1-3,nest-logs:0:2-5", 64, "the ranges nest-logs-0 [1, 3) and nest-logs-0 [2, 5) overlap"),
        ("others:0:1-2", 64, "others-0 [1, 2) is of no topic partition that the pipeline reads"),
        ("nest-logs:99:1-2", 64, "nest-logs-99 [1, 2) is of no topic partition that the pipeline reads"),
        ("nest-logs:0:1-99999999", 4, "nest-logs-0 [1, 99999999) reaches beyond offset"),
    ],
)
def test_report_is_refused_in_one_line_when_the_ranges_are_not_there(
    landed: Home, asked: str, code: int, words: str
) -> None:
    (line,) = landed.run("report", "nest_cameras", "--ranges", asked, expect=code).stderr.splitlines()
    assert f"nest_cameras: {words}" in line


# The rest cuts and deletes the topic: nothing can be read from it afterwards.


def test_report_names_what_retention_removed_and_the_archive_still_gives_it(
    landed: Home, verdict: dict[str, Any]
) -> None:
    asked = "nest-logs:0:110-220"
    whole = report(landed, asked, "kafka")
    client = AdminClient({"bootstrap.servers": landed.kafka})
    next(iter(client.delete_records([TopicPartition("nest-logs", 0, 150)]).values())).result(30)
    (line,) = landed.run("report", "nest_cameras", "--ranges", asked, expect=4).stderr.splitlines()
    assert "nest_cameras: nest-logs-0 [110, 220) begins before offset 150, the first that Kafka holds" in line
    assert "--source archive" in line
    assert report(landed, asked, "archive")["records"] == whole["records"]


def test_report_refuses_a_recreated_topic_with_exit_code_4(landed: Home, verdict: dict[str, Any]) -> None:
    client = AdminClient({"bootstrap.servers": landed.kafka})
    client.delete_topics(["nest-logs"])["nest-logs"].result(30)
    later: datetime = START + timedelta(minutes=1)
    landed.run("produce", "nest_cameras", "--events", "1000", "--start", iso(later))
    (line,) = landed.run("report", "nest_cameras", "--ranges", "nest-logs:0:110-120", expect=4).stderr.splitlines()
    assert "nest_cameras: topic nest-logs was deleted and created again" in line
