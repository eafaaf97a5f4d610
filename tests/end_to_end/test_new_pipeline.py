"""A sixth pipeline, as a new user makes one: out of a sample, in a copy of the checkout, and it runs at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.errors import UsageError
from include.scaffold.schema import read_sample
from tests.conftest import REPOSITORY, Home, iso, last_hours
from tests.support import audit

START = last_hours(3)
SAMPLE = [
    {"id": 1, "door": "north", "value": 3, "key": None, "at": "2026-11-20T05:00:00.123Z",
     "by": {"badge": "b-1", "Level": 2.5, "odd name": True}, "tags": ["a"]},
    {"id": 2, "door": "north", "value": 3.5, "key": "k", "at": "2026-11-20T05:01:00Z",
     "by": {"badge": "b-2", "Level": None, "odd name": False}, "tags": []},
    {"id": 3, "door": "süd", "value": 4, "key": "k", "at": "2026-11-20T06:01:00Z",
     "by": {"badge": "b-2", "Level": 1, "odd name": False}, "tags": [], "extra-field": "x"},
]  # fmt: skip


def write(path: Path, messages: list[Any]) -> Path:
    path.write_text("".join(json.dumps(message) + "\n" for message in messages))
    return path


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout as it is, without its state."""
    made = tmp_path_factory.mktemp("copy") / "tidemark"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=REPOSITORY, capture_output=True, check=True
    )
    for name in filter(None, files.stdout.decode().split("\0")):
        source, target = REPOSITORY / name, made / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
            target.chmod(source.stat().st_mode)
    (made / ".tidemark").mkdir()
    (made / ".tidemark" / "jars").symlink_to(REPOSITORY / ".tidemark" / "jars")
    return made


def run(copy: Path, home: Home, *arguments: str, expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=copy, env={**home.environment(), "PYTHONPATH": str(copy)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == expect, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout if expect == 0 else done.stderr


@pytest.fixture(scope="module")
def made(copy: Path, home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sample = write(tmp_path_factory.mktemp("sample") / "sample.jsonl", SAMPLE)
    run(copy, home, "include.cli", "new", "door_events", "--format", "json", "--sample", str(sample))
    return copy


@pytest.mark.services
def test_files_are_clean_and_not_overwritten_when_new_wrote_them(made: Path, home: Home, tmp_path: Path) -> None:
    run(made, home, "ruff", "check", ".")
    run(made, home, "ruff", "format", "--check", ".")
    again = ["include.cli", "new", "door_events", "--sample", str(write(tmp_path / "s.jsonl", SAMPLE))]
    assert "there is a pipeline door_events already" in run(made, home, *again, expect=64)


@pytest.mark.slow
@pytest.mark.services
def test_its_own_test_passes_and_no_extreme_value_that_it_archives_fails_its_suite(made: Path, home: Home) -> None:
    modules = ("tests/spark_jobs/transforms/test_door_events.py", "tests/expectations/test_suites.py")
    assert "3 passed" in run(made, home, "pytest", "-q", "-p", "no:cacheprovider", *modules, "-k", "door_events")


@pytest.mark.slow
@pytest.mark.services
def test_it_streams_and_publishes_and_a_topic_of_its_pattern_joins(made: Path, home: Home) -> None:
    declaration = made / "include" / "pipelines" / "door_events.py"
    text = declaration.read_text()
    assert text.count('subscribe=("door-events",)') == 1
    declaration.write_text(text.replace('subscribe=("door-events",)', 'pattern="door-(events|bells)"'))
    arguments = ["--bad-fraction", "0.1", "--start", iso(START), "--span", "3h", "--events"]
    tidemark = ("include.cli",)
    run(made, home, *tidemark, "produce", "door_events", "--topic", "door-events", *arguments, "300")
    run(made, home, *tidemark, "stream", "door_events", "--until-caught-up")
    run(made, home, *tidemark, "produce", "door_events", "--topic", "door-bells", *arguments, "200")
    run(made, home, *tidemark, "stream", "door_events", "--until-caught-up")
    begun = START + timedelta(hours=1)
    bounds = ["--from", iso(begun), "--to", iso(begun + timedelta(hours=1))]
    verdict = json.loads(run(made, home, *tidemark, "interval", "door_events", *bounds))
    assert verdict["reconciliation"]["unexplained"] == 0
    assert {r["topic"] for r in verdict["ranges"]} == {"door-events", "door-bells"}
    records: dict[audit.Coordinates, audit.Record] = {}
    for topic in ("door-events", "door-bells"):
        records |= audit.in_ranges(audit.read_topic(home.kafka, topic), verdict["ranges"])
    assert len(records) == verdict["records"]["in_ranges"]
    archive = [r["location"] for r in verdict["registered"] if r["table"] == "door_events"]
    table = audit.read_parquet(archive)
    assert verdict["records"]["archived"] == table.num_rows > 0
    assert verdict["records"]["quarantined"] > 0
    for row in table.to_pylist():
        value = json.loads(records[(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])].value or b"")
        assert (row["door"], row["value_"], row["key_"], row["extra_field"]) == (
            value["door"], value["value"], value["key"], value.get("extra-field"),
        )  # fmt: skip
        assert row["by"] == {name: value["by"].get(name) for name in ("badge", "Level", "odd name")}
    counted = [r["location"] for r in verdict["registered"] if r["table"] == "door_events_hourly_counts"]
    counts = {row["door"]: row["count"] for row in audit.read_parquet(counted).to_pylist()}
    assert counts == Counter(table["door"].to_pylist())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no message"),
        ('{"a": 1}\n{"a": ', "line 2"),
        ('{"a": 1}\n[2]\n', "line 2: not a JSON object"),
        ('{"a": 1}\n{"a": "b"}\n', "do not share one schema"),
        ('{"at": 1, "AT": 2}', "would be one column"),
        ('{"a-b": 1, "a.b": 2}', "would be one column"),
        ('{"": 1}', "cannot be a column"),
    ],
)
def test_sample_is_refused_with_the_place_when_it_gives_no_schema(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sample.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_sample(path)


def test_schema_covers_all_messages_when_they_differ(tmp_path: Path) -> None:
    sample = read_sample(write(tmp_path / "sample.jsonl", SAMPLE))
    assert {field.column: field.ddl for field in sample.fields} == {
        "id": "BIGINT",
        "door": "STRING",
        "value_": "DOUBLE",
        "key_": "STRING",
        "at": "TIMESTAMP",
        "by": "STRUCT<badge: STRING, Level: DOUBLE, `odd name`: BOOLEAN>",
        "tags": "ARRAY<STRING>",
        "extra_field": "STRING",
    }
    assert (sample.times(), sample.keys()) == (["at"], ["door"])


def test_time_is_found_when_it_lies_inside_an_object_and_text_like_a_time_is_not(tmp_path: Path) -> None:
    messages = [
        {"meta": {"dt": "2026-11-20T05:00:00+00:00"}, "year": "2026", "day": "2026-11-20", "n": n} for n in (1, 2)
    ]
    sample = read_sample(write(tmp_path / "sample.json", messages))
    assert sample.times() == ["meta.dt"]
    assert {f.name: f.ddl for f in sample.fields}["day"] == "STRING"
