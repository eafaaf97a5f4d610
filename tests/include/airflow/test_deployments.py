"""A driver is replaced for deployed code once, when that has settled, fits, and the pipeline is declared so."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from include.airflow.driver.deployments import Deployments
from include.ledger.database import clock, session
from include.ledger.models import Writer
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.versions.loaded_modules import loaded_code
from tests.conftest import Home, settings_of
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

DECLARED, NOT_DECLARED = "isp_hits", "nest_cameras"
MODULE, ANOTHER = "spark_jobs/sinks/landing.py", "spark_jobs/sinks/speed_view.py"
OLDER = "0123456789ab"


@pytest.fixture
def lease(postgres: Home) -> Iterator[Lease]:
    # Longer than a busy machine takes for the test.
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="600"), held_lease(DECLARED) as taken:
        yield taken


def age(lease: Lease, by: timedelta) -> None:
    with session() as ledger:
        ledger.get_one(Writer, lease.pipeline).acquired_at = clock() - by


def test_driver_is_replaced_again_only_after_an_hour_or_when_one_has_run_the_deployed_code(lease: Lease) -> None:
    writers.note_code(lease, {**loaded_code(), MODULE: OLDER})
    looks = Deployments(DECLARED)
    assert looks.event() is None, "the deployment may go on"
    assert looks.event() == {"event": "replaced", "changed": [MODULE]}
    assert looks.event() is None
    # The next driver runs the same older code: its host has no other.
    again = Deployments(DECLARED)
    assert [again.event() for _ in range(3)] == [None] * 3
    # Its host may have the deployed code by then.
    age(lease, writers.REPLACED_AGAIN)
    assert again.event() == {"event": "replaced", "changed": [MODULE]}
    age(lease, timedelta(0))
    # One that runs what is deployed, then a deployment that is taken back and comes again.
    writers.note_code(lease, loaded_code())
    assert again.event() is None
    writers.note_code(lease, {**loaded_code(), MODULE: OLDER})
    assert [again.event() for _ in range(2)][-1] == {"event": "replaced", "changed": [MODULE]}


def test_replacement_waits_when_a_deployment_is_going_on(lease: Lease) -> None:
    looks = Deployments(DECLARED)
    writers.note_code(lease, {**loaded_code(), MODULE: OLDER})
    assert looks.event() is None
    writers.note_code(lease, {**loaded_code(), MODULE: OLDER, ANOTHER: OLDER})
    assert looks.event() is None
    assert looks.event() == {"event": "replaced", "changed": [MODULE, ANOTHER]}


def test_driver_is_left_alone_when_its_pipeline_does_not_declare_it(postgres: Home) -> None:
    with held_lease(NOT_DECLARED) as lease:
        writers.note_code(lease, {**loaded_code(), MODULE: OLDER})
        looks = Deployments(NOT_DECLARED)
        assert [looks.event() for _ in range(3)] == [None] * 3
