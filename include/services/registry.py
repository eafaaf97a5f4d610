"""The schema registry: a configured Confluent-compatible one, or the embedded Apicurio on loopback.

The embedded registry keeps its schemas in the database `registry` of the ledger's PostgreSQL server.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import psycopg2

from include.errors import ServiceUnreachable, TidemarkError, one_line
from include.services import postgres, process
from include.services.java import escaped, jdbc_url
from include.services.process import ServiceStatus
from include.settings import settings, write_private
from include.spark.jars import java, registry_application

HEAP = "256m"

DATABASE = "registry"

_PROPERTIES = """\
quarkus.http.host=127.0.0.1
quarkus.http.port={port}
quarkus.http.access-log.enabled=false
quarkus.log.level=WARN
apicurio.storage.kind=sql
apicurio.storage.sql.kind=postgresql
apicurio.datasource.url={url}
apicurio.datasource.username={user}
apicurio.datasource.password={password}
apicurio.datasource.jdbc.initial-size=1
apicurio.datasource.jdbc.min-size=1
apicurio.datasource.jdbc.max-size=8
"""


def up() -> None:
    """Start the registry on its last port if that is free; download it first if needed. Raise ServiceUnreachable."""
    application = registry_application(lambda line: print(f"tidemark: {line}", file=sys.stderr, flush=True))
    _create_database()
    port = process.free_port(process.read_state("registry").get("port"))
    started = process.start_detached("registry", _command(application, _write_properties(port)))
    address = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    process.write_started("registry", started, address=address, port=port)
    process.wait_until("registry", lambda: _answers(address), started, 120)


def _write_properties(port: int) -> Path:
    """Write the configuration, which holds the database's password, to a 0600 file and return its path."""
    database = settings().database(DATABASE)
    path = settings().home / "services" / "registry.properties"
    filled = _PROPERTIES.format(
        port=port,
        url=_literal(jdbc_url(settings(), DATABASE)),
        user=_literal(database.username),
        password=_literal(database.password),
    )
    write_private(path, filled)
    return path


def _literal(value: object) -> str:
    """Return a value in which the registry, once Java has read it, finds no expression such as `${name}`."""
    return escaped(str(value or "").replace("$", "\\$"))


def _command(application: Path, properties: Path) -> list[str]:
    options = ["-Xms64m", f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.timezone=UTC"]
    runner = next(application.glob("*-runner.jar"))
    return [java(), *options, f"-Dsmallrye.config.locations={properties}", "-jar", str(runner)]


def _create_database() -> None:
    try:
        with contextlib.closing(postgres.open_server(settings().database_uri("postgres"))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
                if cursor.fetchone() is None:
                    cursor.execute(f"CREATE DATABASE {DATABASE}")
    except psycopg2.Error as error:
        raise ServiceUnreachable(
            f"PostgreSQL, where the registry keeps its schemas: {one_line(str(error))}",
            remedy="./tidemark up postgres; or create the database `registry` and give the user access",
        ) from error


def _answers(address: str) -> bool:
    from include.schemas.registry import SchemaRegistry

    try:
        SchemaRegistry(address).subjects()
    except TidemarkError:
        return False
    return True


def shown_address() -> str:
    """Return the registry's URL without user and password. Raise ServiceUnreachable when there is none."""
    from include.schemas.registry import without_user

    return without_user(settings().registry())


def status() -> ServiceStatus:
    """Return address (without user and password) and health of the registry; a healthy one lists its subjects."""
    current = settings()
    if current.registry_url is not None:
        healthy = _answers(current.registry().render_as_string(hide_password=False))
        return ServiceStatus(shown_address(), healthy, None, external=True)
    state = process.read_state("registry")
    server = process.running(state)
    healthy = server is not None and _answers(state["address"])
    return ServiceStatus(state.get("address", ""), healthy, server.pid if server else None)


def down() -> None:
    """Stop the embedded registry if it is running."""
    process.stop_service("registry")
