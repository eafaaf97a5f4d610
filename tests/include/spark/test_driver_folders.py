"""A driver's temporary folder lives as long as the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from include.spark import driver_folders
from tests.conftest import REPOSITORY, end_of

pytestmark = pytest.mark.usefixtures("empty_home")

DRIVER = "from include.spark import driver_folders; driver_folders.hold(); print('held', flush=True); input()"


def test_folder_stays_while_its_driver_lives_and_goes_when_it_was_killed() -> None:
    folder = driver_folders.make("stream")
    (folder / "blockmgr-1").mkdir()
    (folder / "blockmgr-1" / "block").write_text("spilled")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env={**os.environ, driver_folders.VARIABLE: str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "held\n"
        # However long it runs.
        os.utime(folder, (0, 0))
        assert driver_folders.sweep() == []
        assert (folder / "blockmgr-1" / "block").exists()
    finally:
        end_of(driver)
    assert driver_folders.sweep() == [folder]
    assert not folder.exists()


def test_folder_stays_while_its_driver_may_be_starting_and_goes_when_it_never_came_up() -> None:
    folder = driver_folders.make("stream")
    assert driver_folders.sweep() == []
    submitted = folder.stat().st_mtime - driver_folders.STARTING
    os.utime(folder, (submitted, submitted))
    assert driver_folders.sweep() == [folder]


def test_nothing_is_held_when_a_driver_was_given_no_folder(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(driver_folders.VARIABLE, raising=False)
    driver_folders.hold()
    assert not (empty_home / "tmp").exists()
    assert driver_folders.sweep() == []


def test_each_sweep_ends_when_several_meet_at_folders_of_drivers_that_never_came_up(empty_home: Path) -> None:
    for _ in range(300):
        os.utime(driver_folders.make("stream"), (0, 0))
    with ThreadPoolExecutor(8) as several:
        swept = [each.result() for each in [several.submit(driver_folders.sweep) for _ in range(8)]]
    assert list((empty_home / "tmp").iterdir()) == []
    assert len({folder for each in swept for folder in each}) == 300


def test_sweeping_goes_on_when_an_entry_is_not_a_folder(empty_home: Path) -> None:
    folder = driver_folders.make("stream")
    os.utime(folder, (0, 0))
    (empty_home / "tmp" / "notes").write_text("of an operator")
    assert driver_folders.sweep() == [folder]
    assert (empty_home / "tmp" / "notes").read_text() == "of an operator"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder that is another user's")
def test_sweeping_goes_on_when_a_folder_is_another_user_s() -> None:
    folder = driver_folders.make("run_sql")
    (folder / ".driver").touch()
    os.chown(folder, 65534, 65534)
    sweep = "from include.spark import driver_folders; print(driver_folders.sweep())"
    # Root that may open its own files alone.
    limited = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    swept = subprocess.run(
        [*limited, sys.executable, "-c", sweep], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert swept.stdout == "[]\n", swept.stderr
    assert driver_folders.sweep() == [folder]
