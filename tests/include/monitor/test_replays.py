"""Replays begun on a page: what the page says of one that ended by an error that nobody foresaw."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from include.ledger.database import session
from include.ledger.models import LandingFileRow
from include.monitor.history.replays import Replays
from include.pipelines import load_pipeline
from include.quarantine import Selection
from tests.conftest import Home, wait_for
from tests.support.committed import commit, write_quarantined
from tests.support.threads import no_thread_starts

pytestmark = pytest.mark.services


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_replay_has_failed_when_a_file_of_quarantined_records_is_damaged(postgres: Home) -> None:
    pipeline = replace(load_pipeline("nest_cameras"), name=f"damaged_{os.getpid()}")
    batch = commit(pipeline.name, 0, 0, 2, quarantined=2)
    with session() as ledger:
        path = ledger.query(LandingFileRow).where(LandingFileRow.micro_batch_id == batch).one().path
    write_quarantined(path, [0, 1])
    (postgres.lake / path).write_bytes(b"PAR1 but not really PAR1")

    replays = Replays()
    replays.begin(pipeline, Selection(), by="ada")
    ended = wait_for("the end", lambda: (run := replays.last(pipeline.name)) and run.ended_at and run, 30)
    assert path in ended.problem
    assert "doctor" in ended.problem


def test_replay_can_be_begun_later_when_its_thread_could_not_start(postgres: Home) -> None:
    replays, pipeline = Replays(), replace(load_pipeline("nest_cameras"), name=f"unstarted_{os.getpid()}")
    with no_thread_starts():
        replays.begin(pipeline, Selection(), by="ada")
    assert replays.last(pipeline.name) is None
