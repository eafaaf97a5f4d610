"""Files for Java's services: Java reads from them what was written, whatever letters it has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2
import pytest
from sqlalchemy.engine import make_url

from include.services.java import escaped
from include.spark.jars import java, pyspark_home
from tests.conftest import Home

VALUES = ("täst", r"a\b", " x", "x ", "", "=:#!", "\tx", "two\nlines\r", "日本", "😀", r"\u0041", "${c}\\", r"C:\new")

ODD = r" a\b${c}ü="
"""A password with a bit of everything."""


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """Java, with nothing but its own library."""
    from py4j.java_gateway import JavaGateway

    [jar] = (pyspark_home() / "jars").glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(jarpath=str(jar), java_path=java(), die_on_exit=True)
    yield gateway.jvm
    gateway.shutdown()


@pytest.mark.parametrize("value", VALUES)
def test_java_reads_the_value_when_it_has_any_letters(jvm: Any, tmp_path: Path, value: str) -> None:
    file = tmp_path / "some.properties"
    file.write_text(f"before=1\nkey={escaped(value)}\nafter=2\n")
    read = jvm.java.util.Properties()
    read.load(jvm.java.io.FileInputStream(str(file)))
    assert {name: read.getProperty(name) for name in read.stringPropertyNames()} == {
        "before": "1",
        "key": value,
        "after": "2",
    }


@pytest.fixture(scope="module")
def odd(postgres: Home) -> str:
    """The database's address with a user who has an odd password."""
    with contextlib.closing(psycopg2.connect(postgres.database, dbname="postgres")) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("CREATE ROLE odd SUPERUSER LOGIN PASSWORD %s", (ODD,))
    url = make_url(postgres.database)
    return f"postgresql://odd:{quote(ODD, safe='')}@{url.host}:{url.port}"


@pytest.mark.services
def test_catalog_is_created_when_the_password_has_odd_letters(postgres: Home, odd: str) -> None:
    with contextlib.closing(psycopg2.connect(postgres.database, dbname="postgres")) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE catalog WITH (FORCE)")
    postgres.run("setup-database", TIDEMARK_DATABASE_URL=odd)
    assert postgres.rows("catalog", 'SELECT count(*) FROM "PARTITIONS"') == [(0,)]


@pytest.mark.services
def test_registry_keeps_its_schemas_in_postgresql_when_the_password_has_odd_letters(postgres: Home, odd: str) -> None:
    postgres.run("up", "registry", TIDEMARK_DATABASE_URL=odd)
    try:
        assert postgres.services["registry"]["healthy"]
        made = "SELECT count(*) > 0 FROM pg_tables WHERE tablename = 'artifacts'"
        assert postgres.rows("registry", made) == [(True,)]
    finally:
        postgres.run("down", "registry")


@pytest.mark.services
def test_broker_starts_when_its_home_has_letters_outside_of_ascii(tmp_path: Path) -> None:
    home = Home(tmp_path / "täst")
    try:
        home.run("up", "kafka")
        assert home.services["kafka"]["healthy"]
        assert (home.path / "kafka" / "meta.properties").exists()
    finally:
        home.end()
