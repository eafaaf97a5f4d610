"""What PostgreSQL serves, asked directly."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg2

from include.settings import settings


def asked(statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Execute a statement in the database of served views and return its rows; times are in UTC."""
    address = settings().database_uri("serving")
    with closing(psycopg2.connect(address, options="-c timezone=UTC")) as connection, connection:
        cursor = connection.cursor()
        cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []
