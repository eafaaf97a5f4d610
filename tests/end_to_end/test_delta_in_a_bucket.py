"""The Delta table of gps_positions in a bucket: the store decides who commits a version, and no commit is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import fs

from include.spark.compiled_jars import LOG_STORES
from include.spark.submission import submission
from tests.conftest import REPOSITORY, end_of, iso, last_hours, settings_of
from tests.support import audit, s3_server
from tests.support.delta_log import actions, latest_version, read_delta, validated

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(2400)]

FIRST = last_hours(3)
SECOND = FIRST + timedelta(hours=1)
STREAM = ("stream", "gps_positions", "--until-caught-up")
SMALL = {"TIDEMARK_MAX_OFFSETS_PER_TRIGGER": "150"}
MORE = "more-positions"
"""The topic of the other instances, with a topic partition for each."""
INSTANCES = 2
RECORDS = 600
"""In each of their topic partitions."""
VERSIONS = 60


class Bucket(s3_server.BucketHome):
    """A home in a bucket, and its Delta table as it can be copied from there."""

    def table(self, copied_to: Path) -> Path:
        source = f"{s3_server.BUCKET}/tidemark/delta/gps_positions"
        fs.copy_files(source, str(copied_to), source_filesystem=self.server.filesystem())
        return copied_to

    def start_driver(self, script: str, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        """A Spark application of the tests, submitted as the project's are."""
        with settings_of(self, **extra):
            job = submission("stream", name=script, short=True, delta=True)
            command = [*job.command()[:-1], str(REPOSITORY / "tests" / "support" / script), *arguments]
            environment = {**os.environ, **self.environment(**extra), **job.env}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
        )


def end_of_all(drivers: list[subprocess.Popen[str]]) -> list[str]:
    """Return what concurrent drivers printed; each must end with 0."""
    printed = []
    try:
        for driver in drivers:
            out, err = driver.communicate(timeout=900)
            assert driver.returncode == 0, err[-3000:]
            printed.append(out)
    finally:
        for driver in drivers:
            end_of(driver)
    return printed


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_server.serving(tmp_path_factory.mktemp("s3")) as server:
        made = Bucket(tmp_path_factory.mktemp("home"), server, own_drivers=True)
        yield made
        made.run("down", expect=None)


@pytest.fixture(scope="module")
def streamed(bucket: Bucket) -> Bucket:
    """Two hours, streamed by a driver killed between Delta's commit and the ledger's, and by the one after it."""
    bucket.run("up", "kafka", "postgres", "registry")
    bucket.produce("gps_positions", 600, FIRST, "2h", bad=0.05)
    killed = bucket.run(*STREAM, expect=None, TIDEMARK_CRASH_AT="delta_committed:2", **SMALL)
    assert killed.returncode
    bucket.run(*STREAM, **SMALL)
    return bucket


def landed(home: Bucket) -> Counter[tuple[str, int, int, int]]:
    """Identities of the rows that the ledger has committed."""
    archived = home.ledger("SELECT path FROM landing_files WHERE fate = 'archived'")
    paths = [f"s3a://{s3_server.BUCKET}/tidemark/{path}" for (path,) in archived]
    return audit.identities(audit.read_parquet({path.rpartition("/")[0] for path in paths}, home.server.filesystem()))


def identities_of(verdict: dict[str, Any], home: Bucket) -> Counter[tuple[str, int, int, int]]:
    locations = [each["location"] for each in verdict["registered"] if each["table"] == "gps_positions"]
    return audit.identities(audit.read_parquet(locations, home.server.filesystem()))


def test_each_row_is_there_once_when_the_driver_died_between_the_two_commits(streamed: Bucket, tmp_path: Path) -> None:
    table = streamed.table(tmp_path / "table")
    batches = [action["version"] for kind, action in actions(table) if kind == "txn"]
    assert batches == sorted(set(batches))
    assert len(batches) >= 3
    assert audit.identities(read_delta(table)) == landed(streamed)


