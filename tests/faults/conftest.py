"""What the fault tests share: a home whose disks can be filled, and the audit after each fault."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from tests.conftest import Home, end_of, last_hours, wait_for
from tests.support import audit
from tests.support.audit import Coordinates, Fates, Record
from tests.support.looked_at import those

Ending = Callable[["subprocess.Popen[str]"], "subprocess.Popen[str]"]
"""Ends the process at the test's end, however that is."""


@dataclass
class Rig:
    """One pipeline under attack: all its records lie in one past hour, so that none is late."""

    home: Home
    start: datetime
    produced: int = 0
    pipeline: str = "nest_cameras"

    def produce(self, events: int, bad_fraction: float = 0.05) -> None:
        """More records, one minute after the ones before."""
        minute = self.start + timedelta(seconds=self.produced / 100)
        self.home.produce(self.pipeline, events, minute, "30s", bad=bad_fraction, seed=self.produced)
        self.produced += events

    def catch_up(self, **extra: str) -> subprocess.CompletedProcess[str]:
        return self.home.run("stream", self.pipeline, "--until-caught-up", **extra)

    def fail(self, **extra: str) -> subprocess.CompletedProcess[str]:
        """A stream that must not end well."""
        ended = self.home.run("stream", self.pipeline, "--until-caught-up", expect=None, **extra)
        assert ended.returncode != 0, "the fault was not felt"
        return ended

    def started(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        """A running stream, once it says so."""
        process = self.home.start("stream", self.pipeline, *arguments, **extra)
        assert process.stderr is not None
        # Nobody reads it before the end, and a driver that cannot write its log stands still.
        fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, 1 << 20)
        while "streaming from" not in (line := process.stderr.readline()):
            assert line, "the stream ended before it began"
        return process

    def frozen(
        self, ending: Ending, moment: str, *arguments: str, **extra: str
    ) -> tuple[subprocess.Popen[str], psutil.Process]:
        """A stream whose driver has stopped itself at a named place, with that driver."""
        process = ending(self.started(*arguments, TIDEMARK_PAUSE_AT=moment, **extra))
        driver = self.driver_of(process)
        wait_for(f"the driver to stop itself at {moment}", lambda: driver.status() == psutil.STATUS_STOPPED)
        return process, driver

    def driver_of(self, process: subprocess.Popen[str], job: str = "stream") -> psutil.Process:
        """The Python driver below a running `stream`, or below what runs another job."""
        below = psutil.Process(process.pid).children(recursive=True)

        def is_driver(process: psutil.Process) -> bool:
            return "python" in process.name() and "".join(process.cmdline()[1:2]).endswith(f"{job}.py")

        return next(iter(those(below, is_driver)))

    def committed(self) -> int:
        """Offsets that the archive has committed."""
        total = "SELECT coalesce(sum(next_offset), 0) FROM positions WHERE query = 'archive'"
        return int(self.home.ledger(total)[0][0])

    def service(self, name: str) -> psutil.Process:
        return psutil.Process(self.home.process_id(name))

    def audit(self) -> None:
        """Compare everything that nest_cameras committed with Kafka, and its compacted topic with the oracle."""
        assert audit.check_archive(self.home.kafka, self.home.database, self.home.lake) == self.produced
        counts = audit.sightings(audit.read_topic(self.home.kafka, "nest-logs"), audit.zip_codes())
        speed = audit.last_values(self.home.kafka, "nest-camera-stats")
        assert audit.by_zip_and_hour(speed) == counts

    def audit_intervals(self) -> None:
        """The same seen from the registered tables of nest_cameras."""
        self.audit_tables("nest-logs", audit.expected)

    def audit_tables(self, topic: str, fates_of: Callable[[dict[Coordinates, Record]], Fates]) -> None:
        """The registered rows against the topic: what came after the hour was pinned lies in the next one."""
        verdicts = [self.home.interval(self.pipeline, self.start + timedelta(hours=hour)) for hour in range(2)]
        assert [v["reconciliation"]["unexplained"] for v in verdicts] == [0, 0]
        every = audit.read_topic(self.home.kafka, topic)
        ranged = [audit.in_ranges(every, v["ranges"]) for v in verdicts]
        assert sum(len(records) for records in ranged) == len(every) == self.produced
        assert ranged[0] | ranged[1] == every
        registered = [r for v in verdicts for r in v["registered"] if r["table"] == self.pipeline]
        table = audit.read_parquet(r["location"] for r in registered)
        assert audit.identities(table) == Counter(fates_of(every).rows.keys())


@pytest.fixture(scope="module")
def disks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder in which each of the module's DISKS is a small disk of its own, where mounting is allowed."""
    home = tmp_path_factory.mktemp("home")
    mounted = []
    for name in getattr(request.module, "DISKS", ()):
        folder = home / name
        folder.mkdir(parents=True)
        made = subprocess.run(
            [shutil.which("mount") or "mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        )
        if made.returncode == 0:
            mounted.append(folder)
    yield home
    for folder in mounted:
        subprocess.run([shutil.which("umount") or "umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def rig(disks: Path, new_home: Callable[..., Home]) -> Iterator[Rig]:
    home = new_home(disks, own_drivers=True)
    home.run("up", "kafka", "postgres")
    yield Rig(home, last_hours(2))
    home.end()


@pytest.fixture
def ending() -> Iterator[Ending]:
    """Ends the processes that a test handed to it, however the test ends."""
    processes: list[subprocess.Popen[str]] = []

    def remember(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        processes.append(process)
        return process

    yield remember
    for process in processes:
        end_of(process)
