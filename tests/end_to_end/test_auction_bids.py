"""Auction bids: archived, flagged by limits that the batch layer learned, and each flag recomputed."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from include.spark.jars import classpath, java
from tests.conftest import REPOSITORY, Home, end_of, iso, last_hours, wait_for
from tests.support import audit
from tests.support.audit import Coordinates
from tests.support.bids import FLAGS, expected_flags, fates_of, flags

pytestmark = [pytest.mark.services, pytest.mark.slow]

PIPELINE, TOPIC = "auction_bids", "auction-bids"
START = last_hours(3)


@pytest.fixture(scope="module")
def first(home: Home) -> dict[str, Any]:
    """The verdict of the first hour, before which no limits were learned."""
    produce(home, START, seed=7)
    home.run("stream", PIPELINE, "--until-caught-up")
    return home.interval(PIPELINE, START)


@pytest.fixture(scope="module")
def second(home: Home, first: dict[str, Any]) -> dict[str, Any]:
    """The verdict of the second hour, flagged by limits learned from the first one."""
    produce(home, START + timedelta(hours=1), seed=8)
    home.run("stream", PIPELINE, "--until-caught-up")
    return home.interval(PIPELINE, START + timedelta(hours=1))


def produce(home: Home, start: datetime, seed: int) -> None:
    home.produce(PIPELINE, 3000, start, "1h", bad=0.03, seed=seed)


def bids_of(home: Home, verdict: dict[str, Any]) -> dict[Coordinates, dict[str, Any]]:
    records = audit.in_ranges(audit.read_topic(home.kafka, TOPIC), verdict["ranges"])
    return {c[:3]: bid for c, bid in fates_of(records).rows.items()}


def rules_in(home: Home, verdict: dict[str, Any]) -> dict[Coordinates, set[str]]:
    ours = bids_of(home, verdict)
    return {c: {rule["rule"] for rule in flag["rules"]} for c, flag in flags(home.kafka).items() if c in ours}


def test_every_bid_is_archived_or_quarantined_whole(home: Home, first: dict[str, Any]) -> None:
    assert audit.check_archive(home.kafka, home.database, home.lake, TOPIC, fates_of) == 3000
    table = audit.read_parquet(r["location"] for r in first["registered"] if r["table"] == PIPELINE)
    bids = bids_of(home, first)
    assert audit.coordinates_of(table) == Counter(bids.keys())
    for row in table.to_pylist():
        bid = bids[row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]]
        assert (row["bid_id"], row["amount"]) == (bid["bid_id"], bid["amount"])
    assert first["reconciliation"]["unexplained"] == 0
    assert first["validation"]["success"] is True


def test_sums_per_category_equal_the_bids_to_the_cent_in_both_layers(home: Home, first: dict[str, Any]) -> None:
    sums: dict[tuple[str, str], list[Decimal]] = defaultdict(lambda: [Decimal(0)] * 3)
    for bid in bids_of(home, first).values():
        bids, amount, squared = sums[bid["category"], bid["currency"]]
        sums[bid["category"], bid["currency"]] = [bids + 1, amount + bid["amount"], squared + bid["amount"] ** 2]
    table = audit.read_parquet(r["location"] for r in first["registered"] if r["table"].endswith("category_hours"))
    batch = {(r["category"], r["currency"]): [r["bids"], r["amount"], r["amount_squared"]] for r in table.to_pylist()}
    assert batch == sums
    speed = {}
    for record in audit.read_topic(home.kafka, "auction-category-hours").values():
        key, value = json.loads(record.key or b""), json.loads(record.value or b"", parse_float=Decimal)
        if key["window"]["start"] == iso(START):
            found = [value[name] for name in ("bids", "amount", "amount_squared")]
            speed[key["category"], key["currency"]] = found
    assert speed == sums


def test_before_anything_is_learned_only_bids_in_own_auctions_are_flagged(home: Home, first: dict[str, Any]) -> None:
    found = rules_in(home, first)
    assert found == expected_flags(bids_of(home, first), [])
    assert set().union(*found.values()) == {"own_auction"}


@pytest.mark.slow
def test_flags_follow_from_limits_learned_from_the_hour_before_bid_by_bid(
    home: Home, first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert audit.check_archive(home.kafka, home.database, home.lake, TOPIC, fates_of) == 6000
    assert (second["reconciliation"]["unexplained"], second["validation"]["success"]) == (0, True)
    found = rules_in(home, second)
    assert found == expected_flags(bids_of(home, second), list(bids_of(home, first).values()))
    assert set().union(*found.values()) == {"own_auction", "far_above", "burst", "shill_pair"}
    versions = {flag["limits_version"] for c, flag in flags(home.kafka).items() if c in found}
    ((learned_from,),) = home.ledger("SELECT learned_from FROM limits_versions WHERE id = %s", versions.pop())
    assert not versions
    registered = {r["revision"] for r in first["registered"] if r["table"] != PIPELINE}
    assert {each["revision"] for each in learned_from} == registered


def bid_in_own_auction(home: Home, seller: str, moment: datetime) -> str:
    """Place a bid in the seller's own auction; its id."""
    bid = {"auction_id": "a", "category": "toys", "seller": seller, "bidder": seller, "currency": "EUR", "amount": 20}
    bid |= {"bid_id": f"{seller}-{time.time_ns()}", "bid_time": iso(moment)}
    producer = home.producer(**{"linger.ms": 0})
    producer.produce(TOPIC, json.dumps(bid), "a", timestamp=int(moment.timestamp() * 1000))
    assert producer.flush(10) == 0
    return str(bid["bid_id"])


