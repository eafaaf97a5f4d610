"""Transactions and compaction: what no reader may see is never archived, and every hole is proved."""

from __future__ import annotations

import os
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from include.kafka.gap_proof import NEAR, prove_gaps
from include.offsets import TopicPartition
from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit
from tests.support.transactions import all_offsets, good_messages, transactional_producer, write_transaction

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
TOPIC = "nest-logs"
RECORDS = int(os.environ.get("RECORDS", "900"))
"""Least records in transactions, three tenths of them aborted; the long run takes 100000."""
TRANSACTIONS = -(-RECORDS // 150) * 10
"""Of 15 records each, in tens, of which three abort."""


@pytest.fixture(scope="module")
def verdict(home: Home) -> dict[str, Any]:
    """An hour of transactions, 30 % of them aborted, among records of a plain producer."""
    home.run("produce", "nest_cameras", "--events", "200", "--start", iso(START), "--span", "20m")
    written = list(good_messages(TRANSACTIONS * 20, START + timedelta(minutes=20), timedelta(minutes=39), seed=2))
    plain = home.producer()
    producer = transactional_producer(home.kafka, "cameras")
    for number in range(TRANSACTIONS):
        batch = written[number * 20 : number * 20 + 20]
        write_transaction(producer, TOPIC, batch[:15], end="abort" if number % 10 in (1, 4, 7) else "commit")
        for milliseconds, key, value in batch[15:]:
            plain.produce(TOPIC, value, key, timestamp=milliseconds)
        plain.flush(30)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home.interval("nest_cameras", START)


def test_no_aborted_record_is_archived_when_a_third_of_the_transactions_aborts(
    home: Home, verdict: dict[str, Any]
) -> None:
    visible = audit.read_topic(home.kafka, TOPIC)
    aborted = all_offsets(home.kafka, TOPIC) - visible.keys()
    assert len(aborted) == TRANSACTIONS * 15 * 3 // 10
    assert verdict["reconciliation"]["unexplained"] == 0
    table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
    assert audit.identities(table) == Counter(audit.expected(visible).rows.keys())
    assert not audit.coordinates_of(table).keys() & aborted


def test_gaps_are_exact_per_topic_partition_and_confirmed_by_a_second_reader(
    home: Home, verdict: dict[str, Any]
) -> None:
    visible = audit.in_ranges(audit.read_topic(home.kafka, TOPIC), verdict["ranges"])
    for each in verdict["ranges"]:
        here = sum(c[1] == each["partition"] for c in visible)
        assert each["archived"] + each["empty"] + each["quarantined"] == here
        assert each["gaps"] == each["until_offset"] - each["from_offset"] - here > 0
    gaps = {d["where"]: d["evidence"] for d in verdict["differences"] if d["class"] == "gap"}
    assert set(gaps) == {f"{TOPIC}-{each['partition']}" for each in verdict["ranges"]}
    for each in verdict["ranges"]:
        assert f"{each['gaps']} in all, confirmed by a second reader" in gaps[f"{TOPIC}-{each['partition']}"]


def test_interval_from_the_archive_holds_its_gaps_against_the_ledger(home: Home, verdict: dict[str, Any]) -> None:
    again = home.interval("nest_cameras", START, "--source", "archive")
    assert again["records"] == verdict["records"]
    assert again["reconciliation"]["unexplained"] == 0
    assert again["registered"] == verdict["registered"]


def test_second_reader_names_the_record_when_a_supposed_gap_holds_one(
    in_process: Home, verdict: dict[str, Any]
) -> None:
    visible = sorted(c[2] for c in audit.read_topic(in_process.kafka, TOPIC) if c[1] == 0)
    tp = TopicPartition(TOPIC, 0)
    at = visible[3]
    proof = prove_gaps({tp: [(at, at + 1)]})[tp]
    assert (proof.visible, proof.offsets) == (1, 0)
    assert proof.seen[0][0] == at
    assert prove_gaps({tp: []}) == {}


def test_dense_gaps_cost_one_pass_and_far_ones_a_seek_each(in_process: Home, verdict: dict[str, Any]) -> None:
    visible = audit.read_topic(in_process.kafka, TOPIC)
    for each in verdict["ranges"]:
        tp = TopicPartition(TOPIC, each["partition"])
        here = {c[2] for c in visible if c[1] == tp.partition}
        holes = [o for o in range(each["from_offset"], each["until_offset"]) if o not in here]
        dense = prove_gaps({tp: [(o, o + 1) for o in holes]})[tp]
        assert (dense.offsets, dense.visible) == (len(holes), 0)
        assert dense.reads <= 1 + (holes[-1] - holes[0]) // NEAR
        ends = [(holes[0], holes[0] + 1), (holes[-1], holes[-1] + 1)]
        far = prove_gaps({tp: ends})[tp]
        assert far.reads == 1 + (holes[-1] - holes[0] - 1 > NEAR)
        assert far.offsets == 2


def test_interval_ends_with_exit_code_7_and_pins_nothing_when_a_transaction_hangs(
    home: Home, verdict: dict[str, Any]
) -> None:
    start = START + timedelta(hours=1)
    written = list(good_messages(60, start, timedelta(minutes=50), seed=3))
    plain = home.producer()
    for milliseconds, key, value in written[:20]:
        plain.produce(TOPIC, value, key, partition=1, timestamp=milliseconds)
    plain.flush(30)
    hanging = transactional_producer(home.kafka, "hanging")
    write_transaction(hanging, TOPIC, written[20:40], end="hang", partition=1)
    for milliseconds, key, value in written[40:]:
        plain.produce(TOPIC, value, key, partition=1, timestamp=milliseconds)
    plain.flush(30)
    home.run("stream", "nest_cameras", "--until-caught-up")
    stable = next(r["until_offset"] for r in verdict["ranges"] if r["partition"] == 1) + 20
    bounds = ("--from", iso(start), "--to", iso(start + timedelta(hours=1)))
    refused = home.run("interval", "nest_cameras", *bounds, expect=7, TIDEMARK_ARCHIVE_WAIT="2s")
    assert f"{TOPIC}-1 is at {stable} of {stable + 40}" in refused.stderr
    assert f"{TOPIC}-1: a transaction is open at offset {stable}" in refused.stderr
    assert {row["from"] for row in home.json("ranges", "nest_cameras", "--json")} == {iso(START)}

    hanging.abort_transaction(30)
    home.run("stream", "nest_cameras", "--until-caught-up")
    found = home.interval("nest_cameras", start)
    assert found["reconciliation"]["unexplained"] == 0
    assert found["records"]["in_ranges"] - found["records"]["gaps"] == 40
    assert found["records"]["gaps"] >= 20


def compact(home: Home, policy: str) -> None:
    """Make the cleaner run at once, over segments of five minutes of records, if the policy has it."""
    client = AdminClient({"bootstrap.servers": home.kafka})

    def configure(kind: ConfigResource.Type, name: str, **config: str) -> None:
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        client.incremental_alter_configs([resource])[resource].result(30)

    configure(ConfigResource.Type.BROKER, "1", log_cleaner_backoff_ms="200")
    configure(
        ConfigResource.Type.TOPIC,
        TOPIC,
        cleanup_policy=policy,
        segment_ms="300000",
        min_cleanable_dirty_ratio="0.01",
    )


def test_holes_of_compaction_are_gaps_when_the_cleaner_ran_before_the_stream(
    home: Home, verdict: dict[str, Any]
) -> None:
    compact(home, "compact")
    start = START + timedelta(hours=2)
    first = {each["partition"]: each["until_offset"] for each in home.json("ranges", "nest_cameras", "--json")[-4:]}
    # Small batches: a segment ends between two of them, and the one that is written to is not cleaned.
    plain = home.producer(**{"batch.num.messages": 20})
    for milliseconds, key, value in good_messages(400, start, timedelta(minutes=55), seed=4):
        plain.produce(TOPIC, value, b"home-00" + key[-1:], timestamp=milliseconds)
    plain.flush(30)
    wait_for("the cleaner's holes", lambda: sum(c[2] >= first[c[1]] for c in audit.read_topic(home.kafka, TOPIC)) < 300)
    compact(home, "delete")
    home.run("stream", "nest_cameras", "--until-caught-up")
    found = home.interval("nest_cameras", start)
    visible = audit.in_ranges(audit.read_topic(home.kafka, TOPIC), found["ranges"])
    assert found["reconciliation"]["unexplained"] == 0
    assert found["records"]["gaps"] == found["records"]["in_ranges"] - len(visible) >= 100


def test_records_compacted_since_they_were_archived_keep_their_fates_unless_the_topic_is_not_compacted(
    home: Home, verdict: dict[str, Any]
) -> None:
    start = START + timedelta(hours=2)
    before = home.interval("nest_cameras", start)
    seen = len(audit.in_ranges(audit.read_topic(home.kafka, TOPIC), before["ranges"]))
    compact(home, "compact")
    plain = home.producer(**{"batch.num.messages": 20})
    for milliseconds, key, value in good_messages(400, start + timedelta(minutes=56), timedelta(minutes=20), seed=5):
        plain.produce(TOPIC, value, b"home-00" + key[-1:], timestamp=milliseconds)
    plain.flush(30)

    def visible() -> int:
        return len(audit.in_ranges(audit.read_topic(home.kafka, TOPIC), before["ranges"]))

    wait_for("the cleaner's new holes", lambda: visible() < seen)
    again = home.interval("nest_cameras", start)
    # The cleaner may have gone on meanwhile.
    assert 0 < again["records"]["compacted_since"] <= seen - visible()
    assert again["reconciliation"]["unexplained"] == 0
    fates = ("in_ranges", "archived", "empty", "quarantined", "gaps")
    assert [again["records"][fate] for fate in fates] == [before["records"][fate] for fate in fates]
    assert again["registered"] == before["registered"]
    named = [d for d in again["differences"] if d["class"] == "compacted_since"]
    assert sum(int(d["evidence"].split(" ")[0]) for d in named) == again["records"]["compacted_since"]
    assert all("a second reader sees none of them" in d["evidence"] for d in named)

    compact(home, "delete")
    # Nothing else explains records that only the archive has: with that policy the log drops no single record.
    unexplained = home.interval("nest_cameras", start, expect=3)
    assert unexplained["reconciliation"]["unexplained"] > 0
