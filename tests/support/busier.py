"""A past in which every interval had far more rows: the present ones are unusual, and only that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

import psycopg2

from include.ledger.validation.usual import MOST
from tests.conftest import Home

_PAST = """
INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state)
  SELECT -h, %(pipeline)s, start, start + interval '1 hour', 'test', 'registered'
    FROM (SELECT h, %(before)s - interval '30 minutes' - h * interval '1 hour' AS start
      FROM generate_series(1, %(count)s) h) hours;
INSERT INTO attempts (id, interval_id, run_by, code_version, source)
  SELECT id, id, 'test', 'v', 'kafka' FROM intervals WHERE id < 0;
INSERT INTO revisions (id, table_name, table_partition, interval_id, attempt_id, location, rows, content_hash,
    code_version, state, files)
  SELECT 'r' || id, %(pipeline)s, 'long/ago=' || id, id, id, 'file:///x', 100000, 'h', 'v', 'registered', '{}'
    FROM intervals WHERE id < 0;
"""


@contextmanager
def busier_before(home: Home, pipeline: str, before: datetime) -> Iterator[None]:
    """As many registered hours as are looked back at, each with 100,000 rows; gone when the block ends.

    They begin at half past, where the tests' own hours do not.
    """
    _change(home, _PAST, pipeline=pipeline, before=before, count=MOST)
    try:
        yield
    finally:
        _change(home, "DELETE FROM intervals WHERE id < 0")


def _change(home: Home, statement: str, **values: object) -> None:
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        cursor.execute(statement, values)
