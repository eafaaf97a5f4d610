"""A pinned interval that is run again in the foreground; the ledger is real, the Spark application is not."""

from __future__ import annotations

import psycopg2
import pytest

from include.errors import OffsetsLost
from include.intervals import steps
from include.ledger.intervals import attempts
from include.ledger.intervals.states import Source
from tests.conftest import Home
from tests.support.attempts import begin_attempt
from tests.support.ledger_faults import end_backends, lock_holders

pytestmark = pytest.mark.services

PIPELINE = "nest_cameras"


def test_error_of_the_application_is_raised_when_the_lock_was_lost_meanwhile(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = attempts.load_attempt(begin_attempt(PIPELINE)).pinned

    def end_with_the_lock(_: object) -> int:
        with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
            end_backends(cursor, [*lock_holders(cursor)])
        return OffsetsLost.exit_code

    monkeypatch.setattr(steps, "submit_both", lambda *_: None)
    monkeypatch.setattr(steps, "run_job", end_with_the_lock)
    with pytest.raises(OffsetsLost, match="ended with 4"):
        steps.run_again(
            pinned, run_by="test", source=Source.KAFKA, ended=lambda code: OffsetsLost(f"ended with {code}")
        )
