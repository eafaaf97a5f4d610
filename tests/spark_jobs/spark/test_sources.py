"""Every way to declare a source, against a real broker: which records a first and a second read hold."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include import kafka
from include.errors import UsageError
from include.kafka.sources import describe_source, first_offsets, source_topic_partitions
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import KafkaTopics
from include.times import format_time
from tests.conftest import Home

pytestmark = [pytest.mark.services, pytest.mark.spark]

START = datetime(2026, 11, 20, 5, tzinfo=UTC)
Coordinates = tuple[str, int, int]


def write(home: Home, topic: str, topic_partition: int, count: int, first_minute: int = 0) -> None:
    """Records a minute apart."""
    kafka.create_topic(topic, 2)
    producer = home.producer()
    for minute in range(first_minute, first_minute + count):
        at = int((START + timedelta(minutes=minute)).timestamp() * 1000)
        producer.produce(topic, b"v", b"k", topic_partition, timestamp=at, headers=[("h", b"1")])
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def topics(in_process: Home) -> Home:
    """door-a and door-b with three records in both topic partitions, and topics of somebody else's."""
    for topic in ("door-a", "door-b", "window-a", "back-door-a", "door-a-counts"):
        for topic_partition in (0, 1):
            write(in_process, topic, topic_partition, 3)
    return in_process


def read(spark: Any, source: KafkaTopics, folder: Path) -> set[Coordinates]:
    """Coordinates of what a stream of the source reads until it has caught up, on from its checkpoint."""
    from spark_jobs.spark.kafka_source import read_stream

    found: set[Coordinates] = set()

    def remember(batch: Any, _: int) -> None:
        rows = batch.select("topic", "partition", "offset", "headers").collect()
        assert all([(h.key, bytes(h.value)) for h in row.headers] == [("h", b"1")] for row in rows)
        found.update((row.topic, row.partition, row.offset) for row in rows)

    bounds = kafka.offset_bounds(source_topic_partitions(source, describe_source(source)))
    starts = {} if (folder / "offsets").exists() else first_offsets(source, bounds)
    stream = read_stream(spark, source, starts).writeStream.option("checkpointLocation", str(folder))
    stream.foreachBatch(remember).trigger(availableNow=True).start().awaitTermination()
    return found


def every(topic: str, *topic_partitions: int, first: int = 0, last: int = 2) -> set[Coordinates]:
    return {(topic, p, offset) for p in topic_partitions or (0, 1) for offset in range(first, last + 1)}


def test_only_the_set_is_read_when_topics_are_subscribed(topics: Home, spark: Any, tmp_path: Path) -> None:
    found = read(spark, KafkaTopics(subscribe=("door-a", "window-a")), tmp_path)
    assert found == every("door-a") | every("window-a")


def test_topic_joins_from_its_start_when_it_appears_later_and_fits_the_pattern(
    topics: Home, spark: Any, tmp_path: Path
) -> None:
    source = KafkaTopics(pattern="door-[ac]")
    assert read(spark, source, tmp_path) == every("door-a")
    write(topics, "door-c", 1, 2)
    assert read(spark, source, tmp_path) == every("door-c", 1, last=1)


def test_whole_names_must_match_when_a_pattern_is_declared(topics: Home) -> None:
    assert set(describe_source(KafkaTopics(pattern="door-[ab]"))) == {"door-a", "door-b"}
    assert describe_source(KafkaTopics(pattern="door")) == {}


def test_topic_is_not_read_when_a_pattern_would_match_a_name_that_kafka_keeps_for_itself(
    topics: Home, spark: Any, tmp_path: Path
) -> None:
    write(topics, "__door-a", 0, 3)
    source = KafkaTopics(pattern=".*door-a")
    assert read(spark, source, tmp_path) == every("door-a") | every("back-door-a")


def test_only_assigned_topic_partitions_are_read_when_some_are_assigned(
    topics: Home, spark: Any, tmp_path: Path
) -> None:
    source = KafkaTopics(assign={"door-a": (1,), "door-b": (0,)})
    assert read(spark, source, tmp_path) == every("door-a", 1) | every("door-b", 0)


def test_earlier_records_are_left_out_when_a_source_begins_at_the_latest(
    topics: Home, spark: Any, tmp_path: Path
) -> None:
    source = KafkaTopics(subscribe=("door-b",), starting_offsets="latest")
    assert read(spark, source, tmp_path) == set()
    write(topics, "door-b", 1, 1, 10)
    assert read(spark, source, tmp_path) == {("door-b", 1, 3)}


def test_first_read_begins_at_the_offsets_when_they_are_declared(topics: Home, spark: Any, tmp_path: Path) -> None:
    source = KafkaTopics(subscribe=("window-a",), starting_offsets={"window-a": {0: 2}})
    assert read(spark, source, tmp_path) == every("window-a", 0, first=2) | every("window-a", 1)


def test_first_read_begins_at_the_end_when_nothing_follows_the_declared_time(
    topics: Home, spark: Any, tmp_path: Path
) -> None:
    write(topics, "door-timed", 0, 3)
    source = KafkaTopics(subscribe=("door-timed",), starting_time=format_time(START + timedelta(minutes=1)))
    assert read(spark, source, tmp_path) == every("door-timed", 0, first=1)
    bounds = {TopicPartition("door-timed", 0): (0, 3), TopicPartition("door-timed", 1): (0, 0)}
    late = KafkaTopics(subscribe=("door-timed",), starting_time=format_time(START + timedelta(hours=1)))
    assert first_offsets(late, bounds) == {TopicPartition("door-timed", 0): 3, TopicPartition("door-timed", 1): 0}