def raise_flag(home: Home, seller: str, moment: datetime) -> tuple[dict[str, Any], float]:
    """Place a bid in the seller's own auction; its flag, and how many seconds it took."""
    topics = Consumer({"bootstrap.servers": home.kafka, "group.id": "test", "enable.auto.commit": False})
    partitions = topics.list_topics(FLAGS, timeout=10).topics[FLAGS].partitions
    ends = [TopicPartition(FLAGS, p) for p in partitions]
    topics.assign([TopicPartition(FLAGS, tp.partition, topics.get_watermark_offsets(tp)[1]) for tp in ends])
    bid_id = bid_in_own_auction(home, seller, moment)
    sent = time.monotonic()
    try:
        while time.monotonic() - sent < 120:
            message = topics.poll(1)
            if message is None or message.error():
                continue
            flag = json.loads(message.value())
            if flag["bid_id"] == bid_id:
                return flag, time.monotonic() - sent
    finally:
        topics.close()
    raise AssertionError(f"no flag of {bid_id} within two minutes")


@pytest.mark.slow
def test_running_stream_flags_ahead_of_its_commits_takes_over_new_limits_and_survives_a_kill(
    home: Home, second: dict[str, Any], tmp_path: Path
) -> None:
    hour, log = START + timedelta(hours=2), tmp_path / "stream.log"
    stream = start_stream(home, log)
    try:
        before, _ = raise_flag(home, "early", hour)
        seconds = sorted(raise_flag(home, f"early-{n}", hour + timedelta(seconds=n))[1] for n in range(20))
        # The query commits every 30 s, but flags come earlier; `bench flags` measures the latency.
        assert seconds[10] < 15, seconds
        assert "in micro-batches" not in log.read_text()
        produce(home, hour, seed=9)
        last, _ = raise_flag(home, "last", hour + timedelta(minutes=59, seconds=59))
        assert last["limits_version"] == before["limits_version"]
        wait_for("the archive to catch up", lambda: lag_of(home, "archive") == 0)
        verdict = home.interval(PIPELINE, hour)
        assert verdict["reconciliation"]["unexplained"] == 0
        # The stream goes on, with limits that know the third hour.
        wait_for("new limits", lambda: "is in force" in log.read_text())
        after, _ = raise_flag(home, "later", datetime.now(UTC))
        assert after["limits_version"] > before["limits_version"]
    finally:
        end_of(stream)
    assert lag_of(home, "flags") > 0
    # Records since the last commit are flagged again, with the same text.
    home.run("stream", PIPELINE, "--until-caught-up")
    assert lag_of(home, "flags") == 0
    found = {
        c: r
        for c, r in rules_in(home, verdict).items()
        if not flags(home.kafka)[c]["bid_id"].startswith(("early", "l"))
    }
    known = [*bids_of(home, second).values(), *bids_of_first(home)]
    ours = {c: b for c, b in bids_of(home, verdict).items() if not b["bid_id"].startswith(("early", "l"))}
    assert found == expected_flags(ours, known)
    again = home.interval(PIPELINE, hour)["reconciliation"]
    assert (again["unexplained"], again["pending"]) == (0, 0)


