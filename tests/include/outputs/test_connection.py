"""Where an output's rows go when it names no connection: no database."""

from __future__ import annotations

from include.outputs.connection import SERVING, database_of
from tests.conftest import SetSettings


def test_tls_is_that_of_tidemarks_own_postgresql_when_no_connection_is_named(set_settings: SetSettings) -> None:
    url = (
        "postgresql://tidemark:secret@db.example.net?sslmode=verify-full&sslrootcert=/etc/a%20ca.pem&connect_timeout=5"
    )
    set_settings(TIDEMARK_DATABASE_URL=url)
    database = database_of("")
    assert (database.host, database.port, database.name) == ("db.example.net", 5432, SERVING)
    assert database.parameters == {"sslmode": "verify-full", "sslrootcert": "/etc/a ca.pem"}