def test_nearest_offset_is_the_start_when_kafka_does_not_have_the_declared_one() -> None:
    tp = TopicPartition("t", 0)
    source = KafkaTopics(subscribe=("t",), starting_offsets={"t": {0: 5}})
    assert first_offsets(source, {tp: (7, 9)}) == {tp: 7}
    assert first_offsets(source, {tp: (0, 3)}) == {tp: 3}


def test_declared_offset_stays_the_start_when_the_ledger_that_knew_it_is_lost() -> None:
    tp = TopicPartition("t", 0)
    source = KafkaTopics(subscribe=("t",), starting_offsets={"t": {0: 5}})
    assert first_offsets(source, {tp: (0, 9)}, is_lost=True) == {tp: 5}
    latest = KafkaTopics(subscribe=("t",), starting_offsets="latest")
    assert first_offsets(latest, {tp: (2, 9)}, is_lost=True) == {tp: 2}


@pytest.mark.parametrize("option", ["kafka.max.partition.fetch.bytes", "kafka.max.poll.interval.ms"])
def test_any_option_reaches_the_client_when_a_pipeline_may_set_it(
    topics: Home, spark: Any, tmp_path: Path, option: str
) -> None:
    # A value that the client itself refuses: it would not if the option had been dropped.
    source = KafkaTopics(subscribe=("door-a",), options={option: "-7"})
    with pytest.raises(Exception, match=re.escape(option.removeprefix("kafka."))):
        read(spark, source, tmp_path)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"subscribe": ("a",), "pattern": "b"}, "one of subscribe, pattern and assign"),
        ({}, "one of subscribe, pattern and assign"),
        ({"pattern": "("}, "no regular expression"),
        ({"subscribe": ("a b",)}, "not a Kafka topic name"),
        (
            {"subscribe": ("a",), "options": {"kafka.isolation.level": "read_uncommitted"}},
            "cannot be set by a pipeline",
        ),
        ({"subscribe": ("a",), "options": {"kafka.sasl.jaas.config": "secret"}}, "TIDEMARK_KAFKA_PROPERTIES"),
        ({"subscribe": ("a",), "options": {"kafka.ssl.key.password": "secret"}}, "TIDEMARK_KAFKA_PROPERTIES"),
        ({"subscribe": ("a",), "options": {"kafka.bootstrap.servers": "h:1"}}, "TIDEMARK_KAFKA_PROPERTIES"),
        ({"subscribe": ("a",), "options": {"failOnDataLoss": "false"}}, "cannot be set by a pipeline"),
        ({"subscribe": ("a",), "starting_time": "yesterday"}, "not a time"),
    ],
)
def test_source_is_refused_when_its_declaration_makes_no_sense(declared: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        KafkaTopics(**declared)


class OptionsOnly:
    """A Spark session and its readers: remembers the options that a read is given."""

    def __init__(self) -> None:
        self.read = self.readStream = self
        self.given: dict[str, str] = {}

    def format(self, name: str) -> OptionsOnly:
        assert name == "kafka"
        return self

    def options(self, **options: str) -> OptionsOnly:
        self.given.update(options)
        return self

    def load(self) -> OptionsOnly:
        return self


@pytest.mark.parametrize("others", [{}, {"failOnDataLoss": "false", "kafka.isolation.level": "read_uncommitted"}])
@pytest.mark.parametrize("read_by", ["stream", "interval", "compacted topic"])
def test_read_fails_on_lost_offsets_and_sees_committed_records_only_whatever_else_is_configured(
    topics: Home, monkeypatch: pytest.MonkeyPatch, read_by: str, others: dict[str, str]
) -> None:
    from spark_jobs.spark import kafka_source

    monkeypatch.setattr(kafka_source, "_client_options", lambda: {"kafka.bootstrap.servers": "h:1", **others})
    source, tp = KafkaTopics(subscribe=("door-a",)), TopicPartition("door-a", 0)
    # A declaration would refuse them.
    object.__setattr__(source, "options", others)
    spark: Any = OptionsOnly()
    if read_by == "stream":
        kafka_source.read_stream(spark, source, {tp: 3})
    elif read_by == "interval":
        kafka_source.read_ranges(spark, [OffsetRange(tp, 3, 5)])
    else:
        kafka_source.read_topic(spark, "door-a-counts")
    assert spark.given["failOnDataLoss"] == "true"
    assert spark.given["kafka.isolation.level"] == "read_committed"
    assert spark.given["includeHeaders"] == "true"
    # The topic that was deleted under it is not made again.
    assert spark.given["kafka.allow.auto.create.topics"] == "false"


@pytest.mark.parametrize("since", [None, START], ids=["whole", "since a time"])
def test_read_of_a_view_s_topic_names_it_when_it_does_not_exist(
    topics: Home, spark: Any, monkeypatch: pytest.MonkeyPatch, since: datetime | None
) -> None:
    from spark_jobs.spark import kafka_source

    monkeypatch.setattr(kafka_source, "_NEW_TOPIC_SECONDS", 0)
    with pytest.raises(UsageError, match="the topic door-x-counts does not exist"):
        kafka_source.read_topic(spark, "door-x-counts", since)


def test_pipeline_s_option_holds_when_the_properties_file_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_jobs.spark import kafka_source

    monkeypatch.setattr(kafka_source, "_client_options", lambda: {"kafka.request.timeout.ms": "1", "kafka.x": "file"})
    source = KafkaTopics(subscribe=("door-a",), options={"kafka.request.timeout.ms": "2"})
    spark: Any = OptionsOnly()
    kafka_source.read_stream(spark, source, {TopicPartition("door-a", 0): 3})
    assert (spark.given["kafka.request.timeout.ms"], spark.given["kafka.x"]) == ("2", "file")
