"""What a stream does before its queries start, and while the bases of its views are made."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import confluent_kafka
import pytest

from include.errors import MessageRefused, OffsetsLost, TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.streams import generations as ledger_generations
from include.ledger.streams.flags import FLAGS
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline
from include.streams import generations
from include.streams.start import begin
from spark_jobs.streaming import kafka_stream, speed_base
from tests.conftest import Home, settings_of, wait_for
from tests.support import audit
from tests.support.checkpoints import begin_checkpoint
from tests.support.topic_log import Log

LEASE = Lease("nest_cameras", 7, "here")


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """A stream answers to signals, this process's too."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("accepts", [False, True])
def test_lost_offsets_are_accepted_only_when_the_pipeline_declares_it(
    monkeypatch: pytest.MonkeyPatch, accepts: bool
) -> None:
    accepted: list[tuple[str, Lease]] = []

    def accept_losses(pipeline: Any, lease: Lease, **_: str) -> list[Any]:
        accepted.append((pipeline.name, lease))
        return []

    def begin(pipeline: Any) -> Any:
        raise OffsetsLost("removed before they were archived", remedy="accept it")

    monkeypatch.setattr(kafka_stream, "leased", lambda pipeline: nullcontext((LEASE, SimpleNamespace())))
    monkeypatch.setattr(kafka_stream, "has_sources", lambda pipeline: False)
    monkeypatch.setattr(kafka_stream, "begin", begin)
    monkeypatch.setattr(kafka_stream.generations, "accept_losses", accept_losses)
    monkeypatch.setattr(kafka_stream.generations, "pass_over_removed", lambda *_, **__: {})
    source = KafkaTopics(subscribe=("nest-logs",), fail_on_data_loss=not accepts)
    declared = replace(load_pipeline("nest_cameras"), source=source)
    # Spark is not started for a stream that may not begin.
    with pytest.raises(OffsetsLost):
        kafka_stream.run_stream(lambda: pytest.fail("Spark was started"), declared, until_caught_up=True)
    assert accepted == ([(declared.name, LEASE)] if accepts else [])


def test_consumer_group_names_the_ledger_before_the_first_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is killed after it must find its own ledger there when it starts again."""
    begins = {TopicPartition("nest-logs", 0): 4}
    told: list[tuple[str, object]] = []

    class Group:
        def __init__(self, _: str, owner: str) -> None:
            self.owner = owner

        def commit(self, positions: object) -> str:
            told.append((self.owner, positions))
            return ""

    monkeypatch.setattr(kafka_stream, "ConsumerGroup", Group)
    monkeypatch.setattr(kafka_stream, "owner_of", lambda _: "this one")
    monkeypatch.setattr(kafka_stream, "topics_that_left", lambda _: frozenset())
    monkeypatch.setattr(kafka_stream.micro_batches, "positions", lambda _: {})
    monkeypatch.setattr(kafka_stream, "prepare_code", lambda *_: None)
    monkeypatch.setattr(kafka_stream._Queries, "_start_archive", lambda _: told.append(("archive", "started")))
    pipeline = replace(load_pipeline("nest_cameras"), views=(), reports=())
    start = SimpleNamespace(generation=StreamGeneration(pipeline.name, 1, {}, {}), note=lambda *_: begins)
    unused: Any = None
    kafka_stream._Queries(unused, pipeline, LEASE, cast(Any, start), unused, unused, until_caught_up=True)
    assert told[-2:] == [("this one", begins), ("archive", "started")]


def test_topic_of_flags_is_named_when_it_does_not_take_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's error does not name it. The query is not started again: it would meet the same flag."""
    failed = {"archive": None, "flags": ValueError("The request included a message larger than the max message size")}
    monkeypatch.setattr(kafka_stream, "translate", lambda error: MessageRefused(str(error)))
    monkeypatch.setattr(kafka_stream._Queries, "_failure", lambda _, name, query: failed[name])
    queries: Any = object.__new__(kafka_stream._Queries)
    queries._pipeline, queries._flags, queries._errors = load_pipeline("auction_bids"), SimpleNamespace(), []
    queries._names, queries._queries = ("archive", "flags"), [None, None]
    monkeypatch.setattr(kafka_stream, "unresolved_id", lambda _: None)
    with pytest.raises(MessageRefused, match="larger than the max message size; the topic is auction-flags"):
        queries.running()


TP = TopicPartition("kept-hits", 0)


class Hits(Log):
    """Hits of one zip code, and what their topic has lost."""

    def arrive(self, number: int) -> None:
        hit = {"zipcode": "94103", "hittime": datetime.now(UTC).isoformat(), "isp": "a", "user": "b"}
        for _ in range(number):
            self.producer.produce(self.topic, json.dumps(hit), partition=0)
        assert self.producer.flush(30) == 0

    def lose_before(self, offset: int) -> None:
        wanted = confluent_kafka.TopicPartition(self.topic, 0, offset)
        self.admin.delete_records([wanted])[wanted].result(30)


class Begun(Exception):
    """The stream has begun: it opens its Spark session."""


