"""Replays of quarantined records on real Spark, with their files and rows of the ledger written by hand."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError
from include.ledger import quarantine as ledger_quarantine
from include.ledger.database import session
from include.ledger.models import LandingFileRow, Topic
from include.ledger.quarantine import LandedReplay
from include.ledger.streams import incarnations
from include.offsets import Fate, OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.quarantine import Quarantined, Selection
from spark_jobs.decoding.poison import MOST, POISON
from spark_jobs.quarantine import replay as replays
from spark_jobs.quarantine.replay import replay
from tests.conftest import Home
from tests.support.committed import add_batch
from tests.support.ledger_faults import Killed, end_backends, lock_holders

pytestmark = pytest.mark.services

TOPIC = "isp-hits"
ARRIVED = datetime(2026, 11, 20, 5, tzinfo=UTC)
FILE = pa.schema(
    {
        "kafka_topic": pa.string(),
        "kafka_partition": pa.int32(),
        "kafka_offset": pa.int64(),
        "kafka_timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        "reason": pa.string(),
        "detail": pa.string(),
    }
)


def quarantined(topic_id: str, batch: int, offsets: Sequence[int], poison: Collection[int] = ()) -> None:
    """A micro-batch whose records older code could not decode; each has its topic's id as user.

    Those at the offsets `poison` made it throw.
    """
    hit = {"zipcode": "10001", "hittime": "2026-11-20T05:00:00Z", "isp": "one", "user": topic_id}
    rows = [
        {
            "kafka_topic": TOPIC,
            "kafka_partition": 0,
            "kafka_offset": offset,
            "kafka_timestamp": ARRIVED,
            "value": json.dumps(hit).encode(),
            "reason": POISON if offset in poison else "malformed_json",
        }
        for offset in offsets
    ]
    path = f"quarantine/isp_hits/{topic_id}-{batch:09d}.parquet"
    lake.make_parents(lake.uri(path))
    pq.write_table(pa.Table.from_pylist(rows, FILE), lake.filesystem(lake.uri(path))[1])
    with session() as ledger:
        read = OffsetRange(TopicPartition(TOPIC, 0), 0, max(offsets) + 5, topic_id)
        number = add_batch(ledger, "isp_hits", batch, read, query_id=topic_id)
        ledger.add(LandingFileRow(micro_batch_id=number, fate="quarantined", path=path, rows=len(rows), bytes=1))


def landed() -> list[tuple[int, str]]:
    """Offset and user of all rows that replays have landed, as the ledger names their files."""
    with session() as ledger:
        paths = [row.path for row in ledger.query(LandingFileRow).filter_by(fate="archived").all()]
    rows: list[dict[str, Any]] = []
    for path in paths:
        with lake.open_parquet(lake.uri(path)) as file:
            rows += file.read(columns=["kafka_offset", "user"]).to_pylist()
    return sorted((row["kafka_offset"], row["user"]) for row in rows)


def test_each_record_is_delivered_once_when_a_topic_that_was_recreated_has_another_at_the_same_offset(
    postgres: Home, spark: Any
) -> None:
    with session() as ledger:
        ledger.add(Topic(pipeline="isp_hits", topic=TOPIC, topic_id="older", topic_partitions=1))
    quarantined("older", 0, [3, 5])
    with session() as ledger:
        incarnations.succeed(ledger, "isp_hits", TopicIdentity(TOPIC, "newer", 1), "test", "test")
    quarantined("newer", 1, [5, 7])
    pipeline = load_pipeline("isp_hits")
    counts = replay(spark, pipeline, Selection(), by="test")
    expected = [(3, "older"), (5, "newer"), (5, "older"), (7, "newer")]
    assert landed() == expected
    assert counts == {"selected": 4, "replayed": 4, "empty": 0, "still_failing": 0, "already_replayed": 0}
    delivered = {(key.topic_id, key.offset) for key in ledger_quarantine.decisions("isp_hits").replays}
    assert delivered == {("older", 3), ("older", 5), ("newer", 5), ("newer", 7)}
    assert replay(spark, pipeline, Selection(), by="test")["already_replayed"] == 4
    assert landed() == expected


def test_no_rows_stay_when_the_ledger_refuses_a_replay(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantined("refused", 3, [9])
    folders: list[str] = []

    def land(_: Any, __: Any, tried: list[Quarantined], folder: str) -> LandedReplay:
        folders.append(folder)
        lake.write_text(f"{folder}/part", "rows")
        return LandedReplay({each.key: str(Fate.EMPTY) for each in tried})

    def refuse(*_: object, **__: object) -> None:
        raise AnotherWriter("a record was erased")

    monkeypatch.setattr(replays, "_land", land)
    monkeypatch.setattr(replays.ledger_quarantine, "record_replay", refuse)
    with pytest.raises(AnotherWriter):
        replay(None, load_pipeline("isp_hits"), Selection("isp-hits", 0, 9), by="test")  # type: ignore[arg-type]
    assert [lake.exists(folder) for folder in folders] == [False]


def test_replay_is_not_committed_when_its_lock_was_lost(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantined("lost", 2, [8])

    def lose_the_lock(_: Any, __: Any, tried: list[Quarantined], *___: Any) -> LandedReplay:
        with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
            end_backends(cursor, [*lock_holders(cursor)])
        return LandedReplay({each.key: str(Fate.EMPTY) for each in tried})

    monkeypatch.setattr(replays, "_land", lose_the_lock)
    with pytest.raises(ServiceUnreachable):
        replay(None, load_pipeline("isp_hits"), Selection("isp-hits", 0, 8), by="test")  # type: ignore[arg-type]
    assert 8 not in {key.offset for key in ledger_quarantine.decisions("isp_hits").replays}


def test_good_records_are_delivered_when_more_others_throw_than_a_search_finds(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """120 records made older code throw, and do so still; 20 others decode now."""
    throwing = range(10, 130)
    quarantined("many", 3, range(140), throwing)

    def land(_: Any, __: Any, tried: list[Quarantined], *___: Any) -> LandedReplay:
        threw = [each.key for each in tried if each.key.offset in throwing]
        if len(threw) > MOST:
            raise TidemarkError(f"more than {MOST} parts throw", remedy="")
        landed = LandedReplay({each.key: str(Fate.EMPTY) for each in tried if each.key not in threw})
        landed.failures.update(dict.fromkeys(threw, (POISON, "it threw")))
        return landed

    monkeypatch.setattr(replays, "_land", land)
    pipeline, selection = load_pipeline("isp_hits"), Selection(topic_id="many")
    counts = replay(None, pipeline, selection, by="test")  # type: ignore[arg-type]
    assert counts == {"selected": 140, "replayed": 0, "empty": 20, "still_failing": 120, "already_replayed": 0}
    decided = ledger_quarantine.decisions("isp_hits")
    assert {key.offset for key in decided.replays if key.topic_id == "many"} == {*range(140)} - {*throwing}
    assert {key.offset for key in decided.failures if key.topic_id == "many"} == {*throwing}


def test_rest_is_delivered_by_the_next_replay_when_one_of_many_records_ends_between_two_commits(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantined("large", 4, range(20, 25))
    thrown: list[BaseException] = [Killed(), AnotherWriter("nothing was committed")]
    together: list[list[int]] = []

    def land(_: Any, __: Any, tried: list[Quarantined], *___: Any) -> LandedReplay:
        if len(together) in (1, 3):
            together.append([])
            raise thrown.pop(0)
        together.append([each.key.offset for each in tried])
        return LandedReplay({each.key: str(Fate.EMPTY) for each in tried})

    monkeypatch.setattr(replays, "AT_ONCE", 2)
    monkeypatch.setattr(replays, "_land", land)
    pipeline, selection = load_pipeline("isp_hits"), Selection(topic_id="large")
    with pytest.raises(Killed):
        replay(None, pipeline, selection, by="test")  # type: ignore[arg-type]
    with pytest.raises(AnotherWriter, match=r"committed; of the selection, 2 records before these were committed$"):
        replay(None, pipeline, selection, by="test")  # type: ignore[arg-type]
    counts = replay(None, pipeline, selection, by="test")  # type: ignore[arg-type]
    assert together == [[20, 21], [], [22, 23], [], [24]]
    assert counts == {"selected": 5, "replayed": 0, "empty": 1, "still_failing": 0, "already_replayed": 4}
