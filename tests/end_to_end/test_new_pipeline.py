"""Pipelines as a new user makes them, out of a sample and by hand: one runs at once, and the checkout's tests pass."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.errors import UsageError
from include.scaffold import new_pipeline
from include.scaffold.schema import read_sample
from tests.conftest import REPOSITORY, Home, iso, last_hours
from tests.support import audit

NAME = "copied_doors"
"""No name that the pages show: a checkout may have such a pipeline already."""

START = last_hours(3)
SAMPLE = [
    {"id": 1, "door": "north", "value": 3, "key": None, "at": "2026-11-20T05:00:00.123Z",
     "by": {"badge": "b-1", "Level": 2.5, "odd name": True}, "tags": ["a"]},
    {"id": 2, "door": "north", "value": 3.5, "key": "k", "at": "2026-11-20T05:01:00Z",
     "by": {"badge": "b-2", "Level": None, "odd name": False}, "tags": []},
    {"id": 3, "door": "süd", "value": 4, "key": "k", "at": "2026-11-20T06:01:00Z",
     "by": {"badge": "b-2", "Level": 1, "odd name": False}, "tags": [], "extra-field": "x"},
]  # fmt: skip

VIEW = """\
    views=(
        AdditiveView(
            name="daily",
            rows="counted",
            aggregate="daily",
            key=("street", "window"),
            measures=("count",),
            columns="street STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT",
            window="window",
            windows=TimeWindow("1d"),
            speed=CompactedTopic("copied-rings-daily", watermark="1h"),
        ),
    ),
    schedule=every("1d"),
"""
FUNCTIONS = """

