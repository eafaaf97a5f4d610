"""The demo, and the stream that Airflow runs after it, with the lake in a bucket of a real S3-compatible server.

The server is killed and started again under the running stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import PurePosixPath
from subprocess import CompletedProcess
from typing import Any

import httpx
import psycopg2
import pytest

from include.airflow.api import AirflowApi
from include.airflow.demo_run import EVENTS
from include.airflow.demo_run import PATIENCE as DEMO_PATIENCE
from tests.conftest import Home, end_of, iso, wait_for
from tests.support import audit, s3_server
from tests.support.airflow_ui import api_of

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(3600)]

NAME, TOPIC = "nest_cameras", "nest-logs"
STREAM, INTERVAL = f"stream__{NAME}", f"interval__{NAME}"
TABLES = {NAME, f"{NAME}_hourly_counts"}
LAKE = f"s3a://{s3_server.BUCKET}/tidemark"
MORE = 300
"""Records that are produced while the store is away, each time."""
PATIENCE = 1200
REMEDY = "check the bucket, AWS_ENDPOINT_URL, AWS_REGION and the credentials, then start again"

Rows = list[tuple[Any, ...]]


def ledger(home: Home, query: str, *values: object) -> Rows:
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchall()


def committed(home: Home) -> dict[str, int]:
    """How many records each query has committed."""
    return {
        query: int(count) for query, count in ledger(home, "SELECT query, sum(next_offset) FROM positions GROUP BY 1")
    }


def exit_codes(home: Home) -> list[int | None]:
    """How each driver of the stream has ended, in the order of their launches."""
    return [code for (code,) in ledger(home, "SELECT exit_code FROM stream_launches ORDER BY number")]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3_server.RunningServer]:
    running = s3_server.RunningServer.below(tmp_path_factory.mktemp("s3"))
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, store: s3_server.RunningServer) -> Iterator[s3_server.BucketHome]:
    made = s3_server.BucketHome(tmp_path_factory.mktemp("home"), store.server, own_drivers=True)
    yield made
    made.run("down", expect=None)
    made.end()


@pytest.fixture(scope="module")
def demo(home: s3_server.BucketHome) -> CompletedProcess[str]:
    started = home.start("demo", TIDEMARK_ARCHIVE_WAIT="10m")
    try:
        # It has a patience of its own with each of its parts.
        told, errors = started.communicate(timeout=2 * DEMO_PATIENCE)
    finally:
        end_of(started)
    assert started.returncode == 0, errors
    return CompletedProcess(started.args, started.returncode, told, errors)


@pytest.fixture(scope="module")
def airflow(home: s3_server.BucketHome, demo: CompletedProcess[str]) -> AirflowApi:
    return api_of(home)


@pytest.fixture(scope="module")
def hour(home: s3_server.BucketHome, demo: CompletedProcess[str]) -> datetime:
    """The start of the interval that the demo has run."""
    [(begin,)] = ledger(
        home,
        "SELECT DISTINCT i.from_time FROM attempts a JOIN intervals i ON i.id = a.interval_id "
        "WHERE a.exit_code = 0 ORDER BY 1 LIMIT 1",
    )
    return begin.astimezone(UTC)


def in_force(home: Home, until: datetime) -> Rows:
    """What is registered of the hours up to this one; the schedule may have run later ones."""
    return ledger(
        home,
        "SELECT table_name, table_partition, id, location, rows, content_hash, registered_at FROM revisions "
        "WHERE state = 'registered' AND substring(table_partition FROM 'interval=(.*)') <= %s ORDER BY 1, 2",
        f"{until:%Y-%m-%dT%H}",
    )


def records_of(home: Home, begin: datetime) -> dict[audit.Coordinates, audit.Record]:
    """The records in the ranges of the hour's interval."""
    names = ("topic", "partition", "from_offset", "until_offset")
    pinned = ledger(
        home,
        "SELECT r.topic, r.topic_partition, r.from_offset, r.until_offset FROM interval_ranges r "
        "JOIN intervals i ON i.id = r.interval_id WHERE i.pipeline = %s AND i.from_time = %s",
        NAME,
        begin,
    )
    return audit.in_ranges(audit.read_topic(home.kafka, TOPIC), [dict(zip(names, row, strict=True)) for row in pinned])


