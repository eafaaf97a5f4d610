"""What a stream does before its queries start: without Spark or services."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from include.errors import MessageRefused, OffsetsLost
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from spark_jobs.streaming import kafka_stream

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

    @contextmanager
    def leased(pipeline: str) -> Iterator[tuple[Lease, Any]]:
        yield LEASE, SimpleNamespace()

    monkeypatch.setattr(kafka_stream, "leased", leased)
    monkeypatch.setattr(kafka_stream, "has_sources", lambda pipeline: False)
    monkeypatch.setattr(kafka_stream, "begin", begin)
    monkeypatch.setattr(kafka_stream.generations, "accept_losses", accept_losses)
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
