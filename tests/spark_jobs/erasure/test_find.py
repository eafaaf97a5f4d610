"""The search for keys in rows: which record it is, where coordinates alone name two."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.pipelines import load_pipeline
from include.pipelines.spec import Json
from spark_jobs.erasure.find import find_subject

pytestmark = pytest.mark.spark

KEYS = ['Zq7 "O\'Neil" 100% é/=', "Zq7"]


def file_of(folder: Path, name: str, *users: str) -> str:
    """A file of one record a user, at the offsets from 0."""
    columns = {
        "kafka_topic": ["wiki-changes"] * len(users),
        "kafka_partition": pa.array([0] * len(users), pa.int32()),
        "kafka_offset": pa.array(range(len(users)), pa.int64()),
        "kafka_element": pa.array([0] * len(users), pa.int32()),
        "user": list(users),
    }
    pq.write_table(pa.table(columns), folder / name)
    return f"file://{folder / name}"


def files(topic_id: str, *paths: str) -> dict[str, Any]:
    return {"topic_ids": {"wiki-changes": topic_id}, "paths": list(paths)}


def test_record_has_the_id_of_its_topic_when_another_incarnation_has_one_at_its_offset(
    spark: Any, tmp_path: Path
) -> None:
    old = file_of(tmp_path, "old.parquet", "somebody", KEYS[0], KEYS[1])
    new = file_of(tmp_path, "new.parquet", KEYS[0], "somebody else", "Zq70")
    again = file_of(tmp_path, "again.parquet", "somebody", KEYS[0], KEYS[1])
    asked = {
        "keys": KEYS,
        "columns": ["user"],
        "landing": [files("old", old), files("new", new)],
        "registered": [files("old", again)],
        "replayed": [],
        "quarantined": [],
    }
    found = find_subject(spark, load_pipeline("wiki_changes"), asked)
    assert sorted(found["landing"]) == [
        ["wiki-changes", "new", 0, 0],
        ["wiki-changes", "old", 0, 1],
        ["wiki-changes", "old", 0, 2],
    ]
    assert sorted(found["registered"]) == [["wiki-changes", "old", 0, 1], ["wiki-changes", "old", 0, 2]]
    assert (found["rows"], found["rows_of_others"]) == (3, 0)


def test_record_is_found_by_an_unknown_field_when_its_row_is_older_than_the_column(spark: Any, tmp_path: Path) -> None:
    path = file_of(tmp_path, "before.parquet", "somebody", "somebody", "somebody")
    unknown = [json.dumps({"asked_by": each, "said": KEYS[0]}) for each in (KEYS[0], "somebody")]
    rows = pq.read_table(path).append_column("unknown_fields", pa.array([*unknown, None], pa.string()))
    pq.write_table(rows, tmp_path / "before.parquet")
    wiki = load_pipeline("wiki_changes")
    archive = replace(wiki.archive, columns=f"{wiki.archive.columns}, asked_by STRING")
    asked = {
        "keys": KEYS,
        "columns": ["asked_by"],
        "landing": [files("id", path)],
        "registered": [],
        "replayed": [],
        "quarantined": [],
    }
    kept = replace(wiki, archive=archive, decoder=Json(schema=wiki.decoder.schema, unknown="keep"))
    assert find_subject(spark, kept, asked)["landing"] == [["wiki-changes", "id", 0, 0]]
    assert find_subject(spark, replace(wiki, archive=archive), asked)["landing"] == []


def test_row_is_not_the_interval_s_own_when_a_replay_delivered_it(spark: Any, tmp_path: Path) -> None:
    replayed = file_of(tmp_path, "replayed.parquet", KEYS[0])
    delivered = file_of(tmp_path, "delivered.parquet", KEYS[0], KEYS[1])
    asked = {
        "keys": KEYS,
        "columns": ["user"],
        "landing": [files("old", replayed)],
        "registered": [files("new", delivered)],
        "replayed": [["wiki-changes", 0, 0]],
        "quarantined": [],
    }
    found = find_subject(spark, load_pipeline("wiki_changes"), asked)
    assert found["landing"] == [["wiki-changes", "old", 0, 0]]
    assert found["registered"] == [["wiki-changes", "new", 0, 1]]
    assert found["rows"] == 2


def test_row_of_another_counts_when_its_replayed_record_is_erased_for_its_quarantined_bytes(
    spark: Any, tmp_path: Path
) -> None:
    own, replayed, delivered = (
        file_of(tmp_path, f"{name}.parquet", *users)
        for name, users in {
            "own": (KEYS[0],),
            "replayed": ("", "Bob", "Eve", KEYS[1]),
            "delivered": (KEYS[0], "Bob", "Eve", KEYS[1]),
        }.items()
    )
    asked = {
        "keys": KEYS,
        "columns": ["user"],
        "landing": [files("id", own, replayed)],
        "registered": [files("id", delivered)],
        "replayed": [],
        "quarantined": [["wiki-changes", "id", 0, 1], ["wiki-changes", "id", 0, 3], ["wiki-changes", "old", 0, 2]],
    }
    found = find_subject(spark, load_pipeline("wiki_changes"), asked)
    assert sorted(found["landing"]) == [["wiki-changes", "id", 0, 0], ["wiki-changes", "id", 0, 3]]
    assert found["rows"] == 2
    assert found["rows_of_others"] == 1