def check_rows(home: s3_server.BucketHome, begin: datetime) -> None:
    """What is registered of the hour lies in the bucket, and holds each row of its ranges once, by pyarrow's client."""
    wanted = audit.expected(records_of(home, begin)).rows
    assert wanted
    rows = [row for row in in_force(home, begin) if row[1].endswith(f"interval={begin:%Y-%m-%dT%H}")]
    assert {row[0] for row in rows} == TABLES
    assert [row[3] for row in rows if not row[3].startswith(f"{LAKE}/tables/{row[0]}/")] == []
    found = audit.read_parquet([row[3] for row in rows if row[0] == NAME], home.server.filesystem())
    assert audit.identities(found) == Counter(wanted.keys())
    assert found.num_rows == sum(row[4] for row in rows if row[0] == NAME)
    identities = [found[f"kafka_{part}"].to_pylist() for part in ("topic", "partition", "offset", "element")]
    devices = dict(zip(zip(*identities, strict=True), found["device_id"].to_pylist(), strict=True))
    assert devices == {identity: row["device_id"] for identity, row in wanted.items()}


def test_demo_publishes_an_hour_in_the_bucket_when_the_lake_is_there(
    home: s3_server.BucketHome, demo: CompletedProcess[str], hour: datetime
) -> None:
    # Where a browser finds it: no browser opens a file of the bucket.
    assert f"/tidemark/intervals/{NAME}/{hour:%Y-%m-%dT%H}/report" in "".join(demo.stdout.split())
    check_rows(home, hour)
    assert committed(home) == {"archive": EVENTS, "hourly_counts": EVENTS}
    bucket = PurePosixPath(s3_server.BUCKET) / "tidemark"
    landed = audit.check_archive(home.kafka, home.database, bucket, store=home.server.filesystem())
    assert landed == EVENTS
    # Nothing of the lake lies on this machine.
    assert not home.lake.exists()


def pages_of(airflow: AirflowApi) -> httpx.Client:
    """A person who has logged in to Airflow, at the pages in it."""
    token = {"Authorization": airflow._client.headers["Authorization"]}
    return httpx.Client(base_url=f"{airflow.address}/tidemark", headers=token, timeout=60)


def more_records(home: Home) -> None:
    """Records of the current hour, for which no interval is run."""
    now = datetime.now(UTC)
    seed = str(len(exit_codes(home)))
    home.run("produce", NAME, "--events", str(MORE), "--seed", seed, "--start", iso(now), "--span", "1s")


def check_caught_up(home: s3_server.BucketHome, airflow: AirflowApi) -> None:
    """A driver of Airflow's commits all that was produced, each record once."""
    every = len(audit.read_topic(home.kafka, TOPIC))
    wait_for("the stream", lambda: committed(home) == {"archive": every, "hourly_counts": every}, PATIENCE)
    bucket = PurePosixPath(s3_server.BUCKET) / "tidemark"
    assert audit.check_archive(home.kafka, home.database, bucket, store=home.server.filesystem()) == every
    *failed, runs = exit_codes(home)
    assert runs is None
    assert set(failed) == {6}
    assert not airflow.is_paused(STREAM)


def test_nothing_is_lost_and_the_stream_comes_back_when_the_store_is_killed_under_it(
    home: s3_server.BucketHome,
    airflow: AirflowApi,
    store: s3_server.RunningServer,
    hour: datetime,
) -> None:
    assert exit_codes(home) == [None]
    store.kill()
    try:
        more_records(home)
        with pages_of(airflow) as client:
            assert client.get("/").status_code == 200
            away = client.get(f"/intervals/{NAME}/{hour:%Y-%m-%dT%H}/report")
        assert away.status_code == 503
        assert "AWS_ENDPOINT_URL" in away.text
        wait_for("the driver to give up", lambda: 6 in exit_codes(home), PATIENCE)
    finally:
        store.start()
    check_caught_up(home, airflow)


def test_stream_says_that_there_is_no_such_bucket_with_exit_code_6(
    home: s3_server.BucketHome, demo: CompletedProcess[str]
) -> None:
    arguments = ("stream", "isp_hits", "--until-caught-up")
    home.run("produce", "isp_hits", "--events", "10")
    refused = home.run(*arguments, expect=6, TIDEMARK_LAKE="s3a://no-such-bucket/tidemark").stderr
    assert "the lake s3a://no-such-bucket/tidemark: " in refused.splitlines()[-1]
    assert REMEDY in refused.splitlines()[-1]
