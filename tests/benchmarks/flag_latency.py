"""Latencies from a bid's producer to its flag, one way after the other over topics of their own.

Every bid breaks a rule, and its id is the time at which it was sent: what reads a flag knows how long it took.
The echo is a consumer and a producer in one loop, nothing else: what Kafka and the client cost by themselves.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka

from include import kafka, lake
from include.pipelines import load_pipeline
from include.pipelines.spec import Limit
from include.producing.messages.auction_bids import MEDIAN_BIDS, SHILL_PAIRS
from include.times import in_words

processes = multiprocessing.get_context("spawn")

PATIENCE = 20.0
"""Seconds without a flag after which the rest counts as lost."""

SLOW = 20.0
"""Milliseconds: what the steady state's p99 may take."""

NEAR = 2.0
"""Seconds around the end of a batch in which a slow bid waited for the next one."""


def reader(topic: str) -> confluent_kafka.Consumer:
    """A consumer of all of a topic from its end, made for latency."""
    found = kafka.consumer(**{"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 1})
    ends = kafka.offset_bounds(kafka.topic_partitions_of(kafka.describe_topics([topic]).values()))
    found.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, end) for tp, (_, end) in ends.items()])
    return found


def collect(topic: str, count: int, ready: Any, found: Any) -> None:
    """Put the next `count` flags into `found`, as they were sent: when the bid was sent, s, and its latency, ms."""
    consumer = reader(topic)
    consumer.poll(1)
    ready.set()
    latencies: dict[str, float] = {}
    last = time.monotonic()
    while len(latencies) < count and time.monotonic() - last < PATIENCE:
        message = consumer.poll(0.5)
        if message is None or message.error():
            continue
        now, last = time.time_ns(), time.monotonic()
        sent = json.loads(message.value())["bid_id"]
        # A flag that is raised twice counts by its first arrival.
        latencies.setdefault(sent, (now - sent_at(sent)) / 1e6)
    found.put(sorted((sent_at(sent) / 1e9, latency) for sent, latency in latencies.items()))


def sent_at(bid_id: str) -> int:
    """When a bid was sent, nanoseconds since 1970."""
    return int(bid_id.split("-")[0])


def echo(source: str, target: str, ready: Any, stop: Any) -> None:
    """Copy every message of `source` to `target`."""
    consumer, producer = reader(source), kafka.producer(**{"linger.ms": 0})
    consumer.poll(1)
    ready.set()
    while not stop.is_set():
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            producer.produce(target, message.value(), message.key())
            producer.poll(0)
    producer.flush(10)


