"""A large micro-batch or replay reaches an output's target in slices, in the order of the log."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from include import kafka
from include.kafka.topics import TopicLimits
from include.ledger.archive import row_outputs
from include.ledger.archive.row_outputs import Unsent
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import DatabaseTable, KafkaTopic, Rows
from spark_jobs.outputs import table, topic
from spark_jobs.spark.frames import frame_of

pytestmark = pytest.mark.spark

MOST = 40
COLUMNS = "name STRING"
FRAME = f"{COLUMNS}, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT"
RANGES = [
    OffsetRange(TopicPartition("a", 1), 500, 590),
    OffsetRange(TopicPartition("a", 10), 0, 10),
    OffsetRange(TopicPartition("b", 0), 7, 207),
]


class Taken:
    """Stands for a producer and for a table of a database: keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def write(self, messages: Iterable[Any]) -> int:
        self.rows = [tuple(json.loads(message[2]).values())[:1] + coordinates(message[3]) for message in messages]
        return len(self.rows)

    def merge(self, rows: Iterable[Any], unsent: Unsent) -> tuple[int, list[Any]]:
        self.rows = [(row[0], row[1], *row[3:]) for row in rows]
        return len(self.rows), []


def coordinates(headers: dict[str, bytes]) -> tuple[Any, ...]:
    topic_name, *numbers, _ = (value.decode() for value in headers.values())
    return topic_name, *map(int, numbers)


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each Spark job returned to the driver."""
    from pyspark.sql.classic.dataframe import DataFrame

    counted: list[int] = []
    iterate = DataFrame.toLocalIterator

    def counting(frame: Any, **options: bool) -> Iterator[Any]:
        assert not any(options.values()), "the driver would hold two slices"
        # One job is run for each shuffle partition, and returns all of it.
        counted.extend(map(len, frame.rdd.glom().collect()))
        return iterate(frame)

    monkeypatch.setattr(DataFrame, "toLocalIterator", counting)
    for module in (row_outputs, table, topic):
        monkeypatch.setattr(module, "MOST_ROWS", MOST, raising=False)
    return counted


def send(spark: Any, kind: str, unsent: Unsent, rows: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what the target of this kind was given of the rows."""
    taken = Taken()
    monkeypatch.setattr(topic, "FencedProducer", lambda *_: taken)
    monkeypatch.setattr(table, "OutputTable", lambda *_: taken)
    monkeypatch.setattr(kafka, "topic_limits", lambda *_: TopicLimits(1_000_000, False))
    to = KafkaTopic("out") if kind == "topic" else DatabaseTable("shop")
    output = Rows("out", to=to, rows="r", columns=COLUMNS)
    pipeline = replace(load_pipeline("isp_hits"), outputs=(output,))
    lease: Any = None
    made: Any = (topic.TopicTarget if kind == "topic" else table.TableTarget)(pipeline, output, to, lease)
    shuffled = random.Random(1).sample(rows, len(rows))
    assert made.send(frame_of(spark, shuffled, FRAME).repartition(3), unsent) == (len(rows), [])
    return taken.rows


def rows_of(ranges: list[OffsetRange], elements: int = 1) -> list[Any]:
    return [
        (f"{each}", each.topic_partition.topic, each.topic_partition.partition, offset, element)
        for each in ranges
        for offset in range(each.from_offset, each.until_offset)
        for element in range(elements)
    ]


IDS = {"a": "id-of-a", "b": "id-of-b"}


@pytest.mark.parametrize("kind", ["topic", "table"])
@pytest.mark.parametrize("elements", [1, 3])
def test_no_job_returns_more_than_a_slice_when_a_micro_batch_is_large(
    spark: Any, slices: list[int], monkeypatch: pytest.MonkeyPatch, kind: str, elements: int
) -> None:
    rows = rows_of(RANGES, elements)
    sent = send(spark, kind, Unsent(1, RANGES, IDS, len(rows)), rows, monkeypatch)
    assert sent == rows
    assert sum(slices) == len(rows)
    assert max(slices) <= MOST
    assert len(slices) <= len(rows) / MOST * 1.2


def test_slice_has_no_more_records_when_most_of_the_offsets_have_none(
    spark: Any, slices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of([OffsetRange(TopicPartition("a", 1), 500, 600)])
    ranges = [OffsetRange(TopicPartition("a", 1), 0, 1_000)]
    assert send(spark, "table", Unsent(1, ranges, IDS, len(rows)), rows, monkeypatch) == rows
    assert max(slices) <= MOST


def test_no_job_returns_more_than_a_slice_when_a_replay_is_large(
    spark: Any, slices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A replay has no ranges: its offsets may lie far apart.
    rows = [(str(n), "a", n % 2, 1_000_000 * n, 0) for n in range(300)]
    unsent = Unsent(1, (), IDS, len(rows), is_replay=True)
    assert send(spark, "topic", unsent, rows, monkeypatch) == sorted(rows, key=lambda row: row[1:])
    assert sum(slices) == len(rows)
    assert max(slices) <= MOST


def test_rows_come_in_one_slice_when_they_are_few(
    spark: Any, slices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(RANGES[1:2])
    assert send(spark, "table", Unsent(1, RANGES, IDS, len(rows)), rows, monkeypatch) == rows
    assert slices == [len(rows)]