@pytest.mark.slow
def test_stream_with_a_flags_query_stops_at_once_when_asked(home: Home, second: dict[str, Any], tmp_path: Path) -> None:
    stream = start_stream(home, tmp_path / "stream.log")
    try:
        raise_flag(home, "stopping", datetime.now(UTC))
        asked = time.monotonic()
        stream.send_signal(signal.SIGTERM)
        assert stream.wait(60) == 0, (tmp_path / "stream.log").read_text()[-3000:]
        assert time.monotonic() - asked < 25, "the real-time query was waited for"
    finally:
        end_of(stream)


@pytest.mark.slow
def test_new_generation_raises_each_flag_once_and_goes_on_where_the_archive_ends(
    home: Home, second: dict[str, Any]
) -> None:
    # An earlier test stopped the query before its commit, so those flags come again first; they are not examined here.
    home.run("stream", PIPELINE, "--until-caught-up")
    before = audit.read_topic(home.kafka, FLAGS).keys()
    home.run("new-generation", PIPELINE, "--reason", "a test")
    bid_id = bid_in_own_auction(home, "renewed", datetime.now(UTC))
    home.run("stream", PIPELINE, "--until-caught-up")
    raised = [record for c, record in audit.read_topic(home.kafka, FLAGS).items() if c not in before]
    assert [json.loads(record.value or b"")["bid_id"] for record in raised] == [bid_id]
    assert lag_of(home, "flags") == 0
    verdict = home.interval(PIPELINE, START + timedelta(hours=1))
    assert (verdict["reconciliation"]["unexplained"], verdict["reconciliation"]["pending"]) == (0, 0)
    assert rules_in(home, verdict) == rules_in(home, second)


