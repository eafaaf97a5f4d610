"""An erasure's Delta table is not cleaned beside a new driver, on a real PostgreSQL and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import psycopg2
import pytest
from pyspark.errors import AnalysisException

from include.erasure import steps
from include.errors import AnotherWriter, LockLost, ReconciliationFailed
from include.ledger.database import session
from include.ledger.erasures.unfinished import Begun
from include.ledger.models import Writer
from include.ledger.streams import writers
from include.pipelines import load_pipeline
from spark_jobs import erase_subject
from spark_jobs.erasure import delta
from spark_jobs.publication import delta as publication
from tests.conftest import Home
from tests.support.ledger_faults import end_lock

pytestmark = pytest.mark.services

GPS = load_pipeline("gps_positions")


@pytest.fixture
def lease(postgres: Home) -> Iterator[writers.Lease]:
    held = writers.acquire(GPS.name)
    yield held
    writers.release(replace(held, token=token()))


def token() -> int:
    with session() as ledger:
        return ledger.get_one(Writer, GPS.name).token


def shut_out(*_: Any, **__: Any) -> int:
    """Another driver takes the lease."""
    with session() as ledger:
        ledger.get_one(Writer, GPS.name).token += 1
    return 0


def test_older_files_stay_when_the_lease_was_lost_while_rows_were_deleted(
    lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[Any] = []
    monkeypatch.setattr(delta, "pinned_version", lambda *_: None)
    monkeypatch.setattr(delta, "delete_records", shut_out)
    monkeypatch.setattr(delta, "write_checkpoint", lambda *_: 1)
    monkeypatch.setattr(delta, "forget_values", lambda *_: None)
    monkeypatch.setattr(delta, "delete_older_files", lambda *_: deleted.append(_))
    with pytest.raises(AnotherWriter) as raised:
        delta.erase_from_delta(None, GPS, 0, lease)  # type: ignore[arg-type]
    assert (raised.value.exit_code, deleted) == (5, [])


def test_view_shows_the_newest_version_and_older_files_stay_when_the_lock_on_the_view_is_lost(
    postgres: Home, lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host was frozen before the view was pinned: another publication has pinned a later version."""
    done: list[Any] = []

    def freeze(*_: Any) -> None:
        with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
            end_lock(cursor, f"delta:{GPS.name}")
        done.append(1)

    for module in (delta, publication):
        monkeypatch.setattr(module, "pinned_version", lambda *_: 1)
        monkeypatch.setattr(module, "has_foreign_writes", lambda *_: False)
        monkeypatch.setattr(module, "latest_version", lambda *_: 2)
    for name in ("delete_records", "forget_values"):
        monkeypatch.setattr(delta, name, lambda *_: None)
    monkeypatch.setattr(delta, "write_checkpoint", lambda *_: 1)
    monkeypatch.setattr(delta, "delete_older_files", lambda *_: done.append("files deleted"))
    monkeypatch.setattr(delta, "pin_view", freeze)
    monkeypatch.setattr(publication, "pin_view", lambda _spark, _pipeline, version: done.append(version))
    with pytest.raises(LockLost):
        delta.erase_from_delta(None, GPS, 0, lease)  # type: ignore[arg-type]
    assert done == [1, 2]


def test_lost_lock_is_raised_when_a_registered_file_cannot_be_read_as_the_view_is_pinned_again(
    lease: writers.Lease, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, lost: bool) -> None:
        raise LockLost("lost") if lost else AnalysisException("no such path")

    refused = ReconciliationFailed("tables/a.parquet is missing; nothing was registered")
    monkeypatch.setattr(publication, "translate", lambda _: refused)
    monkeypatch.setattr(delta, "_erase_alone", partial(fail, lost=True))
    monkeypatch.setattr(publication, "pinned_version", partial(fail, lost=False))
    with pytest.raises(LockLost):
        delta.erase_from_delta(None, GPS, 0, lease)  # type: ignore[arg-type]
    assert "was not written again after a lock was lost: tables/a.parquet is missing" in caplog.text


def test_erasure_is_unfinished_when_the_lease_was_lost_while_its_application_ran(
    lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    begun = Begun(1, GPS.name, ("vehicle_id",), "test", "test", now, None, "", (), {}, (), 0, None)
    given: list[Any] = []
    monkeypatch.setattr(erase_subject, "build_session", lambda *_, **__: None)
    monkeypatch.setattr(delta, "erase_from_delta", lambda *arguments: given.extend(arguments))
    monkeypatch.setattr(steps, "submission", lambda _, *arguments, **__: arguments)
    monkeypatch.setattr(steps, "run_job", erase_subject.main)
    steps.erase_from_delta(GPS, begun, lease, lambda _: None)
    assert (given[1].name, given[2], given[3].pipeline, given[3].token) == (GPS.name, 1, GPS.name, lease.token)
    monkeypatch.setattr(steps, "run_job", shut_out)
    with pytest.raises(AnotherWriter, match="the erasure is unfinished") as raised:
        steps.erase_from_delta(GPS, begun, lease, lambda _: None)
    assert "--resume" in raised.value.remedy
