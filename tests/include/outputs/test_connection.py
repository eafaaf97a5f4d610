"""Where an output's rows go when it names no connection: no database."""

from __future__ import annotations

import pytest

from include.outputs.connection import SERVING, database_of
from include.settings import settings


def test_tls_is_that_of_tidemarks_own_postgresql_when_no_connection_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    url = (
        "postgresql://tidemark:secret@db.example.net?sslmode=verify-full&sslrootcert=/etc/a%20ca.pem&connect_timeout=5"
    )
    monkeypatch.setenv("TIDEMARK_DATABASE_URL", url)
    settings.cache_clear()
    try:
        database = database_of("")
    finally:
        settings.cache_clear()
    assert (database.host, database.port, database.name) == ("db.example.net", 5432, SERVING)
    assert database.parameters == {"sslmode": "verify-full", "sslrootcert": "/etc/a ca.pem"}
