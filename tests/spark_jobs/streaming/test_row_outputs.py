"""The order in which an output sends rows, and notes that it did: without Spark, ledger or target."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError, UsageError
from include.ledger.archive.row_outputs import Unsent
from include.ledger.outputs.targets import Reached
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopic, Rows
from spark_jobs.streaming import row_outputs
from spark_jobs.streaming.row_outputs import RowOutputs
from tests.conftest import wait_for

LEASE = Lease("isp_hits", 7, "here")


class Steps(list[str]):
    """What an output did, in order."""

    lost: bool = False
    """Whether another driver has the lease."""
    away: bool = False
    """Whether the target takes nothing."""
    shut_out: bool = False
    """Whether a foreign producer has the output's transactional id."""
    behind: int = 0
    """How many rows it lacks that were sent."""
    renamed: bool = False
    """Whether rows were sent to another target."""
    answers: threading.Event | None = None
    """Set once the target answers; None: it answers at once."""

    def send(self, rows: Any, unsent: Unsent) -> tuple[int, list[Any]]:
        self.append("refused" if self.away else "sent")
        if self.answers:
            self.answers.wait(30)
        if self.away:
            raise RuntimeError("the target is away")
        if self.shut_out:
            raise AnotherWriter("another producer shuts out this driver")
        return 3, []

    def reached(self) -> Reached:
        self.append("compared")
        return Reached(5)

    def keep(self, lease: Lease, output: str, target: str) -> None:
        assert (lease, output, target) == (LEASE, "copied", "the topic copies")
        if self.renamed:
            raise UsageError("the output copied has sent 5 rows to the topic others")

    def set_back(self, lease: Lease, output: str, reached: Reached) -> int:
        assert (lease, output, reached) == (LEASE, "copied", Reached(5))
        if self.behind:
            self.append("set back")
        self.behind, behind = 0, self.behind
        return behind

    def renew(self, lease: Lease) -> None:
        assert lease == LEASE
        self.append("lost" if self.lost else "renewed")
        if self.lost:
            raise AnotherWriter("this driver's lease is over")


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Those of an output with three unsent rows."""
    steps = Steps()
    waiting = [Unsent(7, [], {}, 3)]

    def note(*_: Any, **__: Any) -> None:
        steps.append("noted")
        waiting.clear()

    # It looks again only when it is woken.
    monkeypatch.setattr(row_outputs, "EVERY", 600.0)
    monkeypatch.setattr(row_outputs, "opened", lambda *_: steps)
    monkeypatch.setattr(row_outputs, "read_unsent", lambda *_: None)
    monkeypatch.setattr(row_outputs, "output_rows", lambda *_: None)
    monkeypatch.setattr(writers, "renew", steps.renew)
    known = {"next_unsent": lambda *_: next(iter(waiting), None), "record_sent": note}
    known["note_waiting"] = lambda pipeline, output, why: steps.append(f"waits: {why}")
    monkeypatch.setattr(row_outputs, "row_outputs", SimpleNamespace(**known, MOST_REFUSED=100))
    kept = {"keep_target": steps.keep, "set_back": steps.set_back, "note_sending": lambda *_: steps.append("goes on")}
    monkeypatch.setattr(row_outputs, "targets", SimpleNamespace(**kept))
    return steps


def not_started() -> RowOutputs:
    declared = replace(load_pipeline("isp_hits"), outputs=(Rows("copied", to=KafkaTopic("copies")),))
    spark: Any = None
    return RowOutputs(spark, declared, LEASE)


@pytest.fixture
def outputs(steps: Steps) -> Iterator[RowOutputs]:
    yield (outputs := not_started())
    outputs.end(0)


def test_rows_are_noted_after_they_were_sent_and_sent_under_the_lease(steps: Steps, outputs: RowOutputs) -> None:
    outputs.start()
    outputs.end_sent(lambda: False)
    assert steps == ["compared", "renewed", "sent", "noted", "goes on"]


def test_sending_ends_in_a_limited_time_when_a_stream_that_caught_up_is_asked_to_stop(
    steps: Steps, outputs: RowOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_outputs, "LAST", 0.0)
    steps.answers = threading.Event()
    outputs.start()
    assert not outputs.end_sent(lambda: "sent" in steps)
    assert steps == ["compared", "renewed", "sent"]
    steps.answers.set()


def test_output_goes_back_once_when_its_target_lacks_rows(
    steps: Steps, outputs: RowOutputs, caplog: pytest.LogCaptureFixture
) -> None:
    steps.behind = 4
    outputs.start()
    wait_for("the first look", lambda: "goes on" in steps, 30)
    assert steps == ["compared", "set back", "renewed", "sent", "noted", "goes on"]
    outputs.end_sent(lambda: False)
    assert steps[6:] == []
    assert "the topic copies was made anew, or is an older copy: 4 rows are sent again" in caplog.text


def test_target_is_compared_again_when_time_has_passed(
    steps: Steps, outputs: RowOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_outputs, "COMPARE_EVERY", 0.0)
    outputs.start()
    wait_for("the first look", lambda: "goes on" in steps, 30)
    outputs.end_sent(lambda: False)
    assert steps[5:] == ["compared"]


def test_nothing_is_sent_when_rows_went_to_another_target(steps: Steps, outputs: RowOutputs) -> None:
    steps.renamed = True
    outputs.start()
    with pytest.raises(UsageError, match="to the topic others"):
        outputs.end_sent(lambda: False)
    assert steps == ["waits: the output copied has sent 5 rows to the topic others"]


def test_nothing_is_sent_or_tried_again_when_another_driver_has_the_lease(steps: Steps, outputs: RowOutputs) -> None:
    steps.lost = True
    outputs.start()
    [sender] = outputs._senders
    sender.join(30)
    assert not sender.is_alive()
    outputs.wake()
    with pytest.raises(AnotherWriter):
        outputs.end_sent(lambda: False)
    # The ledger was asked whose the lease is, and told nothing: it is the other driver's.
    assert steps == ["compared", "lost", "lost"]


def test_rows_are_sent_later_when_a_foreign_producer_shuts_out_the_driver_that_has_the_lease(
    steps: Steps, outputs: RowOutputs
) -> None:
    steps.shut_out = True
    outputs.start()
    waits = "waits: another producer shuts out this driver"
    wait_for("the output to wait", lambda: waits in steps, 30)
    steps.shut_out = False
    assert outputs.end_sent(lambda: False)
    assert steps == ["compared", "renewed", "sent", "renewed", waits, "compared", "renewed", "sent", "noted", "goes on"]


def test_rows_stay_unsent_and_are_sent_later_when_their_target_is_away(
    steps: Steps, outputs: RowOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_outputs, "EVERY", 0.01)
    steps.away = True
    outputs.start()
    wait_for("another try", lambda: len(steps) >= 7, 30)
    assert steps[:3] == ["compared", "renewed", "refused"]
    # It is told once.
    assert steps[3].startswith("waits: ")
    assert "the target is away" in steps[3]
    assert steps[4:7] == ["compared", "renewed", "refused"]
    steps.away = False
    outputs.end_sent(lambda: False)
    assert steps[-5:] == ["compared", "renewed", "sent", "noted", "goes on"]


def test_nothing_is_tried_again_before_its_time_when_the_archive_commits_meanwhile(
    steps: Steps, outputs: RowOutputs
) -> None:
    steps.away = True
    outputs.start()
    wait_for("the output to wait", lambda: len(steps) == 4, 30)
    [sender] = outputs._senders
    outputs.wake()
    wait_for("it to notice", lambda: not sender.woken.is_set(), 30)
    steps.away = False
    assert outputs.end_sent(lambda: False)
    assert steps[4:] == ["compared", "renewed", "sent", "noted", "goes on"]


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (ServiceUnreachable("the database is away", remedy=""), [5, 5, 5, 5]),
        (UsageError("two rows at one place"), [5, 10, 20, 40, 80, 160, 300, 300]),
        (TidemarkError("102 messages are too large"), [5, 10]),
        (None, [5, 5]),
    ],
)
def test_tries_are_rarer_each_time_when_no_service_that_comes_back_is_the_reason(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, failure: Any, seconds: list[float]
) -> None:
    monkeypatch.setattr(row_outputs, "EVERY", 5.0)
    [sender] = not_started()._senders
    now, waited = [0.0], []

    def wait(left: float) -> bool:
        waited.append(left)
        now[0] += left
        return False

    monkeypatch.setattr(row_outputs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sender, "woken", SimpleNamespace(wait=wait, clear=lambda: None, set=lambda: None))
    sender.failure = failure
    for _ in seconds:
        sender._rest()
    assert waited == seconds
