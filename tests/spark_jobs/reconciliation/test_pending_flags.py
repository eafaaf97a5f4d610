"""Flags that are missing when an interval is compared, and whose rows the flags' query has not committed yet."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from datetime import timedelta
from threading import Timer
from typing import Any

import pytest

from include.ledger.database import session
from include.ledger.streams import generations, incarnations, writers
from include.offsets import TopicIdentity, TopicPartition
from include.times import parse_duration
from spark_jobs.reconciliation import flags
from tests.conftest import Home
from tests.support.ledger_history import change
from tests.support.raised_flags import NAME, TP, Raised, raising

pytestmark = [pytest.mark.spark, pytest.mark.services]


@pytest.fixture(scope="module")
def raised(home: Home, spark: Any) -> Iterator[Raised]:
    """All flags but the last are in the topic, and nothing is committed."""
    with raising(home, spark) as found:
        found.produce(*found.flags()[:-1])
        yield found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why the query's position was asked for, each time."""
    found: list[str] = []
    positions = flags.micro_batches.positions

    def noting(*of: str) -> Mapping[TopicPartition, int]:
        found.append("awaited" if inspect.stack()[1].function == "progress" else "compared")
        return positions(*of)

    monkeypatch.setattr(flags.micro_batches, "positions", noting)
    return found


def test_missing_flag_is_pending_at_once_when_nobody_streams(raised: Raised, asked: list[str]) -> None:
    writers.release(raised.lease)
    found = raised.reconcile(raised.frame())
    raised.lease = writers.acquire(NAME)
    assert (found.counts.matched, found.counts.pending, found.counts.unexplained) == (3, 1, 0)
    assert asked == ["compared", "awaited"]
    (named,) = found.differences
    assert (named.cls, named.where) == ("pending", f"{TP} offset 4")
    assert named.evidence.startswith("the flags' query has not committed the row; ")


def test_missing_flag_is_pending_when_the_stream_does_not_commit_in_time(
    raised: Raised, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        flags, "_COMMITTING", timedelta(seconds=2) - parse_duration(raised.run.pipeline.flags.commit_every)
    )
    found = raised.reconcile(raised.frame())
    assert (found.counts.matched, found.counts.pending, found.counts.unexplained) == (3, 1, 0)
    assert asked[:3] == ["compared", "awaited", "awaited"]
    assert asked.count("compared") == 1


def test_missing_flag_is_pending_at_once_when_nobody_reads_its_topic_any_more(raised: Raised, asked: list[str]) -> None:
    raised.commit(9, 0, 0)
    generations.open_without_topic(raised.lease, TP.topic, left_by="test@host", reason="over")
    found = raised.reconcile(raised.frame())
    generations.open_generation(raised.lease, started_by="test@host", reason="it is back", back=[TP.topic])
    assert (found.counts.matched, found.counts.pending, found.counts.unexplained) == (3, 1, 0)
    assert asked == ["compared", "awaited", "compared"]


def test_missing_flag_is_unexplained_when_its_row_is_committed_while_the_interval_waits(
    raised: Raised, asked: list[str]
) -> None:
    committing = Timer(2, lambda: raised.commit(0, 0, 100))
    committing.start()
    found = raised.reconcile(raised.frame())
    committing.join()
    assert (found.counts.matched, found.counts.pending, found.counts.unexplained) == (3, 0, 1)
    assert [each.where for each in found.differences] == [f"{TP} offset 4"]
    assert asked[-1] == "compared"


def test_missing_flag_of_a_deleted_topic_is_a_gap_only_where_its_row_was_never_read(
    raised: Raised, asked: list[str], home: Home
) -> None:
    with session() as ledger:
        incarnations.succeed(ledger, NAME, TopicIdentity(TP.topic, "newer", 1), "test@host", "created again")
    # The query's position is one of the new topic.
    change(home.database, "UPDATE positions SET next_offset = 1 WHERE query = 'flags'")
    found = raised.reconcile(raised.frame())
    assert (found.counts.matched, found.counts.pending, found.counts.unexplained) == (3, 0, 1)
    change(home.database, "UPDATE micro_batch_ranges SET until_offset = 4 WHERE until_offset = 100")
    found = raised.reconcile(raised.frame())
    assert (found.counts.matched, found.counts.pending, found.counts.unexplained) == (3, 0, 0)
    (named,) = found.differences
    assert (named.cls, named.where) == ("gap", f"{TP} offset 4")
    assert named.evidence.startswith("the row's topic was deleted before the flags' query had read the row; ")
    assert "awaited" not in asked
