"""A full disk in each place: the command ends with one clear line, and passes once there is space again."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import psutil
import psycopg2
import pytest

from tests.conftest import Home, iso, last_hours, lives, wait_for
from tests.faults.conftest import Ending, Rig
from tests.support import audit
from tests.support.checkout import HomeOfCheckout, copy_checkout
from tests.support.delta_log import read_delta

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow]

_OF_LAKE = ("landing", "checkpoints", "tables", "quarantine", "delta", "iceberg", "proofs", "reports")
DISKS = (*(f"lake/{name}" for name in _OF_LAKE), "tmp", "kafka", "postgres")
"""Folders of the home, each of which is a disk of its own."""

HOURS = 12
TABLES = {"nest_cameras", "nest_cameras_hourly_counts"}
LEFTOVERS = {"landing unknown to the ledger", "revision unknown to the ledger"}
"""What housekeeping removes of writes that failed."""

DECLARED = "include/pipelines/nest_cameras.py"


@dataclass
class DiskRig(Rig):
    """nest_cameras with a Delta table as its archive and an Iceberg table as its view; each test has an hour."""

    hours: int = 0

    def next_hour(self) -> tuple[str, ...]:
        """Records for an hour that no interval was pinned for, archived; returns its command."""
        self.produce(200)
        self.catch_up()
        begin = self.begin
        self.hours += 1
        return "interval", self.pipeline, "--from", iso(begin), "--to", iso(begin + timedelta(hours=1))

    @property
    def begin(self) -> datetime:
        return self.start + timedelta(hours=self.hours)

    def registered(self, begin: datetime) -> set[str]:
        """Tables with a revision of that hour that is registered, or being registered."""
        tables = self.home.ledger(
            "SELECT DISTINCT table_name FROM revisions WHERE state IN ('registered', 'registering') "
            "AND table_partition LIKE %s",
            f"%interval={begin:%Y-%m-%dT%H}",
        )
        return {table for (table,) in tables}

    def audit(self) -> None:
        """Landing, quarantine and the speed view, and the Delta table."""
        super().audit()
        rows = audit.expected(audit.read_topic(self.home.kafka, "nest-logs")).rows
        found = audit.identities(read_delta(self.home.lake / "delta" / "nest_cameras"))
        assert found == Counter(rows.keys())

    def audit_hour(self, verdict: dict[str, Any]) -> None:
        """The registered rows of a verdict against the topic; proof and report; catalog, ledger and files agree."""
        assert verdict["reconciliation"]["unexplained"] == 0
        assert {each["table"] for each in verdict["registered"]} == TABLES
        of_hour = audit.in_ranges(audit.read_topic(self.home.kafka, "nest-logs"), verdict["ranges"])
        archive = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
        assert audit.identities(archive) == Counter(audit.expected(of_hour).rows.keys())
        assert Path(verdict["report"]).stat().st_size > 0
        for proof in {each["proof"] for each in verdict["registered"]}:
            self.home.run("verify", proof)
        told = json.loads(self.home.run("doctor", "--json", "--deep", expect=None).stdout)["findings"]
        assert [each for each in told if not each["ok"] and each["kind"] not in LEFTOVERS] == []


@pytest.fixture(scope="module")
def rig(disks: Path, new_home: Callable[..., Home], tmp_path_factory: pytest.TempPathFactory) -> Iterator[DiskRig]:
    made = copy_checkout(tmp_path_factory.mktemp("declared") / "checkout", new_home(disks))
    made.edit(DECLARED, "rules=(", "delta=True,\n        rules=(")
    made.edit(DECLARED, "windows=TimeWindow", "iceberg=True,\n            windows=TimeWindow")
    home = HomeOfCheckout(disks, own_drivers=True, code=made.path)
    home.run("up", "kafka", "postgres")
    yield DiskRig(home, last_hours(HOURS))
    home.end()


def fill(folder: Path) -> None:
    """Leave no space on the small disk. Where mounting is not allowed, the test skips; in CI it fails."""
    if not folder.is_mount():
        said = "small disks need the right to mount"
        assert not os.environ.get("CI"), said
        pytest.skip(said)
    # Small blocks are written in parallel, so fill what is left after the big file, too.
    for number, block in enumerate((1 << 20, 4096, 512)):
        try:
            with (folder / f"ballast-{number}").open("wb", buffering=0) as file:
                while True:
                    file.write(b"0" * block)
        except OSError:
            continue


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """The small disk without space, during the block."""
    fill(folder)
    try:
        yield
    finally:
        for path in folder.glob("ballast-*"):
            path.unlink()


def check_told(errors: str, *words: str) -> None:
    """The last line is Tidemark's and names each of these; no stack trace comes before or after it."""
    last = errors.strip().splitlines()[-1]
    assert last.startswith("tidemark: "), errors
    assert [word for word in words if word not in last] == [], errors
    assert "Traceback" not in errors, errors
    assert "\tat " not in errors, errors


