"""A disk that is full is named: by the error of a write, by `doctor`, and before a service or a driver begins on it.

`/proc` stands for a full disk: the system says that it has no space.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest

from include import lake
from include.doctor.machine import _disks
from include.errors import DiskFull, ServiceUnreachable
from include.lake.disks import disks, full_disk
from include.services import supervisor
from include.services.process import ServiceStatus
from include.spark.submission import submission
from tests.conftest import REPOSITORY, SetSettings

FULL = Path("/proc")


@pytest.fixture
def home(tmp_path: Path, set_settings: SetSettings) -> Path:
    """A home whose broker has a disk of its own, which is full."""
    set_settings(TIDEMARK_HOME=str(tmp_path))
    (tmp_path / "kafka").symlink_to(FULL)
    (tmp_path / "postgres").mkdir()
    return tmp_path


def test_each_disk_is_found_once_when_folders_lie_on_several(home: Path) -> None:
    assert [(each.folder, each.is_full) for each in disks()] == [(home, False), (home / "kafka", True)]


def test_disk_is_named_when_a_folder_of_the_lake_is_one_of_its_own(home: Path) -> None:
    (home / "kafka").unlink()
    (home / "lake").mkdir()
    (home / "lake" / "reports").symlink_to(FULL)
    assert str(full_disk()).startswith(f"No space left on device: {home}/lake/reports; nothing half written")


def test_places_are_told_when_no_disk_is_full_any_more(home: Path) -> None:
    (home / "kafka").unlink()
    said = f"No space left on device: below file://{home}/lake, or in Spark's local folder below {home}/tmp; "
    assert str(full_disk()).startswith(said)


def test_file_is_named_and_nothing_is_left_of_it_when_it_finds_no_space(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = home / "lake" / "reports"
    reports.mkdir(parents=True)
    # Where the text is written before it gets its name.
    monkeypatch.setattr("uuid.uuid4", lambda: UUID(int=7))
    (reports / f"hour.html.{UUID(int=7).hex}.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match=f"No space left on device: file://{reports}/hour.html; "):
        lake.write_text(lake.uri("reports", "hour.html"), "a report")
    assert list(reports.iterdir()) == []


def test_doctor_names_disk_and_free_bytes_when_one_is_full(home: Path) -> None:
    own, brokers = _disks()
    assert own.what.endswith(f" of disk free in {home}")
    assert (brokers.ok, brokers.what) == (False, f"0 MiB of disk free in {home}/kafka")
    assert brokers.remedy.startswith("make room there")


def test_doctor_warns_when_the_disk_of_the_home_is_nearly_full(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "kafka").unlink()
    free = SimpleNamespace(f_bavail=2**20, f_frsize=2**10, f_blocks=2**30, f_favail=1, f_files=2)
    monkeypatch.setattr("os.statvfs", lambda _: free)
    [own] = _disks()
    assert (own.ok, own.what) == (False, f"1,024 MiB of disk free in {home}")
    free.f_bavail, free.f_favail = 2**30, 0
    [own] = _disks()
    assert (own.ok, own.what) == (False, f"1024 GiB of disk free in {home}, which takes no more files")


@pytest.mark.parametrize("pid", [None, 1], ids=["ended", "runs without answering"])
def test_disk_is_named_at_once_when_a_service_that_does_not_answer_is_to_be_started(
    home: Path, monkeypatch: pytest.MonkeyPatch, pid: int | None
) -> None:
    started = list[str]()
    away = ServiceStatus("127.0.0.1:1", healthy=False, pid=pid)
    for name in ("kafka", "postgres"):
        broker = SimpleNamespace(status=lambda: away, up=lambda name=name: started.append(name))
        monkeypatch.setitem(supervisor.SERVICES, name, broker)
    with pytest.raises(ServiceUnreachable, match=f"kafka does not run on a full disk: 0 MiB .* {home}/kafka"):
        supervisor.up(["kafka"])
    assert started == []


def test_driver_is_not_started_when_spark_s_local_folder_has_no_space(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(f_bavail=1, f_frsize=2**10, f_blocks=2**30, f_favail=1, f_files=2)
    monkeypatch.setattr("os.statvfs", lambda _: free)
    with pytest.raises(DiskFull, match=f"^nest_cameras: No space left on device: {home}/tmp; "):
        submission("stream", "--pipeline", "nest_cameras", name="stream nest_cameras")
    assert not (home / "tmp").exists()


@pytest.fixture
def two_disks(home: Path) -> Iterator[str]:
    """A lake whose landing has a disk of its own, with a file in a micro-batch's folder."""
    folders = (Path("/dev/shm"), REPOSITORY / ".tidemark", Path(tempfile.gettempdir()))
    other = next((each for each in folders if each.is_dir() and each.stat().st_dev != home.stat().st_dev), None)
    if other is None:
        pytest.skip("there is no second disk to write to")
    with tempfile.TemporaryDirectory(dir=other) as landing:
        (home / "lake").mkdir()
        (home / "lake" / "landing").symlink_to(landing)
        lake.write_text(lake.uri("landing", "p", "one", "x.parquet"), "rows")
        yield lake.root()


@pytest.mark.parametrize("moved", ["landing/p/one/x.parquet", "landing/p/one"])
def test_file_or_folder_is_moved_whole_when_the_target_lies_on_another_disk(two_disks: str, moved: str) -> None:
    lake.move(f"{two_disks}/{moved}", f"{two_disks}/replaced/p/{moved}")
    assert lake.read_text(f"{two_disks}/replaced/p/landing/p/one/x.parquet") == "rows"
    assert not lake.exists(f"{two_disks}/{moved}")
    # And back, for a ledger that names it.
    lake.move(f"{two_disks}/replaced/p/{moved}", f"{two_disks}/{moved}")
    files = [each.name for each in lake.list_entries(two_disks) if each.is_file]
    assert files == ["landing/p/one/x.parquet"]


@pytest.mark.parametrize("moved", ["landing/p/one/x.parquet", "landing/p/one"])
def test_nothing_is_moved_and_nothing_left_when_the_other_disk_is_full(
    two_disks: str, moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(DiskFull):
        lake.move(f"{two_disks}/{moved}", f"{two_disks}/replaced/{moved}")
    files = [each.name for each in lake.list_entries(two_disks) if each.is_file]
    assert files == ["landing/p/one/x.parquet"]
