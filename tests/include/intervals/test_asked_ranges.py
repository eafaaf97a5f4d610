"""Ranges that are asked for by hand: what is read from the text, and what is refused before Spark starts."""

from __future__ import annotations

import pytest
from confluent_kafka import TopicPartition as ClientTopicPartition

from include.errors import ArchiveBehind, OffsetsLost, TidemarkError, TopicRecreated, UsageError
from include.intervals.reporting.asked_ranges import check_ranges, format_ranges, parse_ranges
from include.ledger.intervals.states import Source
from include.offsets import OffsetRange, TopicPartition
from tests.conftest import Home
from tests.support.topic_log import Log


def test_ranges_are_read_in_order_and_written_back_when_they_are_valid() -> None:
    found = parse_ranges("b:1:5-9, a.b_c-d:0:110-220,b:1:2-5,b:1:20-21", "p")
    b = TopicPartition("b", 1)
    assert found == [
        OffsetRange(TopicPartition("a.b_c-d", 0), 110, 220),
        *(OffsetRange(b, *span) for span in ((2, 5), (5, 9), (20, 21))),
    ]
    assert parse_ranges(format_ranges(found), "p") == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not an offset range: ''"),
        ("nest-logs:0", "not an offset range: 'nest-logs:0'"),
        ("nest-logs:0:-1-5", "not an offset range"),
        ("nest-logs:x:1-5", "not an offset range"),
        ("nest-logs:0:1-5,", "not an offset range: ''"),
        ("nest-logs:0:1-5 nest-logs:1:1-5", "not an offset range"),
        ("nest-logs:0:220-110", "the range of nest-logs-0 from offset 220 until 110 holds none"),
        ("nest-logs:0:110-110", "the range of nest-logs-0 from offset 110 until 110 holds none"),
        ("nest-logs:0:5-9,nest-logs:0:1-6", "the ranges nest-logs-0 [1, 6) and nest-logs-0 [5, 9) overlap"),
        ("nest-logs:0:1-6,nest-logs:0:1-6", "the ranges nest-logs-0 [1, 6) and nest-logs-0 [1, 6) overlap"),
    ],
)
def test_ranges_are_refused_with_pipeline_topic_partition_and_offsets_when_they_are_none(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_ranges(text, "nest_cameras")
    assert str(refused.value).startswith(f"nest_cameras: {words}")
    assert refused.value.exit_code == 64


@pytest.fixture
def log(in_process: Home, log: Log) -> Log:
    """Six records of topic partition 0, of which Kafka holds the last four and the archive the first five."""
    log.send(0, *[0.1] * 5)
    log.archive()
    log.send(0, 0.1)
    cut = ClientTopicPartition(log.topic, 0, 2)
    next(iter(log.admin.delete_records([cut]).values())).result(30)
    return log


def refusal(log: Log, source: Source, partition: int, begin: int, until: int) -> TidemarkError:
    with pytest.raises(TidemarkError) as refused:
        check_ranges(log.pipeline, [OffsetRange(TopicPartition(log.topic, partition), begin, until)], source)
    assert str(refused.value).startswith(f"{log.pipeline.name}: {log.topic}-{partition} [{begin}, {until}) ")
    return refused.value


@pytest.mark.services
def test_side_refuses_ranges_with_its_bounds_when_it_does_not_hold_them(log: Log) -> None:
    tp = TopicPartition(log.topic, 0)
    check_ranges(log.pipeline, [OffsetRange(tp, 2, 6)], Source.KAFKA)
    check_ranges(log.pipeline, [OffsetRange(tp, 0, 3), OffsetRange(tp, 3, 5)], Source.ARCHIVE)

    gone = refusal(log, Source.KAFKA, 0, 1, 4)
    assert isinstance(gone, OffsetsLost)
    assert "begins before offset 2, the first that Kafka holds" in str(gone)
    assert "--source archive" in gone.remedy

    beyond = refusal(log, Source.KAFKA, 0, 3, 7)
    assert isinstance(beyond, OffsetsLost)
    assert "reaches beyond offset 6, at which Kafka ends" in str(beyond)

    behind = refusal(log, Source.ARCHIVE, 0, 3, 6)
    assert isinstance(behind, ArchiveBehind)
    assert "reaches beyond offset 5, at which the archive ends" in str(behind)

    for source in Source:
        unknown = refusal(log, source, 2, 0, 1)
        assert isinstance(unknown, UsageError)
        assert f"{log.topic}-0, {log.topic}-1" in unknown.remedy


@pytest.mark.services
def test_recreated_topic_is_refused_when_kafka_is_asked_for_offsets_that_were_archived_of_the_old_one(log: Log) -> None:
    log.delete()
    log.create(2)
    log.send(0, *[0.1] * 6)
    tp = TopicPartition(log.topic, 0)
    with pytest.raises(TopicRecreated, match="was deleted and created again"):
        check_ranges(log.pipeline, [OffsetRange(tp, 2, 4)], Source.KAFKA)
    check_ranges(log.pipeline, [OffsetRange(tp, 2, 4)], Source.ARCHIVE)
