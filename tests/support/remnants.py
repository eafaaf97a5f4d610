"""Search of everything that lies in a home for a text: every file of the lake, and every row of databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fastavro
import psycopg2
import pyarrow.parquet as pq
from psycopg2 import sql

from tests.conftest import Home


def in_files(folder: Path, text: str) -> Iterator[str]:
    """Files below a folder that hold the text: in their bytes, in their names, or in their columns, decompressed."""
    for path in sorted(folder.rglob("*")):
        if text in path.name:
            yield f"{path}: its name"
        if not path.is_file():
            continue
        if text.encode() in path.read_bytes():
            yield f"{path}: its bytes"
        elif path.suffix == ".parquet" and text in repr(pq.ParquetFile(path).read().to_pylist()):
            yield f"{path}: its columns"
        elif path.suffix == ".avro":
            with path.open("rb") as file:
                if text in repr(list(fastavro.reader(file))):
                    yield f"{path}: its entries"


def in_database(home: Home, text: str, name: str = "ledger") -> list[str]:
    """Tables of a database with a row that holds the text."""
    found = []
    with psycopg2.connect(home.database.replace("/ledger", f"/{name}")) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_stat_user_tables ORDER BY 1")
        for (table,) in cursor.fetchall():
            named = sql.Identifier(table)
            wanted = sql.SQL("SELECT count(*) FROM {} AS each WHERE each::text LIKE %s").format(named)
            cursor.execute(wanted, [f"%{text}%"])
            if (row := cursor.fetchone()) and row[0]:
                found.append(table)
    return found
