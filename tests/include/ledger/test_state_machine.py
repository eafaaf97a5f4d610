"""The ledger's promises under any order of actions and any failure between two statements; on a real PostgreSQL.

    ./tidemark test -m slow tests/include/ledger/test_state_machine.py

`STEPS` and `SEED` in the environment change the long run; the same seed takes the same steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from include.errors import ReconciliationFailed
from include.ledger.archive import micro_batches
from include.ledger.intervals import builds
from include.ledger.streams import writers
from spark_jobs.publication import publish_build
from spark_jobs.reconciliation.interval_run import IntervalRun
from tests.conftest import Home, settings_of
from tests.support.ledger_machine import LedgerMachine, StreamMachine
from tests.support.ledger_stream_rules import StreamRules

pytestmark = pytest.mark.services

STEPS = int(os.environ.get("STEPS", "10000"))
SEED = int(os.environ.get("SEED", "20261123"))
AT_ONCE = 50
"""Steps of one pipeline."""

QUICK = settings(
    deadline=None,
    database=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", autouse=True)
def without_clock(postgres: Home) -> Iterator[None]:
    """Leases expire by a rule of the test, not by the duration of a step."""
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="3600"):
        yield


def run(machine: type[StreamRules], examples: int, steps: int, number: int = SEED) -> type[StreamRules]:
    """Take the same steps each time, and return the machine, which has counted them."""
    chosen = settings(QUICK, max_examples=examples, stateful_step_count=steps)
    counting = type(machine.__name__, (machine,), {"checks": 0, "publications": 0})
    run_state_machine_as_test(seed(number)(counting), settings=chosen)
    return counting


def test_every_promise_holds_when_something_fails_between_two_statements() -> None:
    # An example may end before its last step.
    taken = run(LedgerMachine, 8, 25)
    assert taken.checks >= 120
    assert taken.publications >= 10


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_promise_holds_over_ten_thousand_steps() -> None:
    taken, number = 0, SEED
    while taken < STEPS:
        now = run(LedgerMachine, STEPS // AT_ONCE, AT_ONCE, number)
        assert now.checks > 0
        assert now.publications > 0
        taken, number = taken + now.checks, number + 1
    print(f"{taken} steps from seed {SEED}")


def test_two_writers_are_found_when_commits_do_not_check_the_fencing_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "check", lambda ledger, lease: None)
    with pytest.raises(AssertionError, match="one_writer"):
        run(StreamMachine, 50, 25, number=2)


def test_doubled_offsets_are_found_when_commits_do_not_check_that_ranges_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved: Callable[..., None] = micro_batches._move_position

    def without_check(ledger, batch, micro_batch_id, position, each):  # type: ignore[no-untyped-def]
        if position is not None:
            position.next_offset = each.from_offset
        moved(ledger, batch, micro_batch_id, position, each)

    monkeypatch.setattr(micro_batches, "_move_position", without_check)
    with pytest.raises(AssertionError, match="every_offset_one_fate"):
        run(StreamMachine, 50, 25, number=3)


def test_stale_builds_are_found_when_a_build_does_not_discard_what_its_attempt_built_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(builds, "_unpublished", lambda ledger, attempt: [])
    with pytest.raises(AssertionError, match="latest_build_counts"):
        run(LedgerMachine, 50, 25, number=1)


def test_unexplained_builds_are_found_when_a_publication_takes_whatever_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_check(of: IntervalRun) -> int:
        if of.attempt.build is None:
            raise ReconciliationFailed("it is not built")
        return of.attempt.build

    monkeypatch.setattr(publish_build, "_check_reconciled", without_check)
    with pytest.raises(AssertionError, match="published_is_explained"):
        run(LedgerMachine, 50, 25, number=2)