@pytest.mark.services
def test_stream_that_accepts_losses_begins_a_generation_when_only_a_view_and_flags_had_not_read_what_kafka_removed(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    source = KafkaTopics(subscribe=("unread-bids",), fail_on_data_loss=False)
    pipeline = replace(load_pipeline("auction_bids"), source=source)
    beside = (pipeline.views[0].name, FLAGS)

    def run(declared: Pipeline) -> None:
        def open_session() -> Any:
            raise Begun

        kafka_stream.run_stream(open_session, declared, until_caught_up=True)

    def number() -> int:
        current = ledger_generations.current(pipeline.name)
        assert current is not None
        return current.number

    with settings_of(home):
        log = Hits(pipeline)
        log.create(1)
        log.arrive(3)
        generation = begin(pipeline).generation
        for query in (ARCHIVE, *beside):
            log.archive(query=query)
            begin_checkpoint(generation, query)
        log.arrive(2)
        log.archive()
        log.lose_before(4)
        with pytest.raises(OffsetsLost, match="read it; all of it is archived"):
            run(replace(pipeline, source=replace(source, fail_on_data_loss=True)))
        assert number() == generation.number
        # Again: the new generation's queries have not started, and lack nothing.
        for _ in range(2):
            with pytest.raises(Begun):
                run(pipeline)
            assert number() == generation.number + 1
    for reader in (f"the speed view {beside[0]}", "the flags' query"):
        assert f"unread-bids-0 [3, 4) (1 offsets) was removed before {reader} read it; all of it is" in caplog.text


@pytest.mark.spark
@pytest.mark.services
def test_lost_offsets_are_named_with_the_way_on_when_kafka_removes_what_a_running_micro_batch_reads(
    home: Home, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All of its messages are quarantined, which is as good here.
    source = KafkaTopics(subscribe=("removed-hits",))
    pipeline = replace(load_pipeline("nest_cameras"), source=source, views=(), reports=())
    run_sink = kafka_stream._Queries._run_sink

    def lose_and_run(queries: Any, *batch: Any) -> None:
        log.lose_before(5)
        run_sink(queries, *batch)

    with settings_of(home):
        log = Hits(pipeline)
        log.create(1)
        log.arrive(2)
        assert kafka_stream.run_stream(lambda: spark, pipeline, until_caught_up=True) == 0
        log.arrive(4)
        monkeypatch.setattr(kafka_stream._Queries, "_run_sink", lose_and_run)
        with pytest.raises(OffsetsLost, match=r"removed-hits-0 \[2, 5\) \(3 offsets\) was removed before") as lost:
            kafka_stream.run_stream(lambda: spark, pipeline, until_caught_up=True)
    assert "./tidemark accept-loss nest_cameras --reason" in lost.value.remedy


@pytest.mark.spark
@pytest.mark.services
def test_nothing_more_is_lost_when_kafka_removes_records_while_a_base_is_made(
    home: Home, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an accepted loss, the archive's position is where Kafka begins: what is not read at once is lost, too."""
    hits = load_pipeline("isp_hits")
    view = replace(hits.views[0], speed=replace(hits.views[0].speed, topic="kept-hits-by-zip"), sinks=())
    pipeline = replace(hits, source=KafkaTopics(subscribe=(TP.topic,)), views=(view,), reports=())
    archived, parts = speed_base._archived, []

    def fail(*_: Any) -> Any:
        raise TidemarkError("it cannot be computed", remedy="none")

    def read(spark: Any, pipeline: Any, before: Any, ends: Any) -> Any:
        parts.append((before, ends))
        if before is None:
            wait_for("the archive", lambda: micro_batches.positions(pipeline.name) == {TP: 8}, 60)
            log.lose_before(8)
        else:
            # After the archive query has caught up.
            log.arrive(1)
        return archived(spark, pipeline, before, ends)

    def run() -> None:
        assert kafka_stream.run_stream(lambda: spark, pipeline, until_caught_up=True) == 0

    with settings_of(home):
        log = Hits(pipeline)
        log.create(1)
        log.arrive(3)
        run()
        log.arrive(3)
        log.lose_before(4)
        assert generations.accept_loss(pipeline, reason="a test", accepted_by="test@host")
        monkeypatch.setattr(speed_base, "_archived", fail)
        with pytest.raises(TidemarkError, match="it cannot be computed"):
            run()
        # What was read meanwhile is not lost any more.
        log.lose_before(6)
        log.arrive(2)
        monkeypatch.setattr(speed_base, "_archived", read)
        monkeypatch.setattr(speed_base, "_LONG", 0.0)
        run()
        reached = [micro_batches.positions(pipeline.name, query) for query in (ARCHIVE, view.name)]
    assert parts == [(None, {TP: 6}), ({TP: 6}, {TP: 8})]
    assert reached == [{TP: 9}, {TP: 9}]
    last = {
        each.key: json.loads(each.value) for _, each in sorted(audit.read_topic(home.kafka, view.speed.topic).items())
    }
    # Eight of nine, each in two windows.
    assert sum(each["hits"] for each in last.values()) == 16
