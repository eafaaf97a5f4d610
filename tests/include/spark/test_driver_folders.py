"""A driver's temporary folder lives as long as the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.settings import settings
from include.spark import driver_folders
from tests.conftest import REPOSITORY, end_of

DRIVER = "from include.spark import driver_folders; driver_folders.hold(); print('held', flush=True); input()"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TIDEMARK_HOME", str(tmp_path))
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


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


def test_nothing_is_held_when_a_driver_was_given_no_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(driver_folders.VARIABLE, raising=False)
    driver_folders.hold()
    assert not (home / "tmp").exists()
    assert driver_folders.sweep() == []
