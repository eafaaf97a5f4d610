"""The long tier: drivers killed again and again, half at named moments, half at any moment.

    KILLS=100 RECORDS=334000 ./tidemark test -m slow tests/faults/test_many_kills.py

kills 300 drivers over a million records of three pipelines. Without these variables it is 100 kills over 200,000
records of nest_cameras, and 10 over 20,000 of each other. `SEED` changes the moments; the same seed gives the same
records and the same named moments.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from include.schemas.registry import SchemaRegistry
from tests.conftest import Home, last_hours
from tests.faults.conftest import Rig
from tests.support import audit, bids
from tests.support.delta_log import read_delta
from tests.support.killed import was_killed
from tests.support.positions import fates_by

KILLS = int(os.environ.get("KILLS", "0"))
RECORDS = int(os.environ.get("RECORDS", "0"))
SEED = int(os.environ.get("SEED", "20261121"))
MOMENTS = (
    "batch_planned",
    "landing_written",
    "quarantine_moved",
    "commit_written",
    "batch_committed",
    "speed_emitted",
    "speed_committed",
)

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(10_800)]


@pytest.fixture
def rig(new_home: Callable[..., Home], pipeline: str) -> Iterator[Rig]:
    """Services of a pipeline's own."""
    home = new_home(own_drivers=True)
    home.run("up", "kafka", "postgres", "registry")
    yield Rig(home, last_hours(2), pipeline=pipeline)
    home.end()


def kill_at_any_moment(rig: Rig, after: float) -> bool:
    """Kill the driver and its JVM `seconds` after it holds the lease; return False when it had already ended."""
    stream = rig.started("--until-caught-up")
    try:
        stream.wait(after)
    except subprocess.TimeoutExpired:
        # The command's death is its driver's and its JVM's: both die with it.
        stream.send_signal(signal.SIGKILL)
        stream.communicate(timeout=60)
        return True
    return False


def check_cameras(rig: Rig) -> None:
    rig.audit()
    rig.audit_intervals()


def check_positions(rig: Rig) -> None:
    """Landing, the Delta table, counts per device and the registered rows, against values as fastavro reads them."""
    home = rig.home
    fates_of = fates_by(SchemaRegistry(home.address("registry")))
    assert audit.check_archive(home.kafka, home.database, home.lake, "gps", fates_of) == rig.produced
    rows = fates_of(audit.read_topic(home.kafka, "gps")).rows
    assert audit.identities(read_delta(home.lake / "delta" / "gps_positions")) == Counter(rows.keys())
    counted: Counter[int] = Counter()
    for key, value in audit.last_values(home.kafka, "gps-hourly-counts").items():
        counted[json.loads(key)["deviceId"]] += value["positions"]
    assert counted == Counter(row["deviceId"] for row in rows.values())
    rig.audit_tables("gps", fates_of)


def check_bids(rig: Rig) -> None:
    """Landing, bids per category, flags and registered rows, against bids as the standard library reads them."""
    home = rig.home
    assert audit.check_archive(home.kafka, home.database, home.lake, "auction-bids", bids.fates_of) == rig.produced
    rows = bids.fates_of(audit.read_topic(home.kafka, "auction-bids")).rows
    counted: Counter[tuple[str, str]] = Counter()
    for key, value in audit.last_values(home.kafka, "auction-category-hours").items():
        counted[json.loads(key)["category"], json.loads(key)["currency"]] += value["bids"]
    assert counted == Counter((bid["category"], bid["currency"]) for bid in rows.values())
    # Nothing was learned before: the rules without limits alone.
    flagged = {c: {rule["rule"] for rule in flag["rules"]} for c, flag in bids.flags(home.kafka).items()}
    assert flagged == bids.expected_flags({c[:3]: bid for c, bid in rows.items()}, [])
    rig.audit_tables("auction-bids", bids.fates_of)


@pytest.mark.parametrize(
    ("pipeline", "kills", "records", "check"),
    [
        pytest.param("nest_cameras", KILLS or 100, RECORDS or 200_000, check_cameras, id="nest_cameras"),
        pytest.param("gps_positions", KILLS or 10, RECORDS or 20_000, check_positions, id="gps_positions"),
        pytest.param("auction_bids", KILLS or 10, RECORDS or 20_000, check_bids, id="auction_bids"),
    ],
)
def test_nothing_is_lost_or_doubled_when_the_driver_is_killed_again_and_again(
    rig: Rig, pipeline: str, kills: int, records: int, check: Callable[[Rig], None]
) -> None:
    rng = random.Random(SEED)
    done: Counter[str] = Counter()
    runs = 0
    # A driver may end before its moment comes; this limits how many are started.
    while done.total() < kills and runs < 4 * kills:
        runs += 1
        rig.produce(records // kills, bad_fraction=0.02)
        if rng.random() < 0.5:
            if kill_at_any_moment(rig, rng.uniform(0, 8)):
                done["any moment"] += 1
            continue
        moment = rng.choice(MOMENTS)
        ended = rig.home.run("stream", pipeline, "--until-caught-up", expect=None, TIDEMARK_CRASH_AT=moment)
        # The moment came, and the driver died of it.
        if was_killed(ended):
            done[moment] += 1
    assert done.total() >= kills, f"{done.total()} kills in {runs} runs, {kills} were wanted: {dict(done)}"
    # With fewer kills a moment may be missed by chance.
    if kills >= 100:
        assert set(done) == {"any moment", *MOMENTS}, f"moments without a kill: {dict(done)}"
    rig.catch_up()
    check(rig)
    print(
        f"{pipeline}: {done.total()} kills in {runs} runs over {rig.produced} records, seed {SEED}: {dict(done)}; "
        "lost 0, doubled 0"
    )
