"""Outputs of which the ledger and the target disagree: the output goes back, or waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from include.errors import AnotherWriter, UsageError
from include.ledger.archive import micro_batches, row_outputs
from include.ledger.archive.row_outputs import Refused
from include.ledger.database import session
from include.ledger.models import MicroBatch, Replay, RowOutput
from include.ledger.outputs import targets
from include.ledger.outputs.targets import Reached
from include.ledger.outputs.waiting import waiting_outputs
from include.ledger.quarantine import REPLAY
from include.ledger.streams import writers
from tests.conftest import Home, settings_of
from tests.support.committed import TP, add_batch, commit
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

NUMBERS = itertools.count()


@pytest.fixture
def lease(postgres: Home) -> Iterator[writers.Lease]:
    # The lease is not renewed here.
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="600"), held_lease(f"targets{next(NUMBERS)}") as held:
        yield held


def sent(lease: writers.Lease, *rows: int, refused: int = 0) -> list[int]:
    """Micro-batches of so many rows each, each sent alone; the number of each."""
    made = []
    for count in rows:
        at = micro_batches.positions(lease.pipeline, "out").get(TP, 0)
        made.append(commit(lease.pipeline, next(NUMBERS), at, at + 10))
        with session() as ledger:
            ledger.get_one(MicroBatch, made[-1]).rows = count
        send(lease, refused)
    return made


def refuse(lease: writers.Lease, *offsets: int) -> None:
    """Note rows of what was sent last as refused, too."""
    with session() as ledger:
        rows = [Refused("events", 0, each, 0, "does_not_fit", "too long") for each in offsets]
        noted = row_outputs._note_refused(ledger, lease.pipeline, "out", {"events": "id"}, rows)
        ledger.get_one(RowOutput, (lease.pipeline, "out")).refused += noted


def send(lease: writers.Lease, refused: int = 0) -> list[int]:
    numbers = []
    while unsent := row_outputs.next_unsent(lease.pipeline, "out"):
        wrong = [Refused("events", 0, each, 0, "does_not_fit", "too long") for each in range(refused)]
        row_outputs.record_sent(lease, "out", unsent, wrong, rows=unsent.rows, seconds=0.1)
        numbers.append(unsent.number)
    return numbers


def test_output_goes_back_to_its_target_when_that_has_fewer_rows(lease: writers.Lease) -> None:
    first, *later = sent(lease, 5, 6, 0, 7)
    before = row_outputs.states(lease.pipeline, ["out"])[0]
    assert targets.set_back(lease, "out", Reached(first)) == 13
    (state,) = row_outputs.states(lease.pipeline, ["out"])
    assert (state.rows, state.behind) == (5, len(later))
    assert micro_batches.positions(lease.pipeline, "out") == {TP: 10}
    # The same numbers are sent and noted a second time.
    assert send(lease) == later[-1:]
    (after,) = row_outputs.states(lease.pipeline, ["out"])
    assert (after.rows, after.behind) == (before.rows, 0)
    assert micro_batches.positions(lease.pipeline, "out") == {TP: 40}


def test_output_stays_when_its_target_lacks_no_row(lease: writers.Lease) -> None:
    assert targets.set_back(lease, "out", Reached()) == 0
    _, second, _, last = sent(lease, 5, 6, 0, 0)
    for reached in (Reached(last), Reached(last + 1), Reached(second)):
        assert targets.set_back(lease, "out", reached) == 0
    assert row_outputs.states(lease.pipeline, ["out"])[0].behind == 0


def test_replay_is_sent_again_when_the_target_lacks_it(lease: writers.Lease) -> None:
    [last] = sent(lease, 5)
    with session() as ledger:
        for number in (0, 1):
            add_batch(ledger, lease.pipeline, number, query=REPLAY, token=0, rows=3)
    assert send(lease) == [0, 1]
    assert targets.set_back(lease, "out", Reached(last, 0)) == 3
    assert send(lease) == [1]
    assert targets.set_back(lease, "out", Reached()) == 11
    assert send(lease) == [0, 1, last]


def test_refused_row_counts_once_when_it_is_sent_again(lease: writers.Lease) -> None:
    sent(lease, 5, refused=2)
    targets.set_back(lease, "out", Reached())
    send(lease, refused=2)
    assert row_outputs.states(lease.pipeline, ["out"])[0].refused == 2
    assert len(row_outputs.refused_rows(lease.pipeline, "out", 10)) == 2


def test_refused_rows_are_forgotten_when_they_are_sent_again_and_taken(lease: writers.Lease) -> None:
    first, _ = sent(lease, 5, 6, refused=2)
    refuse(lease, 10, 11)
    # Of a replay, which is not sent again.
    with session() as ledger:
        replayed = add_batch(ledger, lease.pipeline, 0, query=REPLAY, token=0, rows=3)
        place = {"topic": "events", "topic_id": "id", "topic_partition": 0, "record_offset": 12}
        decided = {"fate": "archived", "replayed_by": "test", "decoder_version": "1", "micro_batch_id": replayed}
        ledger.add(Replay(pipeline=lease.pipeline, **place, **decided))
    unsent = row_outputs.next_unsent(lease.pipeline, "out")
    assert unsent is not None
    wrong = [Refused("events", 0, 12, 0, "does_not_fit", "too long")]
    row_outputs.record_sent(lease, "out", unsent, wrong, rows=2, seconds=0.1)
    assert row_outputs.states(lease.pipeline, ["out"])[0].refused == 5

    def refused() -> list[int]:
        (state,) = row_outputs.states(lease.pipeline, ["out"])
        offsets = sorted(each.offset for each in row_outputs.refused_rows(lease.pipeline, "out", 10))
        assert state.refused == len(offsets)
        return offsets

    targets.set_back(lease, "out", Reached(first, 0))
    assert refused() == [0, 1, 12]
    targets.set_back(lease, "out", Reached(first, -1))
    assert refused() == [0, 1]
    targets.set_back(lease, "out", Reached())
    assert refused() == []


def test_older_driver_sets_nothing_back_when_a_newer_one_has_the_lease(lease: writers.Lease) -> None:
    sent(lease, 5)
    older = writers.Lease(lease.pipeline, lease.token - 1, lease.holder)
    with pytest.raises(AnotherWriter):
        targets.set_back(older, "out", Reached())
    with pytest.raises(AnotherWriter):
        targets.keep_target(older, "out", "the topic a")
    assert row_outputs.states(lease.pipeline, ["out"])[0].behind == 0


def test_output_waits_when_its_target_is_another_than_the_rows_were_sent_to(lease: writers.Lease) -> None:
    # Nothing was sent, so nothing is missing in another one.
    targets.keep_target(lease, "out", "the topic a")
    targets.keep_target(lease, "out", "the topic b")
    sent(lease, 5)
    said = r"output out has sent 5 rows to the topic b, and is declared to go to the topic c.* another name"
    with pytest.raises(UsageError, match=said):
        targets.keep_target(lease, "out", "the topic c")
    targets.keep_target(lease, "out", "the topic b")
    assert (lease.pipeline, "out") in targets.outputs_to("the topic b")


def test_present_target_is_taken_when_rows_were_sent_before_targets_were_noted(lease: writers.Lease) -> None:
    sent(lease, 5)
    # It may be any.
    assert (lease.pipeline, "out") in targets.outputs_to("the topic b")
    targets.keep_target(lease, "out", "the topic a")
    assert (lease.pipeline, "out") not in targets.outputs_to("the topic b")
    with pytest.raises(UsageError):
        targets.keep_target(lease, "out", "the topic b")


def test_output_waits_no_more_when_it_has_nothing_left_to_send(lease: writers.Lease) -> None:
    row_outputs.note_waiting(lease.pipeline, "out", "it is away")
    targets.note_sending(lease.pipeline, "out")
    assert [each for each in waiting_outputs() if each.pipeline == lease.pipeline] == []
    assert row_outputs.states(lease.pipeline, ["out"])[0].waits_since is None
