"""DuckDB with its Iceberg extension, in an environment of its own: PyPI has the extension for an older DuckDB only."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.tool_environment import tool_environment

_QUERY = """
import json, sys, duckdb
from importlib.resources import files
connection = duckdb.connect()
for name in ("avro", "iceberg"):
    (extension,) = files(f"duckdb_extension_{name}").glob("extensions/*/*.duckdb_extension")
    connection.execute(f"LOAD '{extension}'")
connection.execute("SET TimeZone = 'UTC'")
found = connection.execute(sys.argv[1])
names = [column[0] for column in found.description]
print(json.dumps([dict(zip(names, row)) for row in found.fetchall()], default=str))
"""


@cache
def _python() -> Path:
    return tool_environment("duckdb-iceberg") / "python"


def query(statement: str) -> list[dict[str, Any]]:
    """Return DuckDB's answer by column; values without a JSON type are text."""
    answer = subprocess.run([_python(), "-c", _QUERY, statement], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    rows: list[dict[str, Any]] = json.loads(answer.stdout)
    return rows