def check_full(errors: str, place: Path) -> None:
    """The error is that of a full disk, and of that place."""
    check_told(errors, "nest_cameras: No space left on device: ", str(place), "make room there")


def check_doctor(rig: Rig, folder: Path) -> None:
    """`doctor` names the full disk of this folder, and no other one."""
    # A writer may have removed its half of a file.
    fill(folder)
    told = json.loads(rig.home.run("doctor", "--json", expect=1).stdout)["findings"]
    said = [each["what"] for each in told if not each["ok"] and " of disk free in " in each["what"]]
    assert said == [f"0 MiB of disk free in {folder}"]


@pytest.mark.parametrize("disk", ["lake/landing", "lake/checkpoints", "lake/quarantine", "lake/delta", "tmp"])
def test_stream_names_the_disk_that_gets_full_and_goes_on_later(rig: DiskRig, ending: Ending, disk: str) -> None:
    stream = ending(rig.started())
    rig.produce(100)
    wait_for("a commit", lambda: rig.committed() == rig.produced)
    with full(rig.home.path / disk):
        rig.produce(300)
        _, errors = stream.communicate(timeout=300)
        assert stream.returncode == 1, errors
        check_full(errors, rig.home.path / disk)
        check_doctor(rig, rig.home.path / disk)
    rig.catch_up()
    rig.audit()


def test_nothing_is_started_when_spark_s_local_folder_has_no_space(rig: DiskRig) -> None:
    interval = rig.next_hour()
    with full(rig.home.path / "tmp"):
        for command in (interval, ("stream", rig.pipeline)):
            ended = rig.home.run(*command, expect=1)
            check_full(ended.stderr, rig.home.path / "tmp")
    rig.audit_hour(json.loads(rig.home.run(*interval).stdout))


@pytest.mark.parametrize(
    ("disk", "before"),
    [
        ("lake/tables", [set[str]()]),
        # The first interval makes the Iceberg table before it registers anything; later ones commit to it after that.
        ("lake/iceberg", [set[str](), TABLES]),
        ("lake/delta", [TABLES]),
        ("lake/proofs", [TABLES]),
        ("lake/reports", [TABLES]),
    ],
)
def test_interval_names_the_disk_that_is_full_and_goes_through_later(
    rig: DiskRig, disk: str, before: list[set[str]]
) -> None:
    begin, interval = rig.begin, rig.next_hour()
    with full(rig.home.path / disk):
        ended = rig.home.run(*interval, expect=1)
        check_full(ended.stderr, rig.home.path / disk)
    assert rig.registered(begin) in before
    rig.audit_hour(json.loads(rig.home.run(*interval).stdout))


def frozen_interval(rig: DiskRig, ending: Ending, interval: tuple[str, ...], moment: str, disk: str) -> str:
    """Fill a disk while an interval has stopped itself at a named place; returns what it said in the end."""
    process = ending(rig.home.start(*interval, TIDEMARK_PAUSE_AT=moment))

    def is_stopped() -> bool:
        assert process.poll() is None, process.communicate()
        with suppress(StopIteration, psutil.NoSuchProcess):
            return rig.driver_of(process, "build_interval").status() == psutil.STATUS_STOPPED
        return False

    wait_for(f"the driver to stop itself at {moment}", is_stopped)
    with full(rig.home.path / disk):
        os.kill(rig.driver_of(process, "build_interval").pid, signal.SIGCONT)
        _, errors = process.communicate(timeout=300)
        check_doctor(rig, rig.home.path / disk)
    assert process.returncode == (6 if disk == "postgres" else 1), errors
    return errors


