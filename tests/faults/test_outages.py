"""Two drivers, a zombie, dead services, lost commit files: after each fault the audit from outside."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.conftest import wait_for
from tests.faults.conftest import Ending, Rig
from tests.support import audit
from tests.support.broker_copy import BrokerCopy

pytestmark = [pytest.mark.services, pytest.mark.faults]


@pytest.mark.slow
def test_zombie_never_commits_when_it_wakes_after_its_lease(rig: Rig, ending: Ending) -> None:
    rig.produce(300)
    zombie, driver = rig.frozen(ending, "landing_written")
    # Another driver waits out the lease, lands the same records and ends.
    rig.catch_up()
    rig.audit()
    rig.produce(100)
    os.kill(driver.pid, signal.SIGCONT)
    _, errors = zombie.communicate(timeout=120)
    assert zombie.returncode == 5, errors
    assert "Traceback" not in errors, errors
    assert "lease is over" in errors
    assert "nothing was committed" in errors
    assert rig.committed() == 300
    rig.catch_up()
    rig.audit()
    # A quarantine file is of its driver alone: another one cannot write to it, whatever its code finds invalid.
    quarantined = rig.home.ledger(
        "SELECT f.path, b.token FROM landing_files f JOIN micro_batches b ON b.id = f.micro_batch_id "
        "WHERE f.fate = 'quarantined'"
    )
    assert len({token for _, token in quarantined}) == 2
    assert [path for path, token in quarantined if not path.endswith(f"-{token}.parquet")] == []


@pytest.mark.slow
def test_successor_commits_when_a_driver_is_frozen_inside_its_commit(rig: Rig, ending: Ending) -> None:
    rig.produce(300)
    zombie, driver = rig.frozen(ending, "commit_written")
    at = rig.committed()
    # It waits until PostgreSQL ends the frozen transaction.
    rig.catch_up()
    rig.audit()
    assert rig.committed() == rig.produced > at
    os.kill(driver.pid, signal.SIGCONT)
    _, errors = zombie.communicate(timeout=120)
    assert zombie.returncode == 6, errors
    assert "Traceback" not in errors, errors
    rig.audit()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["speed_counted", "topic_written", "topic_checked"])
def test_zombie_overwrites_no_value_of_its_successor_when_it_wakes_inside_emit(
    rig: Rig, ending: Ending, moment: str
) -> None:
    # Without Spark, in seconds: tests/include/kafka/test_fenced_producer.py.
    rig.produce(300)
    zombie, driver = rig.frozen(ending, moment, "--until-caught-up")
    # The successor repeats the zombie's micro-batch, then counts more for the same keys.
    rig.catch_up()
    rig.produce(300)
    rig.catch_up()
    newest = audit.last_values(rig.home.kafka, "nest-camera-stats")
    assert newest
    os.kill(driver.pid, signal.SIGCONT)
    _, errors = zombie.communicate(timeout=120)
    assert audit.last_values(rig.home.kafka, "nest-camera-stats") == newest
    assert zombie.returncode == 5, errors
    assert "Traceback" not in errors, errors
    rig.audit()


@pytest.mark.slow
def test_nothing_is_doubled_when_two_drivers_start_at_once(rig: Rig, ending: Ending) -> None:
    rig.produce(300)
    drivers = [ending(rig.home.start("stream", "nest_cameras", "--until-caught-up")) for _ in range(2)]
    outputs = [driver.communicate(timeout=300)[1] for driver in drivers]
    assert sorted({driver.returncode for driver in drivers} - {0, 5}) == [], outputs
    assert 0 in {driver.returncode for driver in drivers}, outputs
    rig.audit()


@pytest.mark.slow
def test_committed_batches_are_not_landed_again_when_their_commit_files_are_lost(rig: Rig) -> None:
    rig.produce(100)
    rig.catch_up()
    for query in ("archive", "hourly_counts"):
        commits = rig.home.lake / "checkpoints" / "nest_cameras"
        files = [p for p in commits.rglob("commits/*") if query in p.parts and not p.name.startswith(".")]
        last = max(files, key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    landing = rig.home.lake / "landing" / "nest_cameras"
    before = {path: path.stat().st_mtime_ns for path in landing.rglob("*.parquet")}
    rig.produce(100)
    rig.catch_up()
    after = {path: path.stat().st_mtime_ns for path in landing.rglob("*.parquet")}
    assert before.items() < after.items()
    rig.audit()


@pytest.mark.parametrize("seconds", [0, pytest.param(70, marks=pytest.mark.slow)])
def test_stream_goes_on_or_ends_clearly_when_the_broker_is_killed(
    rig: Rig, ending: Ending, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    # The driver that the outage befalls has a JVM of its own; the one that catches up need not.
    monkeypatch.setattr(rig.home, "own_drivers", False)
    stream = ending(rig.started())
    rig.produce(200)
    wait_for("a commit", lambda: rig.committed() == rig.produced)
    broker = rig.service("kafka")
    broker.kill()
    psutil.wait_procs([broker], timeout=20)
    # The outage lasts longer than the clients' time-outs and the lease, unless the stream ends before.
    with suppress(subprocess.TimeoutExpired):
        stream.wait(seconds)
    rig.home.run("up", "kafka")
    rig.produce(200)
    wait_for("the records after it, or the end", lambda: rig.committed() == rig.produced or stream.poll() is not None)
    if stream.poll() is None:
        stream.send_signal(signal.SIGTERM)
    _, errors = stream.communicate(timeout=120)
    assert stream.returncode in (0, 6), errors
    assert "Traceback" not in errors, errors
    rig.catch_up()
    rig.audit()


@pytest.mark.slow
@pytest.mark.parametrize(("lease", "codes"), [("120", {0}), ("2", {5, 6})], ids=["lease lasts", "lease runs out"])
def test_batch_is_committed_once_when_postgresql_dies_in_the_middle_of_its_commit(
    rig: Rig, ending: Ending, lease: str, codes: set[int]
) -> None:
    rig.produce(200)
    before = rig.committed()
    stream, driver = rig.frozen(ending, "commit_written", TIDEMARK_LEASE_SECONDS=lease)
    postgres = rig.service("postgres")
    children = postgres.children(recursive=True)
    for process in [postgres, *children]:
        process.kill()
    psutil.wait_procs([postgres, *children], timeout=20)
    rig.home.run("up", "postgres")
    assert rig.committed() == before
    os.kill(driver.pid, signal.SIGCONT)
    wait_for("the same driver's commit, or its end", lambda: rig.committed() > before or stream.poll() is not None)
    if stream.poll() is None:
        stream.send_signal(signal.SIGTERM)
    _, errors = stream.communicate(timeout=120)
    assert stream.returncode in codes, errors
    assert "Traceback" not in errors, errors
    assert ("the ledger answers again" in errors) == (codes == {0}), errors
    rig.catch_up()
    rig.audit()


@pytest.mark.slow
@pytest.mark.parametrize("is_running", [False, True], ids=["before it starts", "while it runs"])
def test_stream_names_what_was_cut_off_and_goes_on_once_the_log_is_put_back(
    rig: Rig, ending: Ending, tmp_path: Path, *, is_running: bool
) -> None:
    rig.produce(200)
    shorter = BrokerCopy.of(rig.home, tmp_path / "shorter")
    rig.produce(200)
    rig.catch_up()
    whole = BrokerCopy.of(rig.home, tmp_path / "whole")
    before = rig.committed()
    stream = ending(rig.started()) if is_running else None
    shorter.put_back()
    stream = stream or ending(rig.home.start("stream", "nest_cameras"))
    _, errors = stream.communicate(timeout=180)
    assert stream.returncode == 4, errors
    last = errors.strip().splitlines()[-1]
    assert "it was read up to" in last, errors
    assert "the log was truncated" in last, errors
    assert "Traceback" not in errors, errors
    assert rig.committed() == before
    whole.put_back()
    if is_running:
        # It had planned a micro-batch when the log was shorter.
        assert "./tidemark new-generation nest_cameras" in rig.fail().stderr
        rig.home.run("new-generation", "nest_cameras", "--reason", "the log was put back")
    rig.produce(200)
    rig.catch_up()
    queries = "archive" if is_running else "%"
    assert audit.check_archive(rig.home.kafka, rig.home.database, rig.home.lake, queries=queries) == rig.produced


@pytest.mark.slow
def test_every_record_is_archived_when_topic_partitions_are_added_while_the_stream_runs(
    rig: Rig, ending: Ending
) -> None:
    stream = ending(rig.started())
    client = AdminClient({"bootstrap.servers": rig.home.kafka})
    client.create_partitions([NewPartitions("nest-logs", 6)])["nest-logs"].result(30)
    rig.produce(600)
    wait_for("the records", lambda: rig.committed() == rig.produced)
    stream.send_signal(signal.SIGTERM)
    _, errors = stream.communicate(timeout=120)
    assert stream.returncode == 0, errors
    rig.audit()
    read = "SELECT topic_partition FROM positions WHERE query = 'archive' AND next_offset > 0 ORDER BY 1"
    assert [partition for (partition,) in rig.home.ledger(read)] == list(range(6))
    rig.audit_intervals()
