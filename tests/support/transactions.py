"""Producers as other systems have them: transactions that commit, abort, or hang."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from confluent_kafka import Producer

from include.pipelines import load_pipeline
from include.producing.generate import messages
from tests.support.audit import Coordinates, read_topic

Message = tuple[int, bytes, bytes]
"""Timestamp in milliseconds, key and value."""


def good_messages(events: int, start: datetime, span: timedelta, seed: int = 1) -> Iterator[Message]:
    pipeline = load_pipeline("nest_cameras")
    for moment, key, value, _ in messages(pipeline, events=events, seed=seed, bad_fraction=0.0, start=start, span=span):
        assert key is not None
        assert value is not None
        yield int(moment.timestamp() * 1000), key, value


def transactional_producer(bootstrap: str, name: str) -> Producer:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 900_000, "log_level": 0}
    )
    producer.init_transactions(30)
    return producer


def write_transaction(
    producer: Producer, topic: str, written: list[Message], *, end: str = "commit", partition: int = -1
) -> None:
    """Write a transaction whose records lie in the log before it commits, aborts, or is left open."""
    producer.begin_transaction()
    for milliseconds, key, value in written:
        producer.produce(topic, value, key, partition=partition, timestamp=milliseconds)
    producer.flush(30)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)


def all_offsets(bootstrap: str, topic: str) -> set[Coordinates]:
    """Coordinates of every record in the log, aborted ones included."""
    return {*read_topic(bootstrap, topic, isolation="read_uncommitted")}
