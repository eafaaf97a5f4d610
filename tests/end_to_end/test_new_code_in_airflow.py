"""Code is deployed beside a stream that Airflow runs: its driver is replaced between micro-batches, or left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.conftest import Home, end_of, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_ui import api_of
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.own_drivers, pytest.mark.slow]

NAME = "isp_hits"
STREAM = f"stream__{NAME}"
DECLARATION, MODULE = f"include/pipelines/{NAME}.py", "spark_jobs/sinks/landing.py"
START = last_hours(2)


class Driver(NamedTuple):
    """Who holds the lease, and the launches so far: their exit codes, None for one that runs."""

    token: int
    holder: str
    launches: tuple[int | None, ...]


def driver(home: Home) -> Driver:
    [(token, holder)] = home.ledger("SELECT token, holder FROM writers")
    codes = tuple(code for (code,) in home.ledger("SELECT exit_code FROM stream_launches ORDER BY launched_at"))
    return Driver(token, holder, codes)


def committed(home: Home) -> int:
    return int(home.ledger("SELECT coalesce(sum(next_offset), 0) FROM positions WHERE query = 'archive'")[0][0])


def produce(home: Home, events: int) -> None:
    """Write messages, and wait until they are committed."""
    wanted = committed(home) + events
    home.run("produce", NAME, "--events", str(events), "--start", iso(START), "--span", "1h")
    wait_for("their commit", lambda: committed(home) == wanted)


def needs(checkout: Checkout) -> str:
    """Return what a driver of a checkout's code needs before it can continue the stream."""
    done = subprocess.run(
        [sys.executable, "-m", "include.streams.new_code", NAME],
        cwd=checkout.path,
        env=checkout.home.environment(PYTHONPATH=str(checkout.path)),
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(done.stdout)["needs"])


@pytest.fixture(scope="module")
def checkout(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Where code is deployed to."""
    return copy_checkout(tmp_path_factory.mktemp("deployed") / "checkout", home)


@pytest.fixture(scope="module")
def airflow(home: Home, checkout: Checkout) -> Iterator[AirflowApi]:
    """Airflow of that checkout, with a stream that has caught up."""
    checkout.run("up", "airflow")
    api = api_of(home)
    wait_for("the DAGs", lambda: STREAM in api.dag_ids(), 120)
    home.run("produce", NAME, "--events", "300", "--start", iso(START), "--span", "1h")
    api.set_paused(STREAM, False)
    wait_for("the stream to catch up", lambda: committed(home) == 300)
    wait_for("its modules to be noted", lambda: home.ledger(f"SELECT 1 FROM writers WHERE code ? '{MODULE}'"))
    yield api
    api.set_paused(STREAM, True)
    checkout.run("stream", NAME, "--stop", expect=None)
    wait_for("the driver to end", lambda: driver(home).holder == "", 120)


def test_driver_is_replaced_between_two_micro_batches_when_code_that_continues_is_deployed(
    home: Home, checkout: Checkout, airflow: AirflowApi
) -> None:
    before, run = driver(home), airflow.runs(STREAM)[0]["dag_run_id"]
    # Code with another window has to wait for a person: the old driver keeps running.
    checkout.edit(DECLARATION, 'TimeWindow("1d")', 'TimeWindow("2d")')
    assert "window length: 1 day → 2 days" in needs(checkout)
    produce(home, 100)
    assert driver(home) == before
    checkout.edit(DECLARATION, 'TimeWindow("2d")', 'TimeWindow("1d")')
    producer = checkout.start(
        "produce", NAME, "--events", "3000", "--rate", "30", "--start", iso(START), "--span", "1h"
    )
    try:
        wait_for("events to flow", lambda: committed(home) > 400, 60)
        with (checkout.path / MODULE).open("a") as module:
            module.write("\n# Deployed while the driver runs.\n")
        assert needs(checkout) == ""
        wait_for("another driver", lambda: driver(home).launches == (0, None) and driver(home).holder, 240)
    finally:
        end_of(producer)
    reasons = home.ledger("SELECT ended_for FROM stream_launches ORDER BY launched_at")
    assert reasons == [("replaced: other code was deployed",), ("",)]
    after = driver(home)
    assert after.token > before.token
    assert after.holder != before.holder
    [state] = [each["state"] for each in airflow.runs(STREAM) if each["dag_run_id"] == run]
    assert state == "success"
    log = airflow.log(STREAM, run, "stream")
    assert f"other code was deployed, which continues where the driver is: {MODULE}" in log
    assert "the driver has finished its micro-batch; the next run starts one of the new code" in log


def test_replaced_driver_is_left_alone_and_no_row_is_lost_or_doubled(home: Home, airflow: AirflowApi) -> None:
    wait_for("the new driver's modules", lambda: home.ledger(f"SELECT 1 FROM writers WHERE code ? '{MODULE}'"))
    before = driver(home)
    wait_for("what was produced", lambda: not any(each["lag"] for each in home.json("lag", NAME, "--json")))
    # Airflow has checked that the new driver runs the deployed code.
    wait_for("Airflow's look", lambda: home.ledger("SELECT 1 FROM writers WHERE replaced_for = ''"), 120)
    produce(home, 100)
    assert driver(home) == before
    files = home.ledger("SELECT path FROM landing_files WHERE fate = 'archived'")
    landed = audit.identities(audit.read_files(home.lake / path for (path,) in files))
    assert set(landed.values()) == {1}
    ranges = home.ledger(
        "SELECT r.topic_partition, r.from_offset, r.until_offset FROM micro_batch_ranges r JOIN micro_batches b "
        "ON b.id = r.micro_batch_id WHERE b.query = 'archive' ORDER BY 1, 2",
    )
    at: dict[int, int] = {}
    for partition, begin, until in ranges:
        assert at.get(partition, 0) == begin
        at[partition] = until
    assert sum(at.values()) == committed(home) == len(landed)
