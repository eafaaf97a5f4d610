"""The embedded PostgreSQL's files, whoever starts it; a server of one's own, whatever its user may do."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy.engine import make_url

from include.errors import ServiceUnreachable, UsageError
from include.services import postgres as service
from include.services.process import start_detached
from tests.conftest import Home, SetSettings, end_of, wait_for


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another account")
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_server_reads_its_configuration_when_root_keeps_files_to_itself(tmp_path: Path, umask: int) -> None:
    (tmp_path / "tidemark.conf").write_text("port = 1")
    before = os.umask(umask)
    try:
        service._write_configuration(tmp_path, 2, "nobody")
    finally:
        os.umask(before)
    file = tmp_path / "tidemark.conf"
    assert "port = 2\n" in file.read_text()
    status = file.stat()
    assert (pwd.getpwuid(status.st_uid).pw_name, status.st_mode & 0o777) == ("nobody", 0o600)


def test_server_is_not_started_when_its_user_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As initdb refuses it, after its folder was made."""
    monkeypatch.setattr(os, "geteuid", lambda: 2**31 - 12345)
    with pytest.raises(UsageError, match="has no entry in /etc/passwd, without which PostgreSQL does not start"):
        service.up()


def test_server_is_not_started_when_one_that_cannot_be_seen_uses_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_home: Path
) -> None:
    monkeypatch.setattr(service, "_ENDING", 0.2)
    data = tmp_path / "postgres"
    with service._locked(data) as descriptor:
        server = start_detached("postgres", ["sleep", "600"], descriptors=[descriptor])
    # As in another container, where its pid, its folder and its port mean nothing.
    with pytest.raises(ServiceUnreachable, match=r"uses .*postgres — where it was started"), service._locked(data):
        pass
    # As one that outlives a killed server, or whose record in the home is lost.
    with monkeypatch.context() as patch:
        patch.setattr(service, "_servers_of", lambda _: [server])
        with pytest.raises(ServiceUnreachable, match=f"end process {server.pid}"), service._locked(data):
            pass
    server.kill()
    server.wait(10)
    with service._locked(data):
        pass


def test_nothing_is_started_and_no_password_made_when_the_state_file_of_data_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    monkeypatch.setattr(service.process, "start_detached", pytest.fail)
    set_settings(TIDEMARK_HOME=str(tmp_path))
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "PG_VERSION").write_text("16\n")
    with pytest.raises(UsageError, match=r"services/postgres\.json is gone, which alone has their password — put a"):
        service.up()
    assert not (tmp_path / "services" / "postgres.json").exists()


def test_refusal_is_told_as_it_is_when_no_right_to_a_database_is_missing(
    monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings
) -> None:
    told = 'FATAL:  no pg_hba.conf entry for host "10.0.0.5", user "t", database "postgres", no encryption'

    def refuse(address: str) -> None:
        raise psycopg2.OperationalError(told)

    monkeypatch.setattr(service, "_connect", refuse)
    set_settings(TIDEMARK_DATABASE_URL="postgresql://t:t@db.example.net:5432")
    with pytest.raises(ServiceUnreachable, match=r"at db\.example\.net:5432: FATAL: +no pg_hba\.conf entry"):
        service.prepare_databases()


def ask(home: Home, *statements: str) -> list[tuple[object, ...]]:
    """Return the rows of the last statement, as the administrator of the server sees them in `postgres`."""
    with contextlib.closing(psycopg2.connect(home.database, dbname="postgres")) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def guest(postgres: Home) -> Iterator[str]:
    """The server's address with a user who may read and write, and no more."""
    password = make_url(postgres.database).password
    ask(postgres, f"CREATE ROLE guest LOGIN PASSWORD '{password}' IN ROLE pg_read_all_data, pg_write_all_data")
    yield postgres.database.replace("//tidemark:", "//guest:")
    ask(postgres, "DROP ROLE guest")


@pytest.mark.services
def test_server_answers_and_is_prepared_when_its_user_has_no_right_to_the_database_postgres(
    postgres: Home, guest: str
) -> None:
    ask(postgres, "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
    try:
        found = postgres.json("status", "--json", TIDEMARK_DATABASE_URL=guest)["services"]["postgres"]
        assert (found["healthy"], found["external"]) == (True, True)
        postgres.run("setup-database", TIDEMARK_DATABASE_URL=guest)
    finally:
        ask(postgres, "GRANT CONNECT ON DATABASE postgres TO PUBLIC")


@pytest.mark.services
def test_missing_right_is_named_when_databases_or_tables_cannot_be_made(postgres: Home, guest: str) -> None:
    try:
        ask(postgres, "DROP DATABASE serving WITH (FORCE)")
        refused = postgres.run("setup-database", expect=64, TIDEMARK_DATABASE_URL=guest).stderr
        assert "the user guest may not create databases" in refused
        assert "CREATE DATABASE … OWNER guest" in refused
        ask(postgres, "CREATE DATABASE serving", "DROP DATABASE ledger WITH (FORCE)")
        ask(postgres, "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
        refused = postgres.run("setup-database", expect=64, TIDEMARK_DATABASE_URL=guest).stderr
        assert 'permission denied for database "postgres"' in refused
        assert "CREATE DATABASE … OWNER guest" in refused
        ask(postgres, "GRANT CONNECT ON DATABASE postgres TO PUBLIC", "CREATE DATABASE ledger")
        refused = postgres.run("setup-database", expect=64, TIDEMARK_DATABASE_URL=guest).stderr
        assert "this user may not make the ledger's tables: permission denied for schema public" in refused
    finally:
        # The other tests have the same server.
        ask(postgres, "GRANT CONNECT ON DATABASE postgres TO PUBLIC")
        postgres.run("setup-database")


@pytest.mark.services
def test_databases_are_made_once_when_two_hosts_prepare_them_at_once(postgres: Home) -> None:
    ask(postgres, "DROP DATABASE serving WITH (FORCE)")
    begun: list[subprocess.Popen[str]] = []
    try:
        with contextlib.closing(psycopg2.connect(postgres.database, dbname="postgres")) as held:
            # Both find that it is missing before either can make it.
            held.cursor().execute("LOCK TABLE pg_database IN SHARE MODE")
            begun += [postgres.start("setup-database") for _ in range(2)]
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ '^CREATE DATABASE'"
            )
            wait_for("both to wait", lambda: ask(postgres, waiting) == [(2,)], 60)
        told = [each.communicate(timeout=60) for each in begun]
        assert [each.returncode for each in begun] == [0, 0], told
    finally:
        for each in begun:
            end_of(each)
    assert ask(postgres, "SELECT count(*) FROM pg_database WHERE datname = 'serving'") == [(1,)]
