"""How Java's clients reach PostgreSQL: seen by the JDBC driver itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from include.ledger.connection import LOCK_SECONDS, SILENT_SECONDS, STATEMENT_SECONDS
from include.services import registry
from include.services.java import jdbc_url
from include.settings import Settings, settings
from tests.conftest import Home, SetSettings

pytestmark = pytest.mark.services


def asked(spark: SparkSession, current: Settings, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query that Java's driver sends."""
    user = current.database("catalog")
    reader = spark.read.format("jdbc").option("driver", "org.postgresql.Driver").option("query", query)
    reader = reader.option("user", user.username or "").option("password", str(user.password or ""))
    return [tuple(row) for row in reader.option("url", jdbc_url(current, "catalog")).load().collect()]


def test_server_ends_what_a_vanished_or_stopped_client_holds(postgres: Home, spark: SparkSession) -> None:
    wanted = {
        "lock_timeout": LOCK_SECONDS * 1000,
        "statement_timeout": STATEMENT_SECONDS * 1000,
        "tcp_user_timeout": SILENT_SECONDS * 1000,
        "tcp_keepalives_idle": SILENT_SECONDS // 3,
    }
    names = ", ".join(f"'{name}'" for name in wanted)
    told = asked(spark, settings(), f"SELECT name, CAST(setting AS int) FROM pg_settings WHERE name IN ({names})")
    assert dict(told) == wanted


def test_connection_is_refused_when_the_url_demands_tls_and_the_server_has_none(
    postgres: Home, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = settings().database_uri("ledger")
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", f"{url}?sslmode=disable")
    assert asked(spark, settings.__wrapped__(), "SELECT 1") == [(1,)]
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", f"{url}?sslmode=require")
    with pytest.raises(PySparkException, match=r"FAILED_JDBC\.CONNECTION"):
        asked(spark, settings.__wrapped__(), "SELECT 1")


def test_address_is_in_brackets_when_it_is_of_ip_version_6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TIDEMARK_DATABASE_URL", "postgresql://someone:secret@[::1]:5433/ledger?sslmode=require&options=x"
    )
    url = jdbc_url(settings.__wrapped__(), "catalog", currentSchema="live")
    assert url.startswith("jdbc:postgresql://[::1]:5433/catalog?")
    assert "sslmode=require" in url
    assert "currentSchema=live" in url
    assert "secret" not in url
    assert "options=x" not in url


def test_registry_demands_tls_when_the_url_does(set_settings: SetSettings, tmp_path: Path) -> None:
    set_settings(
        TIDEMARK_HOME=str(tmp_path),
        TIDEMARK_DATABASE_URL="postgresql://someone:secret@db?sslmode=verify-full&sslrootcert=/c.pem",
    )
    written = registry._write_properties(8080).read_text()
    (url,) = re.findall(r"^apicurio\.datasource\.url=jdbc:(.*)$", written, re.MULTILINE)
    asked = dict(parse_qsl(urlsplit(url).query))
    assert urlsplit(url)[:3] == ("postgresql", "db:5432", "/registry")
    assert (asked["sslmode"], asked["sslrootcert"]) == ("verify-full", "/c.pem")


def test_javas_authorities_are_trusted_when_the_url_says_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", "postgresql://someone:secret@db:5432/ledger?sslrootcert=system")
    asked = dict(parse_qsl(urlsplit(jdbc_url(settings.__wrapped__(), "catalog").removeprefix("jdbc:")).query))
    assert "sslrootcert" not in asked
    assert (asked["sslmode"], asked["sslfactory"]) == ("verify-full", "org.postgresql.ssl.DefaultJavaSSLFactory")
