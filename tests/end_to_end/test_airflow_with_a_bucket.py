"""The demo, and what Airflow runs after it, with the lake in a bucket of a real S3-compatible server.

The server is killed and started again under a running stream, and refuses the credentials for a while.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePosixPath
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest
from pyarrow import fs

from include.airflow.demo_run import EVENTS
from include.airflow.demo_run import PATIENCE as DEMO_PATIENCE
from tests.conftest import Home, end_of, iso, wait_for
from tests.support import audit, registered, s3_server
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_runs import trigger_hour, wait_for_success
from tests.support.airflow_ui import api_of
from tests.support.canaries import Canaries, dump_of, files_of, watching

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(3600)]

NAME, TOPIC = "nest_cameras", "nest-logs"
STREAM, INTERVAL = f"stream__{NAME}", f"interval__{NAME}"
TABLES = {NAME, f"{NAME}_hourly_counts"}
LAKE = f"s3a://{s3_server.BUCKET}/tidemark"
HOURS = 3
"""Hours of the backfill, the last of which the demo has run."""
MORE = 300
"""Records that are produced while the store is away, each time."""
PATIENCE = 1200
REMEDY = "check the bucket, AWS_ENDPOINT_URL, AWS_REGION and the credentials, then start again"

Rows = list[tuple[Any, ...]]


def committed(home: Home) -> dict[str, int]:
    """How many records each query has committed."""
    noted = home.ledger("SELECT query, sum(next_offset) FROM positions WHERE pipeline = %s GROUP BY 1", NAME)
    return {query: int(count) for query, count in noted}


def exit_codes(home: Home) -> list[int | None]:
    """How each driver of the stream has ended, in the order of their launches."""
    return [code for (code,) in home.ledger("SELECT exit_code FROM stream_launches ORDER BY number")]


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
def secrets(store: s3_server.RunningServer) -> Iterator[Canaries]:
    """The store's secret; all command lines are looked at meanwhile."""
    made = Canaries({}, {"bucket": store.server.secret_key})
    with watching(made):
        yield made


@pytest.fixture(scope="module")
def demo(home: s3_server.BucketHome, secrets: Canaries) -> CompletedProcess[str]:
    # A driver's event log holds its whole configuration.
    events = home.path / "logs" / "events"
    events.mkdir(parents=True)
    noted = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    options = " ".join(f"-Dspark.eventLog.{name}={value}" for name, value in noted.items())
    started = home.start("demo", TIDEMARK_ARCHIVE_WAIT="10m", TIDEMARK_JVM_OPTIONS=options)
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
    [(begin,)] = home.ledger(
        "SELECT DISTINCT i.from_time FROM attempts a JOIN intervals i ON i.id = a.interval_id "
        "WHERE a.exit_code = 0 ORDER BY 1 LIMIT 1",
    )
    return begin.astimezone(UTC)


@pytest.fixture(scope="module")
def backfilled(home: s3_server.BucketHome, airflow: AirflowApi, hour: datetime) -> tuple[Rows, Rows]:
    """What was registered before a backfill of all hours, and after it."""
    before = in_force(home, hour)
    first = hour - timedelta(hours=HOURS - 1)
    backfill = airflow.backfill(INTERVAL, iso(first), iso(hour), again=True)
    wait_for("the backfill", lambda: airflow.backfill_ended(backfill), PATIENCE)
    runs = {run["dag_run_id"]: run["state"] for run in airflow.runs(INTERVAL) if run["run_type"] == "backfill"}
    assert set(runs.values()) == {"success"}, [airflow.tasks(INTERVAL, r) for r, s in runs.items() if s != "success"]
    return before, in_force(home, hour)


def in_force(home: Home, until: datetime) -> Rows:
    """What is registered of the hours up to this one; the schedule may have run later ones."""
    return home.ledger(
        "SELECT table_name, table_partition, id, location, rows, content_hash, registered_at FROM revisions "
        "WHERE state = 'registered' AND substring(table_partition FROM 'interval=(.*)') <= %s ORDER BY 1, 2",
        f"{until:%Y-%m-%dT%H}",
    )