def test_interval_names_spark_s_local_folder_when_its_shuffles_fill_it(rig: DiskRig, ending: Ending) -> None:
    begin, interval = rig.begin, rig.next_hour()
    errors = frozen_interval(rig, ending, interval, "revision_written", "tmp")
    check_full(errors, rig.home.path / "tmp")
    assert rig.registered(begin) == set()
    rig.audit_hour(json.loads(rig.home.run(*interval).stdout))


def test_interval_names_postgresql_s_disk_when_a_statement_of_the_catalog_finds_no_space(
    rig: DiskRig, ending: Ending
) -> None:
    interval = rig.next_hour()
    errors = frozen_interval(rig, ending, interval, "registration_noted", "postgres")
    check_told(errors, "nest_cameras: PostgreSQL at ", "No space left on device — make room on its disk")
    # It has never stopped.
    rig.home.run("up", "postgres")
    rig.audit_hour(json.loads(rig.home.run(*interval).stdout))


def test_stream_ends_clearly_and_up_brings_postgresql_back_when_its_log_finds_no_space(
    rig: DiskRig, ending: Ending
) -> None:
    stream = ending(rig.started())
    rig.produce(100)
    wait_for("a commit", lambda: rig.committed() == rig.produced)
    server = rig.service("postgres")
    with full(rig.home.path / "postgres"):
        panic(rig.home.database)
        psutil.wait_procs([server], timeout=60)
        assert not lives(server)
        rig.produce(100)
        _, errors = stream.communicate(timeout=300)
        assert stream.returncode == 6, errors
        check_told(errors, "nest_cameras: PostgreSQL at ", "./tidemark up postgres")
        check_refused(rig, "postgres")
    rig.home.run("up", "postgres")
    rig.catch_up()
    rig.audit()


def panic(database: str) -> None:
    """Write to PostgreSQL until it needs another file for its log, which it cannot live without."""
    connection = psycopg2.connect(database)
    connection.autocommit = True
    with connection.cursor() as cursor, suppress(psycopg2.OperationalError):
        for _ in range(100):
            cursor.execute("SELECT pg_switch_wal()")
            cursor.execute("SELECT pg_logical_emit_message(true, 'fault', repeat('x', 1000000))")


def check_refused(rig: Rig, service: str) -> None:
    """`doctor` and `up` name the disk; `up` does so at once."""
    check_doctor(rig, rig.home.path / service)
    refused = rig.home.run("up", service, expect=6)
    check_told(refused.stderr, f"{service} does not run on a full disk", str(rig.home.path / service), "make room")


def test_stream_ends_clearly_and_up_brings_the_broker_back_with_all_that_it_acknowledged(
    rig: DiskRig, ending: Ending
) -> None:
    stream = ending(rig.started())
    rig.produce(100)
    wait_for("a commit", lambda: rig.committed() == rig.produced)
    acknowledged = audit.read_topic(rig.home.kafka, "nest-logs")
    broker = rig.service("kafka")
    with full(rig.home.path / "kafka"):
        refused = try_to_produce(rig)
        assert refused.returncode == 6, refused.stderr
        check_told(refused.stderr, "Kafka at ", "./tidemark up kafka")
        psutil.wait_procs([broker], timeout=60)
        assert not lives(broker)
        check_refused(rig, "kafka")
        _, errors = stream.communicate(timeout=400)
        assert stream.returncode == 6, errors
        check_told(errors, "nest_cameras: ", "Kafka", "./tidemark status")
    rig.home.run("up", "kafka")
    found = audit.read_topic(rig.home.kafka, "nest-logs")
    assert acknowledged.items() <= found.items()
    # Some that the broker did not confirm may be there.
    rig.produced = len(found)
    rig.catch_up()
    rig.audit()


def try_to_produce(rig: Rig) -> CompletedProcess[str]:
    minute = ("--start", iso(rig.start), "--span", "30s", "--seed", "7")
    return rig.home.run("produce", rig.pipeline, "--events", "3000", *minute, expect=None)
