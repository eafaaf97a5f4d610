"""Connections by name: where a database is, and as whom it is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from include.errors import UsageError
from include.settings import read_properties, settings

Kind = Literal["postgresql", "mariadb"]

SERVING = "serving"
"""The database of Tidemark's own PostgreSQL that is used when no connection is named."""

_KINDS: Mapping[str, Kind] = {"postgresql": "postgresql", "mariadb": "mariadb", "mysql": "mariadb"}

_PORTS: Mapping[Kind, int] = {"postgresql": 5432, "mariadb": 3306}

_PARAMETERS: Mapping[Kind, frozenset[str]] = {
    "postgresql": frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"}),
    "mariadb": frozenset({"sslMode", "serverSslCert", "permitMysqlScheme"}),
}

_MODES = ("disable", "trust", "verify-ca", "verify-full")


@dataclass(frozen=True)
class Database:
    """A database, and as whom it is reached."""

    kind: Kind
    host: str
    port: int
    name: str
    user: str
    password: str = field(repr=False)
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return f"{'PostgreSQL' if self.kind == 'postgresql' else 'MariaDB'} at {self.host}:{self.port}, {self.name}"


def database_of(connection: str) -> Database:
    """Return the database of a declared connection; for an empty one, `serving` of Tidemark's own PostgreSQL.

    Raises UsageError when the settings do not have it, or its URL asks for what an output cannot do.
    """
    if not connection:
        own = settings().database(SERVING)
        host, port = own.host or "", own.port or _PORTS["postgresql"]
        tls = {name: str(value) for name, value in own.query.items() if name in _PARAMETERS["postgresql"]}
        return Database("postgresql", host, port, SERVING, own.username or "", str(own.password or ""), tls)
    options = jdbc_options(connection)
    url = urlsplit(options["url"].removeprefix("jdbc:"))
    kind, name = _KINDS.get(url.scheme), url.path.removeprefix("/")
    if kind is None or not url.hostname or not name or not options["url"].startswith("jdbc:"):
        raise UsageError(
            f"the URL of the connection {connection} names no database that an output can write",
            remedy=f"{connection}.url=jdbc:postgresql://host:5432/database, or jdbc:mariadb://host:3306/database",
        )
    parameters = dict(parse_qsl(url.query, keep_blank_values=True))
    user, password = (options.get(each) or parameters.pop(each, "") for each in ("user", "password"))
    if unknown := sorted(parameters.keys() - _PARAMETERS[kind] - {"user", "password"}):
        raise UsageError(
            f"the URL of the connection {connection} has the parameter {unknown[0]!r}, which outputs do not know",
            remedy=f"they know {', '.join(sorted(_PARAMETERS[kind]))}",
        )
    if (mode := parameters.get("sslMode", "trust")) not in _MODES:
        raise UsageError(
            f"the URL of the connection {connection} has sslMode={mode}", remedy=f"one of {', '.join(_MODES)}"
        )
    return Database(kind, url.hostname, url.port or _PORTS[kind], name, user, password, parameters)


def jdbc_options(connection: str) -> dict[str, str]:
    """Return the options of a declared connection. Raise UsageError when the settings do not have it."""
    begins = f"{connection}."
    options = {
        key.removeprefix(begins): value
        for key, value in read_properties(settings().jdbc_properties, "TIDEMARK_JDBC_PROPERTIES").items()
        if key.startswith(begins)
    }
    if "url" not in options:
        raise UsageError(
            f"the connection {connection} has no {connection}.url",
            remedy="name a 0600 file with it, its user and password in TIDEMARK_JDBC_PROPERTIES",
        )
    return options
