"""The task that pins an interval, where the archive is behind or a service is away: real Kafka and PostgreSQL."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSkipException
from sqlalchemy import select

from include.airflow.tasks import pin_unless_behind
from include.errors import ServiceUnreachable, UsageError
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.database import session
from include.ledger.intervals import pins
from include.ledger.intervals.attempts import load_attempt
from include.ledger.intervals.states import Source
from include.ledger.models import Repin
from include.ledger.streams import generations
from include.pipelines import load_pipeline
from include.times import format_time
from tests.conftest import Home
from tests.support.topic_log import Log, hour

pytestmark = pytest.mark.services

PIPELINE = "isp_hits"


@dataclass(frozen=True)
class Run:
    """A run, and the task's instance in it, in the form of a task's context."""

    began: datetime | None
    """When the task was first put off."""
    run_id: str = "manual"

    def get_first_reschedule_date(self, context: Any) -> datetime | None:
        return self.began

    def pin(self, log: Log, **wishes: object) -> str | None:
        begin, end = format_time(hour(0).from_time), format_time(hour(0).to_time)
        context = {"dag_run": self, "ti": self, "params": {"from": begin, "to": end, **wishes}}
        return pin_unless_behind(log.pipeline, context)


def test_task_waits_as_long_as_the_archive_may_when_the_lake_is_away(
    in_process: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(load_pipeline(PIPELINE))
    log.create(1)
    log.send(0, 0.1, 1.1)
    generations.note_start(generations.current_or_first(PIPELINE, "tests"), ARCHIVE, {}, {})
    log.archive()
    shutil.rmtree(in_process.lake)

    assert Run(None).pin(log) is None
    assert Run(datetime.now(UTC)).pin(log) is None
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2
    assert all(
        line.startswith(f"waiting: {PIPELINE}: the lake {in_process.lake.as_uri()} holds nothing") for line in said
    )
    with pytest.raises(ServiceUnreachable, match="holds nothing"):
        Run(datetime.now(UTC) - timedelta(days=1)).pin(log)

    (in_process.lake / "landing" / PIPELINE).mkdir(parents=True)
    attempt = Run(None).pin(log)
    assert attempt is not None
    assert len(load_attempt(int(attempt)).pinned.ranges) == 1


def test_plan_is_of_all_that_the_form_wishes_when_the_run_is_a_dry_one(
    in_process: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: dict[str, Any] = {}

    def plan_interval(*_: Any, **wishes: Any) -> list[str]:
        planned.update(wishes)
        return []

    monkeypatch.setattr("include.airflow.tasks.plan_interval", plan_interval)
    wishes = {"source": Source.ARCHIVE, "repin": True, "new_references": True}
    run = Run(None)
    begin, end = format_time(hour(0).from_time), format_time(hour(0).to_time)
    context = {"dag_run": run, "ti": run, "params": {"from": begin, "to": end, "dry_run": True, **wishes}}
    with pytest.raises(AirflowSkipException, match="dry run"):
        pin_unless_behind(load_pipeline(PIPELINE), context)
    assert planned == wishes


def test_run_that_pinned_again_keeps_its_ranges_when_it_is_cleared(in_process: Home) -> None:
    log = Log(load_pipeline("gps_positions"))
    log.create(1)
    log.send(0, 0.1, 1.1, 2.1)
    log.archive()
    again = Run(None, "again")
    Run(None).pin(log)
    again.pin(log, repin=True)
    pinned = pins.find_interval(log.pipeline.name, hour(0).from_time)
    assert pinned is not None
    again.pin(log, repin=True)
    # Nor is it refused because of the hour after it.
    log.pin(1)
    attempt = again.pin(log, repin=True)
    assert attempt is not None
    assert load_attempt(int(attempt)).pinned == pinned
    with session() as ledger:
        assert list(ledger.scalars(select(Repin.repinned_by))) == ["airflow again"]
    with pytest.raises(UsageError, match="would no longer tile"):
        Run(None, "another").pin(log, repin=True)
