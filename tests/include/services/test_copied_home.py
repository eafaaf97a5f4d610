"""A home that was copied while its services ran, or moved: whose services its state files name."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg2
import pytest

from include.errors import UsageError
from include.services import copies, postgres, supervisor
from include.services.process import ServiceStatus, read_state, start_detached, write_started, write_state
from include.settings import settings
from tests.conftest import Home, SetSettings, lives, settings_of

ADDRESS = "127.0.0.1:15001"

Use = Callable[[Path], None]


@pytest.fixture
def use(set_settings: SetSettings) -> Use:
    """Makes a folder the home of this process."""
    return lambda home: set_settings(TIDEMARK_HOME=str(home))


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


def forbidden(folder: Path, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of paths that this user may not call of a folder and all in it; root may call any."""

    def call(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.is_relative_to(folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return method(path, *args, **kwargs)

    return call


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


def test_copy_of_a_ledger_does_not_start_where_it_would_share_a_lake_or_a_broker_with_its_original(
    home: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state("postgres", address=ADDRESS, home=str(home), data=str(home / "postgres"))
    copies.check_shares_nothing()
    copy = copied(home)
    use(copy)
    copies.check_shares_nothing()
    monkeypatch.setenv("TIDEMARK_LAKE", "s3a://bucket/tidemark")
    use(copy)
    with pytest.raises(UsageError, match=f"{copy} is a copy of {home}.*: both would use TIDEMARK_LAKE") as refused:
        postgres.up()
    assert f"{copy}/services/postgres.json" in refused.value.remedy
    write_state("postgres", **{**read_state("postgres"), "home": str(copy)})
    copies.check_shares_nothing()
    # As of the original itself, and of a home that never had a ledger.
    use(home)
    copies.check_shares_nothing()
    (home / "services" / "postgres.json").unlink()
    copies.check_shares_nothing()


@pytest.mark.parametrize("unreadable", ["", "services/kafka.json"], ids=["home", "state"])
def test_copy_of_a_home_does_not_use_its_services_when_the_original_may_not_be_read(
    home: Path, broker: psutil.Process, use: Use, monkeypatch: pytest.MonkeyPatch, unreadable: str
) -> None:
    """The copy is another user's, made by an administrator."""
    use(copied(home))
    for name in ("stat", "read_text"):
        monkeypatch.setattr(Path, name, forbidden(home / unreadable, getattr(Path, name)))
    for used in (lambda: settings().kafka_address(), lambda: supervisor.status(), lambda: supervisor.down()):
        with pytest.raises(UsageError, match=f"is a copy of {home}, and has that one's kafka") as error:
            used()
        owner = home.parent.owner()
        assert error.value.remedy.startswith(f"TIDEMARK_HOME={home} to use it, as {owner}")
        assert f"have {owner} stop its services" in error.value.remedy
    assert lives(broker)
    # With a service of its own, nothing is asked of the original.
    write_started("kafka", psutil.Process(), address=ADDRESS)
    assert settings().kafka_address() == ADDRESS


def test_home_of_another_user_is_refused_and_the_user_named_when_its_state_may_not_be_read(
    home: Path, broker: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "read_text", forbidden(home / "services", Path.read_text))
    with pytest.raises(UsageError, match=r"kafka\.json: Permission denied") as error:
        settings().kafka_address()
    assert error.value.remedy == f"run it as {home.owner()}"


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


def test_airflow_is_told_to_run_from_another_checkout_when_this_one_asks_for_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SimpleNamespace(status=lambda: ServiceStatus("http://airflow", True, os.getpid()))
    monkeypatch.setitem(supervisor.SERVICES, "airflow", running)
    monkeypatch.setattr(supervisor.airflow, "ensure_pool", lambda _: None)
    monkeypatch.setattr(supervisor, "unlike_airflow", str)
    said: list[str] = []
    write_started("airflow", psutil.Process(), address="http://airflow")
    supervisor.up(["airflow"], said.append)
    assert not said
    write_state("airflow", **{**read_state("airflow"), "checkout": "/srv/former"})
    supervisor.up(["airflow"], said.append)
    assert said == ["airflow runs from the checkout /srv/former; for this one: ./tidemark down airflow, then up again"]


@pytest.mark.services
@pytest.mark.parametrize(("host", "minutes"), [("elsewhere", 0), ("elsewhere", 2), (socket.gethostname(), 0)])
def test_airflow_is_refused_when_one_of_another_host_works_on_its_database(
    postgres: Home, host: str, minutes: int
) -> None:
    with settings_of(postgres, TIDEMARK_DATABASE_URL=read_state("postgres")["address"]):
        copies.check_no_other_airflow()
        with psycopg2.connect(settings().database_uri("airflow")) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE job (hostname text, job_type text, state text, latest_heartbeat timestamptz)")
            heard = f"now() - interval '{minutes} min'"
            cursor.execute(f"INSERT INTO job VALUES ('{host}', 'SchedulerJob', 'running', {heard})")
        try:
            if host == "elsewhere" and not minutes:
                with pytest.raises(UsageError, match="Airflow runs on elsewhere with the database at ") as refused:
                    copies.check_no_other_airflow()
                assert refused.value.remedy.startswith("end that one there by ./tidemark down airflow, ")
            else:
                copies.check_no_other_airflow()
        finally:
            with psycopg2.connect(settings().database_uri("airflow")) as connection, connection.cursor() as cursor:
                cursor.execute("DROP TABLE job")
