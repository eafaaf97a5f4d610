"""A speed view's messages for plain topics, those that stop the stream before any is written, and what that leaves."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include import kafka
from include.errors import TidemarkError
from include.kafka.fenced_producer import FencedProducer
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaMessages
from include.pipelines.spec.views import VERSION_HEADER
from spark_jobs.sinks import speed_view
from spark_jobs.sinks.kafka_messages import KafkaMessagesTarget
from spark_jobs.sinks.speed_view import SpeedViewSink
from spark_jobs.views.stored_base import StoredBase, day_of
from spark_jobs.views.values import key_json

pytestmark = pytest.mark.spark

HITS = load_pipeline("isp_hits")
EAST, WEST = "isp-hits-east", "isp-hits-west"
POLICIES = {EAST: "delete", WEST: "compact,delete"}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes | None]]:
    """Topic and key of each message that was handed to the producer; one of the topics is compacted."""
    found: list[tuple[str, bytes | None]] = []

    def write(_: FencedProducer, messages: Any, headers: Any = None) -> int:
        # By which readers recognise a repetition, also where the transform makes the value.
        assert headers == {VERSION_HEADER: b"7"}
        found.extend((topic, key) for topic, key, *_ in messages)
        return len(found)

    monkeypatch.setattr(FencedProducer, "write", write)
    monkeypatch.setattr(kafka, "cleanup_policy", POLICIES.__getitem__)
    return found


def kept_frames(spark: Any) -> int:
    """How many frames Spark keeps in memory."""
    return int(spark._jsparkSession.sharedState().cacheManager().numCachedEntries())


def write(spark: Any, sink: KafkaMessages, *zip_codes: str | None) -> None:
    """Write a count for each zip code."""
    rows = [(f'{{"zipcode":"{code}"}}' if code else "{}", 1) for code in zip_codes]
    values = spark.createDataFrame(rows, "key STRING, hits BIGINT")
    producer = FencedProducer(HITS.name, "by_zip", lambda: None)
    KafkaMessagesTarget(HITS, HITS.views[0], sink, producer).write(values, 7)


def test_messages_go_to_the_topics_that_their_rows_name_when_these_are_declared(
    spark: Any, written: list[tuple[str, bytes | None]]
) -> None:
    write(spark, KafkaMessages(messages="regional_messages", row_topics=(EAST, WEST)), "01234", "98765")
    assert sorted(written) == [(EAST, b"01234"), (WEST, b"98765")]


def test_nothing_is_written_when_a_row_names_a_topic_that_is_not_declared(
    spark: Any, written: list[tuple[str, bytes | None]]
) -> None:
    sink = KafkaMessages(messages="regional_messages", row_topics=(EAST,))
    before = kept_frames(spark)
    with pytest.raises(TidemarkError, match=f"a row of by_zip names the topic '{WEST}', which its sink does not"):
        write(spark, sink, "01234", "98765")
    assert written == []
    # The stream may go on in this process, which would hold them for ever.
    assert kept_frames(spark) == before


def test_message_without_a_key_is_written_unless_its_topic_is_compacted(
    spark: Any, written: list[tuple[str, bytes | None]]
) -> None:
    # Rows without a zip code are of the west.
    to_west, to_east = (
        KafkaMessages(topic, messages="regional_messages", row_topics=(EAST, WEST)) for topic in ("", EAST)
    )
    with pytest.raises(TidemarkError, match=f"a message of by_zip for the compacted topic {WEST} has no key"):
        write(spark, to_west, "01234", None)
    assert written == []
    write(spark, to_east, None)
    assert written == [(EAST, None)]


@pytest.mark.parametrize("has_base", [False, True])
def test_no_frame_stays_in_memory_when_a_target_fails(
    spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_base: bool
) -> None:
    monkeypatch.setattr(speed_view.writers, "renew", lambda _: False)
    monkeypatch.setattr(speed_view.micro_batches, "is_committed", lambda *_: False)
    monkeypatch.setattr(SpeedViewSink, "_commit_of", lambda *_: None)

    def refuse(values: Any, version: int) -> None:
        assert values.count() == 1
        raise TidemarkError(f"micro-batch {version} is refused")

    view = next(view for view in HITS.views if view.name == "zip_totals")
    state = spark.createDataFrame([("94103", 1)], view.columns)
    base = None
    if has_base:
        StoredBase.write(state.select(key_json(view).alias("key"), "hits", day_of(view)), str(tmp_path / "base"))
        base = StoredBase(spark, view, str(tmp_path / "base"))
        # Kept as long as micro-batches are of its days.
        base.of_days(["none"]).count()
    target: Any = SimpleNamespace(write=refuse)
    lease = Lease(HITS.name, 7, "here")
    generation = StreamGeneration(HITS.name, 0, {}, {})
    sink = SpeedViewSink(HITS, view, lease, generation, base, "id", "checkpoint", "version", [target])
    before = kept_frames(spark)
    with pytest.raises(TidemarkError, match="micro-batch 5 is refused"):
        sink.emit(state, 5)
    assert kept_frames(spark) == before
    if base is not None:
        base.of_days([])