def records_of(home: Home, begin: datetime) -> dict[audit.Coordinates, audit.Record]:
    """The records in the ranges of the hour's interval."""
    names = ("topic", "partition", "from_offset", "until_offset")
    pinned = home.ledger(
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


def findings(home: Home) -> list[dict[str, Any]]:
    """What the doctor objects to."""
    examined = json.loads(home.run("doctor", "--json", "--deep", expect=None).stdout)["findings"]
    assert any(LAKE in each["what"] for each in examined)
    return [each for each in examined if not each["ok"]]


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


def test_task_and_driver_say_what_to_do_and_go_on_by_themselves_when_the_store_refuses_for_a_while(
    home: s3_server.BucketHome,
    airflow: AirflowApi,
    store: s3_server.RunningServer,
    hour: datetime,
) -> None:
    before, failed = in_force(home, hour), exit_codes(home).count(6)
    store.kill()
    # Somebody has changed the credentials.
    store.start("another-secret-of-the-store")
    try:
        more_records(home)
        run = trigger_hour(airflow, INTERVAL, hour)
        # It is tried again until the archive's patience ends.
        wait_for("it to wait", lambda: airflow.tasks(INTERVAL, run).get("pin_ranges") == "up_for_reschedule", PATIENCE)
        told = airflow.log(INTERVAL, run, "pin_ranges")
        wait_for("the driver to fail", lambda: exit_codes(home).count(6) > failed, PATIENCE)
    finally:
        store.kill()
        store.start()
    assert re.search(rf"waiting: .*the lake {LAKE}: .*AWS Error .* — {REMEDY}", told), told
    [log] = home.ledger("SELECT log FROM stream_launches WHERE exit_code = 6 ORDER BY number DESC LIMIT 1")[0]
    [line] = [each for each in Path(log).read_text().splitlines() if f"the lake {LAKE}: " in each]
    assert line.endswith(REMEDY)
    check_caught_up(home, airflow)
    wait_for_success(airflow, INTERVAL, run, PATIENCE)
    assert in_force(home, hour) == before


def test_stream_says_that_there_is_no_such_bucket_with_exit_code_6(
    home: s3_server.BucketHome, demo: CompletedProcess[str]
) -> None:
    arguments = ("stream", "isp_hits", "--until-caught-up")
    home.run("produce", "isp_hits", "--events", "10")
    refused = home.run(*arguments, expect=6, TIDEMARK_LAKE="s3a://no-such-bucket/tidemark").stderr
    assert "the lake s3a://no-such-bucket/tidemark: " in refused.splitlines()[-1]
    assert REMEDY in refused.splitlines()[-1]


def test_backfill_registers_each_hour_once_and_changes_nothing_where_an_hour_was_registered(
    home: s3_server.BucketHome, backfilled: tuple[Rows, Rows], hour: datetime
) -> None:
    before, after = backfilled
    hours = [hour - timedelta(hours=ago) for ago in reversed(range(HOURS))]
    assert {row[1].split("interval=")[1] for row in after} == {f"{each:%Y-%m-%dT%H}" for each in hours}
    assert set(before) < set(after)
    for each in hours:
        check_rows(home, each)
    assert registered.in_catalog(home.database) == registered.in_ledger(home.database, "registered")
    counted = f"SELECT count(*) AS n FROM lake.{NAME} WHERE `interval` <= '{hour:%Y-%m-%dT%H}'"
    told = home.json("sql", counted, "--json")
    assert told == [{"n": sum(row[4] for row in after if row[0] == NAME)}]


def test_pages_tell_what_lies_in_the_bucket_when_a_person_has_logged_in(
    airflow: AirflowApi, backfilled: tuple[Rows, Rows], hour: datetime
) -> None:
    _, partition, _, location, *_ = next(row for row in backfilled[1] if row[1].endswith(f"{hour:%Y-%m-%dT%H}"))
    of_interval = f"/intervals/{NAME}/{hour:%Y-%m-%dT%H}"
    with pages_of(airflow) as client:
        pages = [
            "/",
            f"/pipelines/{NAME}",
            "/intervals",
            of_interval,
            f"/tables/{NAME}",
            f"/quarantine/{NAME}",
            "/metrics",
        ]
        assert {path: client.get(path).status_code for path in pages} == dict.fromkeys(pages, 200)
        assert location in client.get(f"{of_interval}?format=json").text
        report = client.get(f"{of_interval}/report")
        assert report.status_code == 200
        assert partition in report.text


@pytest.mark.parametrize(("task", "downstream"), [("build_interval", True), ("announce", False)])
def test_same_partitions_stay_registered_when_a_task_of_a_finished_run_is_cleared(
    home: s3_server.BucketHome,
    airflow: AirflowApi,
    backfilled: tuple[Rows, Rows],
    hour: datetime,
    task: str,
    downstream: bool,
) -> None:
    run = next(run["dag_run_id"] for run in airflow.runs(INTERVAL) if run["run_type"] == "backfill")
    airflow.clear(INTERVAL, run, task, downstream=downstream)
    wait_for_success(airflow, INTERVAL, run, PATIENCE)
    assert in_force(home, hour) == backfilled[1]


@pytest.mark.parametrize("source", ["kafka", "archive"])
def test_rebuild_is_equal_and_the_doctor_objects_to_nothing_when_the_hours_are_registered(
    home: s3_server.BucketHome, backfilled: tuple[Rows, Rows], source: str
) -> None:
    table, partition, *_ = next(row for row in backfilled[1] if row[0] == NAME)
    assert home.json("rebuild", table, partition, "--source", source, "--json")["equal"] is True
    assert findings(home) == []


def test_doctor_names_the_other_lake_when_the_setting_is_missing(
    home: s3_server.BucketHome, backfilled: tuple[Rows, Rows]
) -> None:
    examined = json.loads(home.run("doctor", "--json", expect=None, TIDEMARK_LAKE="").stdout)["findings"]
    [told] = [each for each in examined if f" holds nothing of {NAME}" in each["what"]]
    assert told["what"].startswith("the lake file://")
    assert (
        f"set TIDEMARK_LAKE to the lake in which the stream wrote (registered rows lie at {LAKE}/tables/"
        in told["remedy"]
    )


def test_secret_of_the_store_is_in_no_log_database_argument_or_file_of_the_bucket(
    home: s3_server.BucketHome, secrets: Canaries, backfilled: tuple[Rows, Rows]
) -> None:
    assert any("spark_jobs/stream.py" in line for line in secrets.arguments)
    assert any("spark_jobs/build_interval.py" in line for line in secrets.arguments)
    assert [line for line in secrets.arguments if secrets.told_by(line)] == []
    read = dict(files_of(home))
    for part in ("logs/streams/", "logs/events/", "task_id=build_interval"):
        assert any(part in path for path in read), part
    assert [path for path, text in read.items() if secrets.told_by(text)] == []
    for database, table in (("airflow", "rendered_task_instance_fields"), ("airflow", "xcom"), ("ledger", "attempts")):
        dumped = dump_of(home, database)
        assert f"COPY public.{table}" in dumped
        assert secrets.told_by(dumped) == [], database
    client = home.server.filesystem()
    below = client.get_file_info(fs.FileSelector(f"{s3_server.BUCKET}/tidemark", recursive=True))
    texts = [each.path for each in below if each.is_file and not each.path.endswith(".parquet")]
    assert any("/reports/" in path for path in texts)
    secret = home.server.secret_key.encode()
    assert [path for path in texts if secret in client.open_input_stream(path).read()] == []
