"""A proof's offsets are read again: as many records, with the timestamps of the rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from include import kafka
from include.ledger.intervals import pins
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.proof import verify
from include.proof.write import prove_registered
from include.settings import settings
from tests.conftest import Home, wait_for
from tests.support.attempts import START, hour
from tests.support.proved import PIPELINE, register_hour
from tests.support.topic_log import Log

pytestmark = [pytest.mark.services]


@pytest.fixture(scope="module")
def log(in_process: Home) -> Log:
    """Two topic partitions with 100 records each, a second apart."""
    made = Log(load_pipeline(PIPELINE))
    made.create(2)
    for offset in range(100):
        for partition in range(2):
            at = int(START.timestamp() + offset) * 1000
            made.producer.produce(made.topic, b"x", partition=partition, timestamp=at)
    assert made.producer.flush(30) == 0
    return made


@pytest.fixture(scope="module")
def proof(log: Log) -> Path:
    topic_id = kafka.describe_topics([log.topic])[log.topic].topic_id
    ranges = [OffsetRange(TopicPartition(log.topic, p), 0, 100, topic_id) for p in range(2)]
    between = pins.find_neighbours(PIPELINE, hour(0))
    assert pins.write_interval(PIPELINE, hour(0), ranges, {log.topic: topic_id}, pinned_by="test", between=between)
    written = prove_registered(log.pipeline, register_hour(0))
    assert written is not None
    return Path(written.removeprefix("file://"))


def checked(proof: Path, edit: Callable[[dict[str, Any]], object] = dict) -> verify.Report:
    document = json.loads(proof.read_text())
    edit(document)
    options = {"bootstrap.servers": settings().kafka_address()}
    return verify.check(
        (json.dumps(document, indent=1) + "\n").encode(), verify.open_lake(str(proof.parents[2])), options
    )


def of_kafka(found: list[str]) -> list[str]:
    return [each for each in found if each.startswith("kafka:") or "Kafka" in each]


def test_records_are_found_by_their_offsets_when_kafka_has_them(proof: Path, in_process: Home) -> None:
    report = checked(proof)
    assert (report.differences, of_kafka(report.notes)) == ([], [])
    address = settings().kafka_address()
    assert in_process.json("verify", str(proof), "--kafka", address, "--json")["differences"] == []


def test_record_is_named_when_it_was_not_listed(proof: Path) -> None:
    found = of_kafka(checked(proof, lambda it: it["ranges"][0].update(empty=1, gaps=1)).differences)
    assert found == ["kafka: nest-logs-0 [0, 100): the proof states 99 records, Kafka has 100"]


def test_rows_are_named_when_they_are_of_other_records(proof: Path, tmp_path: Path) -> None:
    table = json.loads(proof.read_text())["tables"][0]
    path = proof.parents[2] / table["location"] / table["files"][0]["name"]
    kept = path.read_bytes()
    rows = pq.ParquetFile(path).read()
    column = rows.column_names.index("kafka_timestamp")
    later = pa.array(
        [each.replace(year=2027) for each in rows["kafka_timestamp"].to_pylist()], rows.schema.types[column]
    )
    pq.write_table(rows.set_column(column, "kafka_timestamp", later), path)
    try:
        found = of_kafka(checked(proof).differences)
    finally:
        path.write_bytes(kept)
    assert found[0] == "kafka: nest-logs-0 [0, 100): 95 records have another timestamp, [0, 1, 2] …"


def test_proof_is_not_judged_when_the_topic_was_created_again(proof: Path) -> None:
    report = checked(proof, lambda it: [each.update(topic_id="another") for each in it["ranges"]])
    assert of_kafka(report.differences) == []
    assert "nest-logs-0 [0, 100) is not compared with Kafka: the topic's id is" in of_kafka(report.notes)[0]


@pytest.mark.slow
def test_kafka_that_does_not_answer_ends_with_6(proof: Path, in_process: Home) -> None:
    ended = in_process.run("verify", str(proof), "--kafka", "127.0.0.1:1", expect=6)
    assert "Kafka at 127.0.0.1:1: " in ended.stderr


def test_missing_records_are_noted_when_the_log_is_compacted(proof: Path, log: Log) -> None:
    stated = {"empty": 4, "archived": 95, "quarantined": 3}

    def edit(document: dict[str, Any]) -> None:
        """Two more records than Kafka has, and one less."""
        document["ranges"][0].update(stated)
        document["ranges"][1].update(empty=1)

    def set_policy(policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, log.topic, incremental_configs=[entry])
        log.admin.incremental_alter_configs([resource])[resource].result(30)
        options = {"bootstrap.servers": settings().kafka_address()}
        wait_for("the policy", lambda: verify._cleanup_policies([log.topic], options) == {log.topic: policy}, 30)

    more = "kafka: nest-logs-1 [0, 100): the proof states 99 records, Kafka has 100"
    assert of_kafka(checked(proof, edit).differences) == [
        "kafka: nest-logs-0 [0, 100): the proof states 102 records, Kafka has 100", more
    ]  # fmt: skip
    set_policy("compact")
    try:
        report = checked(proof, edit)
    finally:
        set_policy("delete")
    assert of_kafka(report.differences) == [more]
    assert of_kafka(report.notes) == ["nest-logs-0 [0, 100): 2 records are not in Kafka, whose log is compacted"]


def test_missing_right_is_noted_when_it_hides_whether_the_log_is_compacted(
    proof: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_cleanup_policies", lambda *_: {})
    report = checked(proof, lambda it: it["ranges"][0].update(empty=4, archived=95, quarantined=3))
    assert len(of_kafka(report.differences)) == 1
    [noted] = [each for each in report.notes if "DescribeConfigs" in each]
    assert noted.startswith("nest-logs-0 [0, 100): whether its log is compacted")
    assert not any("DescribeConfigs" in each for each in checked(proof).notes)


def test_records_are_noted_as_unchecked_when_retention_removed_them(proof: Path, log: Log) -> None:
    [done] = log.admin.delete_records([ClientPartition(log.topic, 1, 7)]).values()
    done.result(30)
    report = checked(proof)
    assert of_kafka(report.differences) == []
    assert of_kafka(report.notes) == ["nest-logs-1 [0, 100) is not compared with Kafka: it begins at offset 7 now"]
