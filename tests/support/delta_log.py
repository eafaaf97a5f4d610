"""A Delta table as its log and its files say, read with the standard library and pyarrow alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq


def actions(table: Path, version: int | None = None) -> Iterator[tuple[str, Any]]:
    """Return the actions of the commits up to the version: kind and content, in order."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        if version is None or int(commit.stem) <= version:
            for line in filter(None, commit.read_text(encoding="utf-8").split("\n")):
                yield from json.loads(line).items()


def latest_version(table: Path) -> int:
    return max(int(commit.stem) for commit in (table / "_delta_log").glob("*.json"))


def read_delta(table: Path, version: int | None = None) -> pa.Table:
    """The rows of a version, with the column `interval` that the table is partitioned by."""
    active: dict[str, dict[str, Any]] = {}
    for kind, action in actions(table, version):
        if kind == "add":
            assert not action.get("deletionVector")
            active[action["path"]] = action["partitionValues"]
        elif kind == "remove":
            del active[action["path"]]
    parts = []
    for path, partition in active.items():
        rows = pq.ParquetFile(table / unquote(path)).read()
        rows = rows.select([name for name in rows.column_names if name != "interval"])
        parts.append(rows.append_column("interval", pa.array([partition["interval"]] * len(rows), pa.string())))
    return pa.concat_tables(parts, promote_options="default")


def validated(rows: pa.Table) -> pa.Table:
    """The rows that an interval delivered."""
    return rows.filter(rows["interval"].is_valid())
