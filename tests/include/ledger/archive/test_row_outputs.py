"""What an output sends next, by the ledger alone: each micro-batch once, replays by their numbers, under the lease."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from include.errors import AnotherWriter
from include.ledger.archive import micro_batches, row_outputs
from include.ledger.archive.row_outputs import Refused, Unsent
from include.ledger.database import engine, session
from include.ledger.models import MicroBatch, MicroBatchRange
from include.ledger.outputs.waiting import waiting_outputs
from include.ledger.quarantine import REPLAY
from include.ledger.streams import writers
from include.offsets import TopicPartition
from tests.conftest import Home, settings_of
from tests.support.committed import TP, add_batch, commit
from tests.support.leases import held_lease
from tests.support.ledger_reads import rows_fetched

pytestmark = pytest.mark.services

NUMBERS = itertools.count()


@pytest.fixture
def lease(postgres: Home) -> Iterator[writers.Lease]:
    # The lease is not renewed here.
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="600"), held_lease(f"rows{next(NUMBERS)}") as held:
        yield held


def archive(pipeline: str, *rows: int, topic_id: str = "id") -> list[int]:
    """Micro-batches of so many rows each, at offsets that follow each other."""
    made = []
    for count in rows:
        number = next(NUMBERS)
        at = micro_batches.positions(pipeline).get(TP, number * 1_000_000)
        made.append(commit(pipeline, number, at, at + count))
        with session() as ledger:
            ledger.get_one(MicroBatch, made[-1]).rows = count
            ledger.get_one(MicroBatchRange, (made[-1], TP.topic, TP.partition)).topic_id = topic_id
    return made


def next_of(lease: writers.Lease) -> Unsent:
    unsent = row_outputs.next_unsent(lease.pipeline, "out")
    assert unsent is not None
    return unsent


def test_micro_batches_are_sent_together_up_to_a_number_of_rows_when_they_are_small(lease: writers.Lease) -> None:
    most = row_outputs.MOST_ROWS
    first, second, large, last = archive(lease.pipeline, 10, most - 10, 3 * most, 5)
    sent = []
    while unsent := row_outputs.next_unsent(lease.pipeline, "out"):
        sent.append((unsent.number, unsent.rows))
        row_outputs.record_sent(lease, "out", unsent, [], rows=unsent.rows, seconds=0.1)
    assert sent == [(second, most), (large, 3 * most), (last, 5)]
    assert first not in [number for number, _ in sent]
    (state,) = row_outputs.states(lease.pipeline, ["out"])
    assert (state.rows, state.behind) == (4 * most + 5, 0)
    # Another output begins at the beginning.
    assert row_outputs.states(lease.pipeline, ["other"])[0].behind == 4


def test_ranges_are_read_of_what_is_sent_only_when_many_micro_batches_wait(lease: writers.Lease) -> None:
    half = row_outputs.MOST_ROWS // 2
    batches = archive(lease.pipeline, *(half for _ in range(10)))
    with rows_fetched(engine()) as fetched:
        assert next_of(lease).number == batches[1]
    # No output row, no replay; the waiting micro-batches; a range of each of those that are sent.
    assert fetched == [0, 0, 10, 2]


def test_incarnations_are_not_sent_together_when_a_topic_was_recreated(lease: writers.Lease) -> None:
    (old,) = archive(lease.pipeline, 5)
    (new,) = archive(lease.pipeline, 7, topic_id="another")
    unsent = next_of(lease)
    assert (unsent.number, unsent.topic_ids) == (old, {"events": "id"})
    row_outputs.record_sent(lease, "out", unsent, [], rows=5, seconds=0.1)
    unsent = next_of(lease)
    assert (unsent.number, unsent.topic_ids) == (new, {"events": "another"})
    assert [each.topic_id for each in unsent.ranges] == ["another"]


def test_replay_is_not_passed_over_when_it_commits_after_a_micro_batch(lease: writers.Lease) -> None:
    with session() as ledger:
        # It takes its number first and commits later than the micro-batch.
        replay = add_batch(ledger, lease.pipeline, 0, query=REPLAY, token=0)
        (batch,) = archive(lease.pipeline, 5)
        assert replay < batch
        unsent = next_of(lease)
        row_outputs.record_sent(lease, "out", unsent, [], rows=5, seconds=0.1)
        assert row_outputs.next_unsent(lease.pipeline, "out") is None
    unsent = next_of(lease)
    assert (unsent.is_replay, unsent.number) == (True, 0)
    row_outputs.record_sent(lease, "out", unsent, [], rows=0, seconds=0.1)
    assert row_outputs.next_unsent(lease.pipeline, "out") is None


def test_position_moves_with_the_refused_rows_only_when_the_lease_is_held(lease: writers.Lease) -> None:
    archive(lease.pipeline, 5)
    unsent = next_of(lease)
    refused = [Refused("events", 0, 3, 0, "too_large", "a message of 9 bytes")]
    older = writers.Lease(lease.pipeline, lease.token - 1, lease.holder)
    with pytest.raises(AnotherWriter):
        row_outputs.record_sent(older, "out", unsent, refused, rows=4, seconds=0.1)
    assert next_of(lease) == unsent
    assert row_outputs.refused_rows(lease.pipeline, "out", 10) == []
    row_outputs.record_sent(lease, "out", unsent, refused, rows=4, seconds=0.1)
    assert row_outputs.refused_rows(lease.pipeline, "out", 10) == refused
    (end,) = {each.until_offset for each in unsent.ranges}
    assert micro_batches.positions(lease.pipeline, "out") == {TopicPartition("events", 0): end}


def test_output_that_waits_is_told_since_when_until_it_sends(lease: writers.Lease) -> None:
    archive(lease.pipeline, 5)
    for reason in ("it is away", "it refuses"):
        row_outputs.note_waiting(lease.pipeline, "out", reason)
    (told,) = [each for each in waiting_outputs() if each.pipeline == lease.pipeline]
    (state,) = row_outputs.states(lease.pipeline, ["out"])
    assert (told.output, told.waits_for, told.since) == ("out", "it refuses", state.waits_since)
    row_outputs.record_sent(lease, "out", next_of(lease), [], rows=5, seconds=0.1)
    assert [each for each in waiting_outputs() if each.pipeline == lease.pipeline] == []