@pytest.mark.slow
def test_limits_of_before_stay_when_a_revision_that_they_would_be_learned_from_is_damaged(
    home: Home, second: dict[str, Any]
) -> None:
    location = next(r["location"] for r in second["registered"] if r["table"].endswith("category_hours"))
    file = next(Path(urlsplit(location).path).glob("*.parquet"))
    whole = file.read_bytes()
    ((before,),) = home.ledger("SELECT max(id) FROM limits_versions")
    bid_id = bid_in_own_auction(home, "damaged", datetime.now(UTC))
    file.write_bytes(whole[: len(whole) // 2])
    try:
        done = home.run("stream", PIPELINE, "--until-caught-up")
    finally:
        file.write_bytes(whole)
    assert "no limits could be learned, the last ones stay in force: " in done.stderr
    flag = next(flag for flag in flags(home.kafka).values() if flag["bid_id"] == bid_id)
    assert flag["limits_version"] == before


def start_stream(home: Home, log: Path) -> subprocess.Popen[str]:
    with log.open("w") as output:
        command, environment = home.command("stream", PIPELINE), home.environment()
        return subprocess.Popen(command, env=environment, stderr=output, cwd=REPOSITORY, text=True)


def lag_of(home: Home, query: str) -> int:
    return sum(each["lag"] for each in home.json("lag", PIPELINE, "--json") if each["query"] == query)


def bids_of_first(home: Home) -> list[dict[str, Any]]:
    rows = [row for row in home.json("ranges", PIPELINE, "--json") if row["from"] == iso(START)]
    return list(bids_of(home, {"ranges": rows}).values())


def test_kafkas_own_tool_sees_the_group_and_its_lag(home: Home, first: dict[str, Any]) -> None:
    def described() -> dict[int, tuple[int, int, int]]:
        tool = ["org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", home.kafka]
        jars = ":".join(str(jar) for jar in classpath("broker"))
        command = [java(), "-Xmx128m", "-cp", jars, *tool, "--describe", "--group", f"tidemark-{PIPELINE}"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        rows = [line.split() for line in shown.splitlines() if line.startswith(f"tidemark-{PIPELINE} ")]
        return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows if row[1] == TOPIC}

    caught_up = described()
    assert len(caught_up) == 4
    assert all(lag == 0 and committed == end for committed, end, lag in caught_up.values())
    produce(home, datetime.now(UTC) - timedelta(hours=1), seed=10)
    behind = described()
    assert sum(lag for _, _, lag in behind.values()) == 3000
    shown = {each["partition"]: each for each in home.json("lag", PIPELINE, "--json") if each["query"] == "archive"}
    assert {p: (each["committed"], each["end"], each["lag"]) for p, each in shown.items()} == behind
    metrics = text_string_to_metric_families(home.run("lag", PIPELINE, "--metrics").stdout)
    gauges = {m.name: m for m in metrics}
    exported = {
        int(s.labels["partition"]): s.value
        for s in gauges["tidemark_lag_offsets"].samples
        if s.labels["query"] == "archive"
    }
    assert exported == {partition: lag for partition, (_, _, lag) in behind.items()}


def rerun(home: Home, expect: int) -> list[dict[str, Any]]:
    verdict = home.interval(PIPELINE, START + timedelta(hours=1), expect=expect)
    return [d for d in verdict["differences"] if d["what"] == f"flags in {FLAGS}" and d["class"] == "unexplained"]


@pytest.mark.slow
def test_forged_and_altered_flags_and_a_missing_one_stop_the_interval(home: Home, second: dict[str, Any]) -> None:
    known = {c: flag for c, flag in flags(home.kafka).items() if c in bids_of(home, second)}
    honest = sorted(set(bids_of(home, second)) - set(known))[0]
    (altered, flag), *_ = sorted(known.items())
    forged = {**flag, **dict(zip(("kafka_topic", "kafka_partition", "kafka_offset"), honest, strict=True))}
    producer = home.producer()
    for value in (forged, {**flag, "bidder": "somebody-else"}):
        key = {name: value[name] for name in ("kafka_offset", "kafka_partition", "kafka_topic")}
        producer.produce(FLAGS, json.dumps(value, default=float), json.dumps(key, separators=(",", ":")))
    assert producer.flush(10) == 0
    found = rerun(home, 3)
    assert {d["where"] for d in found} == {f"{c[0]}-{c[1]} offset {c[2]}" for c in (honest, altered)}
    assert all(d["evidence"].startswith("the topic has") for d in found)
    # Under limits that flag every bid of a bidder, flags are missing, as if the stream had lost them.
    innocent = bids_of(home, second)[honest]
    grown = json.dumps([["burst", innocent["bidder"], None]])
    home.ledger("UPDATE limits_versions SET limits = limits || %s::jsonb WHERE id = %s", grown, flag["limits_version"])
    missing = [d for d in rerun(home, 3) if d["evidence"].startswith("the rules give, but the topic has not")]
    assert f"{honest[0]}-{honest[1]} offset {honest[2]}" in {d["where"] for d in missing}
