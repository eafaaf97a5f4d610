"""A home that was copied while its services ran, or moved: whose services its state files name."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from include.errors import UsageError
from include.services import supervisor
from include.services.process import read_state, start_detached, write_started, write_state
from include.settings import settings
from tests.conftest import lives

ADDRESS = "127.0.0.1:15001"

Use = Callable[[Path], None]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Use]:
    """Makes a folder the home of this process."""

    def change(home: Path) -> None:
        monkeypatch.setenv("TIDEMARK_HOME", str(home))
        settings.cache_clear()

    yield change
    settings.cache_clear()


@pytest.fixture
def home(tmp_path: Path, use: Use) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    use(path)
    return path


@pytest.fixture
def broker(home: Path) -> Iterator[psutil.Process]:
    """A process that the home has started as its broker."""
    started = start_detached("kafka", [sys.executable, "-c", "import time; time.sleep(600)"])
    write_started("kafka", started, address=ADDRESS, data=str(home / "kafka"))
    yield started
    with suppress(psutil.NoSuchProcess):
        started.kill()
    psutil.wait_procs([started], timeout=10)


def copied(home: Path) -> Path:
    shutil.copytree(home, copy := home.with_name("copy"), ignore=shutil.ignore_patterns("logs"))
    return copy


@pytest.mark.parametrize("forgotten", ["", "home"], ids=["", "state of an older version"])
def test_copy_of_a_home_neither_uses_nor_stops_the_services_of_the_original(
    home: Path, broker: psutil.Process, use: Use, forgotten: str
) -> None:
    write_state("kafka", **{name: value for name, value in read_state("kafka").items() if name != forgotten})
    assert settings().kafka_address() == ADDRESS
    copy = copied(home)
    use(copy)
    for used in (
        lambda: settings().kafka_address(),
        lambda: supervisor.status(),
        lambda: supervisor.up(["kafka"]),
        lambda: supervisor.down(),
    ):
        with pytest.raises(UsageError, match=f"{copy} is a copy of {home}, and has that one's kafka"):
            used()
    assert lives(broker)
    use(home)
    supervisor.down(["kafka"])
    assert not lives(broker)


def test_copy_of_a_home_starts_its_own_service_before_it_uses_one_when_the_original_does_not_run(
    home: Path, broker: psutil.Process, use: Use
) -> None:
    supervisor.down(["kafka"])
    use(copied(home))
    # The original's broker takes its last port again.
    with pytest.raises(UsageError, match="is a copy of"):
        settings().kafka_address()
    assert supervisor.status()["kafka"].pid is None
    supervisor.down()
    with pytest.raises(UsageError, match="is a copy of"):
        settings().kafka_address()
    write_started("kafka", psutil.Process(), address=ADDRESS)
    assert settings().kafka_address() == ADDRESS


@pytest.mark.parametrize("is_taken", [False, True], ids=["gone", "taken"])
def test_home_that_was_moved_stops_its_services(home: Path, broker: psutil.Process, use: Use, is_taken: bool) -> None:
    home.rename(moved := home.with_name("moved"))
    if is_taken:
        use(home)
        write_started("kafka", psutil.Process(), address="127.0.0.1:15002")
    use(moved)
    assert settings().kafka_address() == ADDRESS
    supervisor.down(["kafka"])
    assert not lives(broker)


def test_home_is_its_own_when_it_is_reached_by_a_link(home: Path, broker: psutil.Process, use: Use) -> None:
    (link := home.with_name("link")).symlink_to(home)
    use(link)
    assert read_state("kafka")["pid"] == broker.pid