def send(topic: str, rate: int, count: int) -> None:
    """Write bids of sellers in their own auctions at a rate; the id of each is the time at which it was sent."""
    producer = kafka.producer(**{"linger.ms": 0})
    bid = {
        "auction_id": "auction-00001",
        "category": "toys",
        "seller": "seller-001",
        "bidder": "seller-001",
        "currency": "EUR",
        "amount": 20.5,
        "bid_time": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    rest = json.dumps(bid)[1:]
    begun = time.perf_counter()
    for number in range(count):
        while (left := begun + number / rate - time.perf_counter()) > 0:
            producer.poll(min(left, 0.001))
        value = f'{{"bid_id": "{time.time_ns()}-{number}", {rest}'
        producer.produce(topic, value, str(number))
        producer.poll(0)
    producer.flush(30)


def latencies_of(source: str, target: str, rate: int, count: int) -> list[tuple[float, float]]:
    """Send `count` bids at a rate; return when each flagged one was sent, seconds since 1970, and its latency, ms."""
    ready, found = processes.Event(), processes.Queue()
    collector = processes.Process(target=collect, args=(target, count, ready, found))
    collector.start()
    ready.wait(60)
    sender = processes.Process(target=send, args=(source, rate, count))
    sender.start()
    flagged: list[tuple[float, float]] = found.get(timeout=count / rate + 120)
    sender.join()
    collector.join()
    if not flagged:
        raise SystemExit(f"no flag of {count} bids arrived in {target}")
    return flagged


def summary(flagged: list[tuple[float, float]], count: int, *shares: float) -> dict[str, float]:
    """The median of `count` bids, these further shares of them, ms, and how many flags never came."""
    ordered = sorted(latency for _, latency in flagged)
    return {
        **{f"p{100 * share:g}": round(ordered[int(len(ordered) * share)], 2) for share in (0.5, *shares)},
        "missing": count - len(flagged),
    }


def measure(source: str, target: str, rate: int, count: int) -> dict[str, float]:
    """p50 and p99 of `count` bids at a rate, ms, and how many flags never came."""
    return summary(latencies_of(source, target, rate, count), count, 0.99)


def measure_steady(source: str, target: str, rate: int, seconds: float, query: Any) -> dict[str, Any]:
    """The same over a longer time, with the slowest, and what the query's batches have to do with these."""
    count = int(rate * seconds)
    flagged = latencies_of(source, target, rate, count)
    found: dict[str, Any] = {
        **summary(flagged, count, 0.99, 0.999),
        "max": round(max(latency for _, latency in flagged), 2),
        "slow": sum(latency > SLOW for _, latency in flagged),
    }
    first, last = flagged[0][0], flagged[-1][0]
    # Only batches that have ended are told; at the end of one the next begins.
    told = [json.loads(each.json) for each in query.recentProgress]
    begins = [datetime.fromisoformat(each["timestamp"]).timestamp() for each in told]
    ends = [at + each["durationMs"]["triggerExecution"] / 1000 for at, each in zip(begins, told, strict=True)]
    begun = [(end, each) for end, each in zip(ends, told, strict=True) if first < end < last]
    waits = [max((ms for at, ms in flagged if abs(at - end) < NEAR), default=0.0) for end, _ in begun]
    near = sum(ms > SLOW and any(abs(at - end) < NEAR for end, _ in begun) for at, ms in flagged)
    phases = sorted({phase for _, each in begun for phase in each["durationMs"]} - {"addBatch", "triggerExecution"})
    return found | {
        "batches": len(begun),
        "slow_at_a_new_batch": near,
        "longest_wait_for_a_new_batch": round(median(waits), 1) if waits else None,
        "phases": {phase: median(each["durationMs"].get(phase, 0) for _, each in begun) for phase in phases},
    }


@contextmanager
def echoing(source: str, target: str) -> Iterator[None]:
    """The echo in a process of its own, which is no query."""
    ready, stop = processes.Event(), processes.Event()
    process = processes.Process(target=echo, args=(source, target, ready, stop))
    process.start()
    ready.wait(60)
    try:
        yield
    finally:
        stop.set()
        process.join(30)


def spark_ways() -> dict[str, Callable[[str, str], AbstractContextManager[Any]]]:
    """The query that raises flags, by its trigger: real time as declared, and micro-batches as fast as they go."""
    from dataclasses import replace

    from pyspark.sql import SparkSession

    from spark_jobs.decoding.records import archive_rows, decode
    from spark_jobs.spark.kafka_source import read_stream, write_stream
    from spark_jobs.spark.session import build_session
    from spark_jobs.streaming.flag_query import task_slots
    from spark_jobs.views.flags import declared, flags

    pipeline = load_pipeline("auction_bids")
    spark: SparkSession = build_session("bench flags", task_slots=task_slots(pipeline))
    limits = [Limit("far_above", json.dumps([name, "EUR"]), str(median * 4)) for name, median in MEDIAN_BIDS.items()]
    limits += [Limit("burst", f"burst-{number}") for number in range(100)]
    limits += [Limit("shill_pair", json.dumps([bidder, seller])) for seller, bidder in SHILL_PAIRS.items()]

    @contextmanager
    def raising(name: str, trigger: dict[str, Any], source: str, target: str) -> Iterator[Any]:
        topics = kafka.describe_topics([source]).values()
        begins = {tp: end for tp, (_, end) in kafka.offset_bounds(kafka.topic_partitions_of(topics)).items()}
        topic = replace(pipeline.source, subscribe=(source,))
        records = read_stream(spark, topic, begins, in_real_time="realTime" in trigger)
        raised = flags(pipeline, archive_rows(pipeline, decode(pipeline, records)), limits, 1)
        query = (
            write_stream(raised, target)
            .option("checkpointLocation", lake.uri("bench", name))
            .outputMode("update")
            .trigger(**trigger)
            .start()
        )
        try:
            yield query
        finally:
            query.stop()

    return {
        "real_time": lambda source, target: raising(
            "real_time", {"realTime": in_words(declared(pipeline).commit_every)}, source, target
        ),
        "micro_batch": lambda source, target: raising("micro_batch", {"processingTime": "0 seconds"}, source, target),
    }


def compare(rates: dict[int, int], warm_up: float, steady: tuple[int, float]) -> dict[str, Any]:
    """All ways at all rates, one after the other; real time also at `steady`: bids per second, seconds."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    lasting: dict[str, Any] = {}
    for way, open_way in {"echo": echoing, **spark_ways()}.items():
        source, target = f"bench-bids-{way}", f"bench-flags-{way}"
        for topic in (source, target):
            kafka.create_topic(topic, 4)
        with open_way(source, target) as query:
            measure(source, target, 200, int(200 * warm_up))
            found[way] = {rate: measure(source, target, rate, count) for rate, count in rates.items()}
            if way == "real_time":
                lasting = measure_steady(source, target, *steady, query)
    ratios = {
        way: {rate: round(found[way][rate]["p50"] / found["echo"][rate]["p50"], 2) for rate in rates}
        for way in found
        if way != "echo"
    }
    return {
        "milliseconds": found,
        "p50_to_echo": ratios,
        "steady": {"rate": steady[0], "seconds": steady[1], **lasting},
    }


def main() -> int:
    """Run with these arguments and write the figures to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=json.loads, required=True)
    parser.add_argument("--warm-up", type=float, required=True)
    parser.add_argument("--steady", type=json.loads, required=True)
    parser.add_argument("--result", type=Path, required=True)
    arguments = parser.parse_args()
    rates = {int(rate): int(count) for rate, count in arguments.rates.items()}
    arguments.result.write_text(json.dumps(compare(rates, arguments.warm_up, arguments.steady)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
