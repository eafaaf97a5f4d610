"""The order in which an output sends rows, and notes that it did: without Spark, ledger or target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import AnotherWriter
from include.ledger.archive.row_outputs import Unsent
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

    def send(self, rows: Any, unsent: Unsent) -> tuple[int, list[Any]]:
        self.append("refused" if self.away else "sent")
        if self.away:
            raise RuntimeError("the target is away")
        return 3, []

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
    monkeypatch.setattr(row_outputs, "target_of", lambda *_: steps)
    monkeypatch.setattr(row_outputs, "read_unsent", lambda *_: None)
    monkeypatch.setattr(row_outputs, "output_rows", lambda *_: None)
    monkeypatch.setattr(writers, "renew", steps.renew)
    known = {"next_unsent": lambda *_: next(iter(waiting), None), "record_sent": note}
    known["note_waiting"] = lambda pipeline, output, why: steps.append(f"waits: {why}")
    monkeypatch.setattr(row_outputs, "row_outputs", SimpleNamespace(**known, MOST_REFUSED=100))
    return steps


@pytest.fixture
def outputs(steps: Steps) -> Iterator[RowOutputs]:
    declared = replace(load_pipeline("isp_hits"), outputs=(Rows("copied", to=KafkaTopic("copies")),))
    spark: Any = None
    yield (outputs := RowOutputs(spark, declared, LEASE))
    outputs.end(0)


def test_rows_are_noted_after_they_were_sent_and_sent_under_the_lease(steps: Steps, outputs: RowOutputs) -> None:
    outputs.start()
    outputs.end(None)
    assert steps == ["renewed", "sent", "noted"]


def test_nothing_is_sent_or_tried_again_when_another_driver_has_the_lease(steps: Steps, outputs: RowOutputs) -> None:
    steps.lost = True
    outputs.start()
    [sender] = outputs._senders
    sender.join(30)
    assert not sender.is_alive()
    outputs.wake()
    with pytest.raises(AnotherWriter):
        outputs.end(None)
    # Nor told in the ledger, which is the other driver's.
    assert steps == ["lost"]


def test_rows_stay_unsent_and_are_sent_later_when_their_target_is_away(steps: Steps, outputs: RowOutputs) -> None:
    steps.away = True
    outputs.start()
    wait_for("the output to wait", lambda: len(steps) == 3, 30)
    assert steps[:2] == ["renewed", "refused"]
    assert steps[2].startswith("waits: ")
    assert "the target is away" in steps[2]
    # It is told once.
    outputs.wake()
    wait_for("another try", lambda: len(steps) == 5, 30)
    assert steps[3:] == ["renewed", "refused"]
    steps.away = False
    outputs.end(None)
    assert steps[5:] == ["renewed", "sent", "noted"]
