"""The transforms of nest_cameras on a few rows each, always with a null."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import pytest

from include.settings import REPOSITORY
from tests.support.views import aggregated

pytestmark = pytest.mark.spark

ARCHIVE = (
    "device_id STRING, is_online BOOLEAN, last_event STRUCT<has_person: BOOLEAN, start_time: TIMESTAMP>, "
    "event_time TIMESTAMP, name_long STRING, where_name STRING, structure_id STRING, last_is_online_change TIMESTAMP, "
    "kafka_timestamp TIMESTAMP, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT"
)


def row(
    device: str,
    minute: int,
    *,
    person: bool | None = True,
    online: bool | None = True,
    offset: int = 0,
    topic: str = "t",
    topic_partition: int = 0,
) -> tuple[Any, ...]:
    moment = datetime(2026, 11, 20, 5, minute)
    return (device, online, (person, moment), moment, "n", "w", "s", None, moment, topic, topic_partition, offset, 0)


def test_row_is_a_sighting_when_person_and_place_are_known(spark: Any) -> None:
    from spark_jobs.transforms.nest_cameras import sightings

    archive = spark.createDataFrame(
        [row("a", 1), row("b", 2, person=False), row("c", 3, person=None), row("unknown", 4)], ARCHIVE
    )
    places = spark.createDataFrame([("a", "00501"), ("b", "10001")], "device_id STRING, zip_code STRING")
    found = sightings(archive, {"device_locations": places}).select("device_id", "zip_code").collect()
    assert [tuple(r) for r in found] == [("a", "00501")]


def test_event_counts_with_each_message_when_several_state_it(spark: Any) -> None:
    from spark_jobs.transforms.nest_cameras import sightings

    rows = [row("a", 1), row("a", 1, offset=1), row("a", 2, offset=2), row("b", 2, person=None)]
    archive = spark.createDataFrame(rows, ARCHIVE)
    places = spark.createDataFrame([("a", "00501")], "device_id STRING, zip_code STRING")
    found = aggregated("nest_cameras", "hourly_counts", sightings(archive, {"device_locations": places}))
    assert [(r.zip_code, r["count"]) for r in found.collect()] == [("00501", 3)]

    # The query by which the page counts events.
    page = (REPOSITORY / "include" / "docs" / "pipelines.md").read_text(encoding="utf-8")
    [query] = re.findall(r"^SELECT [^`]*\sFROM lake\.nest_cameras [^`]*$", page, re.MULTILINE)
    archive.createOrReplaceTempView("stated_again")
    events = spark.sql(query.replace("lake.nest_cameras", "stated_again")).collect()
    assert [(r.hour, r.events) for r in events] == [(datetime(2026, 11, 20, 5), 2)]


def test_next_window_is_used_when_a_sighting_is_at_the_full_hour(spark: Any) -> None:
    times = [datetime(2026, 11, 20, 5, 0), datetime(2026, 11, 20, 5, 59, 59), datetime(2026, 11, 20, 6, 0)]
    sightings = spark.createDataFrame([("94103", t) for t in times], "zip_code STRING, event_time TIMESTAMP")
    counted = aggregated("nest_cameras", "hourly_counts", sightings)
    found = {(r.window.start.hour, r.window.end.hour): r["count"] for r in counted.collect()}
    assert found == {(5, 6): 2, (6, 7): 1}
    assert counted.columns == ["zip_code", "window", "count"]


def test_camera_is_offline_when_its_last_known_state_in_the_log_is(spark: Any) -> None:
    from spark_jobs.transforms.nest_cameras import offline_cameras

    archive = spark.createDataFrame(
        [
            row("back", 1, online=False),
            row("back", 2, online=True, offset=1),
            row("gone", 1, online=True),
            row("gone", 2, online=False, offset=1),
            row("silent", 1, online=False),
            row("silent", 2, online=None, offset=1),
            # A message with an earlier event may come later.
            row("late", 2, online=True),
            row("late", 1, online=False, offset=1),
            row("unsaid", 1, online=None),
            # Offsets of two topic partitions have no order.
            row("moved and back", 1, online=False, topic_partition=1, offset=7),
            row("moved and back", 2, online=True),
            row("moved and gone", 1, online=True, topic_partition=1, offset=7),
            row("moved and gone", 2, online=False),
            row("to another topic", 1, online=True, topic="u", offset=7),
            row("to another topic", 2, online=False),
        ],
        ARCHIVE,
    )
    assert sorted(r.device_id for r in offline_cameras(archive).collect()) == [
        "gone",
        "late",
        "moved and gone",
        "silent",
        "to another topic",
    ]


def test_content_hash_changes_only_when_values_do(spark: Any) -> None:
    from spark_jobs.archive.content_hash import content_hash, row_hashes, sums

    schema = "a STRING, b STRUCT<c: INT, d: INT>, e TIMESTAMP"
    moment = datetime(2026, 11, 20, 5, 0, 0, 1)

    def digest(rows: list[tuple[Any, ...]]) -> str:
        frame = spark.createDataFrame(rows, schema)
        one, two = row_hashes(frame.schema)
        found = frame.select(one.alias("hash_1"), two.alias("hash_2")).agg(*sums()).collect()[0]
        return content_hash(frame.columns, found["rows"], found["sum_1"], found["sum_2"])

    base = [("x", (1, None), moment), ("y", (2, 3), None)]
    assert digest(base) == digest(base[::-1])
    changes = [
        [*base, base[0]],
        base[:1],
        [("x", (None, 1), moment), base[1]],
        [("x", (1, None), moment.replace(microsecond=2)), base[1]],
        [(None, (1, None), moment), base[1]],
        [("x", None, moment), base[1]],
    ]
    digests = [digest(rows) for rows in changes]
    assert digest(base) not in digests
    assert len(set(digests)) == len(changes)
