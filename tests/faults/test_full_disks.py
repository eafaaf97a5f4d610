"""A full disk in each place: the command ends with a clear error, and passes once there is space again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg2
import pytest

from tests.conftest import iso
from tests.faults.conftest import Rig

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow]

DISKS = tuple(f"lake/{name}" for name in ("landing", "checkpoints", "tables", "quarantine"))
"""Folders of the home, each of which is a disk of its own."""

TABLES = {"nest_cameras", "nest_cameras_hourly_counts"}


def fill(folder: Path) -> None:
    """Leave no space on the small disk; skipped where mounting is not allowed."""
    if not folder.is_mount():
        pytest.skip("small disks need the right to mount")
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


def registered(rig: Rig) -> set[str]:
    """Tables with a revision that is registered, or being registered."""
    with psycopg2.connect(rig.home.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT table_name FROM revisions WHERE state IN ('registered', 'registering')")
        return {table for (table,) in cursor.fetchall()}


@pytest.mark.parametrize("disk", ["lake/landing", "lake/checkpoints", "lake/quarantine"])
def test_stream_ends_clearly_and_goes_on_later_when_the_disk_is_full(rig: Rig, disk: str) -> None:
    rig.produce(300)
    with full(rig.home.path / disk):
        ended = rig.fail()
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("tidemark: "), ended.stderr
    assert "No space left on device" in last, ended.stderr
    rig.catch_up()
    rig.audit()


def test_interval_registers_nothing_and_goes_through_later_when_the_disk_of_the_tables_is_full(rig: Rig) -> None:
    rig.produce(200)
    rig.catch_up()
    bounds = ("--from", iso(rig.start), "--to", iso(rig.start + timedelta(hours=1)))
    with full(rig.home.lake / "tables"):
        ended = rig.home.run("interval", "nest_cameras", *bounds, expect=None)
    assert ended.returncode == 1, ended.stderr
    assert "No space left on device" in ended.stderr.strip().splitlines()[-1]
    assert registered(rig) == set()
    verdict = rig.home.interval("nest_cameras", rig.start)
    assert {each["table"] for each in verdict["registered"]} == TABLES == registered(rig)
