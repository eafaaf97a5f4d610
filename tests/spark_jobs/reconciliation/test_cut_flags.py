"""Flags that are missing where retention has cut only one topic partition of their topic."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from include import kafka
from include.reconciliation import Reconciliation
from tests.conftest import Home, wait_for
from tests.support.ledger_history import change
from tests.support.raised_flags import FLAGS, TP, Raised, raising

pytestmark = [pytest.mark.spark, pytest.mark.services]


BY_SIZE = str(2**30)
"""Bytes that a topic partition keeps: retention by size may cut flags of any age."""


def cut(partition: int, until: int) -> None:
    """Remove the messages of a topic partition before an offset, as retention does."""
    client = kafka.admin()
    [done] = client.delete_records([TopicPartition(FLAGS, partition, until)]).values()
    done.result(30)


def retain(**config: str) -> None:
    """Change the retention of the flags' topic."""
    wanted = {f"retention.{name}": value for name, value in config.items()}
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in wanted.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, FLAGS, incremental_configs=entries)
    client = kafka.admin()
    client.incremental_alter_configs([resource])[resource].result(30)
    wait_for("the retention", lambda: wanted.items() <= kafka.topic_config(FLAGS).items(), 30)


@pytest.fixture(scope="module")
def raised(home: Home, spark: Any) -> Iterator[Raised]:
    """All flags but the last were raised, in topic partition 1, which has lost those of offsets 0 and 1 since.

    Topic partition 0, where the one of offset 4 would lie, is cut, too, but not as far.
    """
    with raising(home, spark, topic_partitions=2) as found:
        found.commit(0, 0, 100)
        retain(bytes=BY_SIZE)
        producer = kafka.producer()
        before = int((datetime.now(UTC) - timedelta(hours=2)).timestamp() * 1000)
        for _ in range(2):
            producer.produce(FLAGS, b"{}", b"old", partition=0, timestamp=before)
        assert producer.flush(30) == 0
        found.produce(*found.flags()[:-1])
        cut(0, 1)
        cut(1, 2)
        yield found


def classes(found: Reconciliation) -> dict[str, str]:
    return {each.where: each.cls.value for each in found.differences}


def test_missing_flag_is_a_gap_only_where_its_topic_partition_was_cut_when_another_was_not(raised: Raised) -> None:
    found = raised.reconcile(raised.frame())
    assert classes(found) == {f"{TP} offset 0": "gap", f"{TP} offset 1": "gap", f"{TP} offset 4": "unexplained"}
    assert (found.counts.matched, found.counts.unexplained) == (1, 1)


@pytest.mark.parametrize(
    ("kept", "of_cut"),
    [
        ({"ms": "604800000"}, "unexplained"),
        # A retention that keeps all has cut nothing: a shorter one did, before it was taken back.
        ({"ms": "-1"}, "gap"),
        ({"ms": "604800000", "bytes": str(2**63 - 1)}, "gap"),
    ],
    ids=["a week", "all", "a week, or a size"],
)
def test_missing_flag_is_no_gap_when_it_is_younger_than_what_retention_keeps(
    raised: Raised, kept: dict[str, str], of_cut: str
) -> None:
    retain(**{"bytes": "-1", **kept})
    found = raised.reconcile(raised.frame())
    retain(bytes=BY_SIZE, ms="604800000")
    assert classes(found) == {f"{TP} offset 0": of_cut, f"{TP} offset 1": of_cut, f"{TP} offset 4": "unexplained"}


def test_missing_flag_is_no_gap_when_only_its_run_but_not_its_batch_began_before_what_was_cut(
    raised: Raised, home: Home
) -> None:
    change(home.database, "UPDATE flag_runs SET started_at = now() - interval '30 days'")
    retain(bytes="-1")
    assert set(classes(raised.reconcile(raised.frame())).values()) == {"gap"}
    retain(bytes=BY_SIZE)
    change(home.database, "UPDATE micro_batches SET seconds = 60 WHERE query = 'flags'")
    found = raised.reconcile(raised.frame())
    assert classes(found) == {f"{TP} offset 0": "gap", f"{TP} offset 1": "gap", f"{TP} offset 4": "unexplained"}


def test_missing_flag_is_a_gap_when_any_was_cut_and_flags_lie_elsewhere_than_their_keys_lead(raised: Raised) -> None:
    producer = kafka.producer()
    key, value = raised.flags()[0]
    producer.produce(FLAGS, value.encode(), key.encode(), partition=0)
    assert producer.flush(30) == 0
    found = raised.reconcile(raised.frame())
    assert classes(found) == {f"{TP} offset {offset}": "gap" for offset in (1, 4)}
    assert (found.counts.matched, found.counts.unexplained) == (2, 0)