def counted(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    return archive


def daily(counted: DataFrame, window: Column) -> DataFrame:
    return counted.groupBy("street", window).agg(F.count(F.lit(1)).alias("count")).select("street", "window", "count")
"""
RING = {"rings": [{"bell_id": "b-1", "street": "Bell Street", "rung_at": "2026-11-20T05:00:00Z"}]}
BY_HAND = {
    "copied_bells": ('    schedule=every("15m"),\n', "", []),
    "copied_rings": (VIEW, FUNCTIONS, [{"timestamp": RING["rings"][0]["rung_at"], "value": json.dumps(RING)}]),
}
"""What pipelines by hand have besides the smallest declaration: how it goes on, functions of its view, messages."""

QUICK = (
    "tests/dags/test_dags.py::test_stream_interval_and_daily_dag_exist_when_a_pipeline_is_declared",
    "tests/docs/test_pages.py::test_pipelines_and_topics_equal_the_code_when_documented",
    "tests/include/pipelines/test_durations.py",
    "tests/include/pipelines/test_file_formats.py",
    "tests/include/pipelines/test_refused_declarations.py",
    "tests/include/pipelines/test_unique_names.py",
    "tests/include/pipelines/test_views.py",
    "tests/include/versions/test_shipped_versions.py",
)
"""Tests of all pipelines, or of the shipped ones, that need no service and no Spark."""


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


def write_by_hand(copy: Path, name: str) -> None:
    """Write a pipeline as the page "Declaring a pipeline" says: a declaration, its functions, and empty suites."""
    page = (copy / "include" / "docs" / "declaring.md").read_text(encoding="utf-8")
    [declaration] = re.findall(r"^```python\n(PIPELINE = .+?)\)\n```$", page, re.MULTILINE | re.DOTALL)
    [function] = re.findall(r"^```text\n(def rings.+?)```$", page, re.MULTILINE | re.DOTALL)
    more, functions, messages = BY_HAND[name]
    smallest = declaration.replace("door_bells", name).replace("door-bells", name.replace("_", "-"))
    imports = "from include.pipelines.spec import *\nfrom include.times import every\n\n"
    (copy / "include" / "pipelines" / f"{name}.py").write_text(f"{imports}{smallest}{more})\n")
    imports = "from pyspark.sql import Column, DataFrame\nfrom pyspark.sql import functions as F\n\n\n"
    (copy / "spark_jobs" / "transforms" / f"{name}.py").write_text(f"{imports}{function}{functions}")
    tables = [name, f"{name}_daily"] if functions else [name]
    (copy / "expectations" / f"{name}.py").write_text(f"SUITES = { ({table: [] for table in tables}) }\n")
    if messages:
        (copy / "tests" / "golden" / name).mkdir()
        write(copy / "tests" / "golden" / name / "messages.jsonl", messages)


def run(copy: Path, home: Home | None, *arguments: str, expect: int = 0) -> str:
    environment = {**(home.environment() if home else os.environ), "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=copy, env=environment,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == expect, f"{arguments}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout if expect == 0 else done.stderr


@pytest.fixture(scope="module")
def made(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The copy with a pipeline out of a sample and, beside it, those by hand."""
    sample = write(tmp_path_factory.mktemp("sample") / "sample.jsonl", SAMPLE)
    run(copy, None, "include.cli", "new", NAME, "--format", "json", "--sample", str(sample))
    for name in BY_HAND:
        write_by_hand(copy, name)
    return copy


def test_files_are_clean_and_not_overwritten_when_new_wrote_them(made: Path, tmp_path: Path) -> None:
    files = [path.format(NAME) for path in new_pipeline._FILES.values()]
    run(made, None, "ruff", "check", *files)
    run(made, None, "ruff", "format", "--check", *files)
    again = ["include.cli", "new", NAME, "--sample", str(write(tmp_path / "s.jsonl", SAMPLE))]
    assert f"there is a pipeline {NAME} already" in run(made, None, *again, expect=64)
    written = run(made, None, "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", files[-1])
    assert f"tests/spark_jobs/transforms/test_{NAME}.py::test_every_row_is_counted_once" in written


def test_tests_of_all_pipelines_pass_when_a_user_has_declared_others(made: Path) -> None:
    assert " passed" in run(made, None, "pytest", "-q", "-p", "no:cacheprovider", *QUICK)


@pytest.mark.slow
@pytest.mark.services
def test_its_own_test_passes_and_no_extreme_value_that_it_archives_fails_its_suite(made: Path, home: Home) -> None:
    modules = (f"tests/spark_jobs/transforms/test_{NAME}.py", "tests/expectations/test_suites.py")
    told = run(made, home, "pytest", "-q", "-p", "no:cacheprovider", *modules, "-k", "copied_")
    # Three of the pipeline out of a sample, one of each by hand; the one without a message says what it lacks.
    assert "4 passed, 1 skipped" in told
    message = "tests/golden/copied_bells/messages.jsonl"
    assert f"copied_bells has no message to vary: write one into {message}" in told


@pytest.mark.slow
@pytest.mark.services
def test_it_streams_and_publishes_and_a_topic_of_its_pattern_joins(made: Path, home: Home) -> None:
    declaration = made / "include" / "pipelines" / f"{NAME}.py"
    text = declaration.read_text()
    assert text.count('subscribe=("copied-doors",)') == 1
    declaration.write_text(text.replace('subscribe=("copied-doors",)', 'pattern="copied-(doors|gates)"'))
    arguments = ["--bad-fraction", "0.1", "--start", iso(START), "--span", "3h", "--events"]
    tidemark = ("include.cli",)
    run(made, home, *tidemark, "produce", NAME, "--topic", "copied-doors", *arguments, "300")
    run(made, home, *tidemark, "stream", NAME, "--until-caught-up")
    run(made, home, *tidemark, "produce", NAME, "--topic", "copied-gates", *arguments, "200")
    run(made, home, *tidemark, "stream", NAME, "--until-caught-up")
    begun = START + timedelta(hours=1)
    bounds = ["--from", iso(begun), "--to", iso(begun + timedelta(hours=1))]
    verdict = json.loads(run(made, home, *tidemark, "interval", NAME, *bounds))
    assert verdict["reconciliation"]["unexplained"] == 0
    assert {r["topic"] for r in verdict["ranges"]} == {"copied-doors", "copied-gates"}
    records: dict[audit.Coordinates, audit.Record] = {}
    for topic in ("copied-doors", "copied-gates"):
        records |= audit.in_ranges(audit.read_topic(home.kafka, topic), verdict["ranges"])
    assert len(records) == verdict["records"]["in_ranges"]
    archive = [r["location"] for r in verdict["registered"] if r["table"] == NAME]
    table = audit.read_parquet(archive)
    assert verdict["records"]["archived"] == table.num_rows > 0
    assert verdict["records"]["quarantined"] > 0
    for row in table.to_pylist():
        value = json.loads(records[(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])].value or b"")
        assert (row["door"], row["value_"], row["key_"], row["extra_field"]) == (
            value["door"], value["value"], value["key"], value.get("extra-field"),
        )  # fmt: skip
        assert row["by"] == {name: value["by"].get(name) for name in ("badge", "Level", "odd name")}
    counted = [r["location"] for r in verdict["registered"] if r["table"] == f"{NAME}_hourly_counts"]
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