def test_no_commit_is_lost_when_instances_and_the_stream_and_an_interval_commit_at_once(
    streamed: Bucket, tmp_path: Path
) -> None:
    """The instances read topic partitions of their own from Kafka, and append every micro-batch twice."""
    admin = AdminClient({"bootstrap.servers": streamed.kafka})
    admin.create_topics([NewTopic(MORE, INSTANCES)])[MORE].result(30)
    producer = streamed.producer()
    for number in range(INSTANCES * RECORDS):
        producer.produce(MORE, f"{number}".encode(), partition=number % INSTANCES)
    assert producer.flush(60) == 0
    before = read_delta(streamed.table(tmp_path / "before"))
    streamed.produce("gps_positions", 600, SECOND + timedelta(hours=1), "50m", seed=2)
    drivers = [
        *(
            streamed.start_driver("second_instance.py", MORE, str(partition), f"instance-{partition}", **SMALL)
            for partition in range(INSTANCES)
        ),
        streamed.start(*STREAM, **SMALL),
        streamed.start("interval", "gps_positions", "--from", iso(FIRST), "--to", iso(SECOND)),
    ]
    *_, said = end_of_all(drivers)
    verdict = json.loads(said)
    table = streamed.table(tmp_path / "after")
    after = read_delta(table)
    of_instances = Counter({(MORE, at % INSTANCES, at // INSTANCES, 0): 1 for at in range(INSTANCES * RECORDS)})
    assert audit.identities(after) == landed(streamed) + of_instances
    assert (audit.identities(before) - audit.identities(after)).total() == 0
    assert audit.identities(validated(after)) == identities_of(verdict, streamed)
    # No version was committed twice, and none is missing: each is one driver's commit.
    commits = sorted((table / "_delta_log").glob("*.json"))
    assert [int(each.stem) for each in commits] == list(range(latest_version(table) + 1))


def test_one_of_two_puts_of_a_version_is_refused_when_both_come_at_once(streamed: Bucket) -> None:
    """With Delta's log stores, which do not let the store decide, some versions are committed twice."""
    races = {}
    for log_store in (LOG_STORES["s3a"], "io.delta.storage.GCSLogStore"):
        [said] = end_of_all([streamed.start_driver("race_for_versions.py", log_store, str(VERSIONS))])
        races[log_store] = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    assert [len(race) for race in races.values()] == [VERSIONS, VERSIONS]
    wrong = [race for race in races[LOG_STORES["s3a"]] if len(race) != 2 or race[0] != race[1]]
    assert wrong == []
    assert [race for race in races["io.delta.storage.GCSLogStore"] if len(race) == 3]


def test_view_is_pinned_to_a_validated_version_when_intervals_ran_again(streamed: Bucket, tmp_path: Path) -> None:
    first, second = (streamed.interval("gps_positions", hour) for hour in (FIRST, SECOND))
    version = second["delta"]["version"]
    rows = validated(read_delta(streamed.table(tmp_path / "table"), version))
    assert audit.identities(rows) == identities_of(first, streamed) + identities_of(second, streamed)
    shown = streamed.json("sql", "SELECT count(*) AS rows FROM lake.gps_positions_delta", "--json")
    assert shown == [{"rows": rows.num_rows}]


@pytest.mark.parametrize("answers_501", [False, True])
def test_stream_is_refused_when_the_store_does_not_know_conditional_puts(
    tmp_path_factory: pytest.TempPathFactory, answers_501: bool
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(s3_server.serving(tmp_path_factory.mktemp("s3"), knows_users=False))
        forgetful = stack.enter_context(s3_server.without_conditions(store, answers_501=answers_501))
        home = Bucket(tmp_path_factory.mktemp("home"), forgetful, own_drivers=True)
        home.run("up", "kafka", "postgres", "registry")
        stack.callback(home.run, "down", expect=None)
        home.run("produce", "gps_positions", "--events", "50", "--start", iso(FIRST), "--span", "1h")
        refused = home.run(*STREAM, expect=64)
        assert "conditional put" in refused.stderr
        assert "gps_positions" in refused.stderr
        # Nothing of it was landed, and no probe was left.
        below = fs.FileSelector(f"{s3_server.BUCKET}/tidemark", recursive=True, allow_not_found=True)
        lying = [each.path for each in store.filesystem().get_file_info(below) if each.is_file]
        assert not [path for path in lying if "/landing/" in path or ".probe-" in path]
