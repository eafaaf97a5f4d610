"""Versions change with what decides about rows, and with nothing else; shown by edits of a copy of the code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from include import versions
from include.errors import TidemarkError
from include.pipelines import load_pipeline
from include.pipelines.spec import UserDefined
from tests.conftest import REPOSITORY
from tests.support.shipped import SHIPPED
from tests.support.versions import ALL, all_versions, clear, differing


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    clear()
    yield
    clear()


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("include", "spark_jobs", "expectations"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            target = tmp_path / file.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
    monkeypatch.setattr(versions, "REPOSITORY", tmp_path)
    return tmp_path


def edit(tree: Path, old: str, new: str) -> None:
    """Replace a text in the one file that has it."""
    files = [file for file in tree.rglob("*.py") if old in file.read_text()]
    assert len(files) == 1, (old, files)
    files[0].write_text(files[0].read_text().replace(old, new))


@cache
def untouched(name: str) -> dict[str, str]:
    """Return the versions that a copy of the code has before it is edited, whichever asks first."""
    return all_versions(name)


def changed(tree: Path, name: str, old: str, new: str) -> set[str]:
    """Return which versions an edit changes; nothing else was edited in the copy before."""
    before = untouched(name)
    edit(tree, old, new)
    return differing(before, all_versions(name))


DECIDING = {
    "a constant of decoding": ("_GENERATED = 4", "_GENERATED = 5"),
    "a rule's expression": ("return size > limit", "return size >= limit"),
    "a rule's reason": ('"value_too_long", words', '"too_long", words'),
    "the transform of the archive's rows": ('map_values(message["devices"]["cameras"])', 'map_values(message["a"])'),
    "which values are safe as a folder": ("SAFE_VALUE = r", "SAFE_VALUE = '|' + r"),
    "what fits a file's format": ("_KEY_BYTES = 50_000", "_KEY_BYTES = 60_000"),
    "how a CSV file writes null": ('CSV_NULL = r"\\N"', 'CSV_NULL = r"\\M"'),
    "the grammar of durations": ('"h": 3600', '"h": 3601'),
    "the declared decoder's code": ('_SPACE = " ', '_SPACE = " " or " '),
}


@pytest.mark.parametrize("kind", DECIDING)
def test_every_version_changes_when_what_decides_a_fate_does(tree: Path, kind: str) -> None:
    assert changed(tree, "nest_cameras", *DECIDING[kind]) == ALL


@pytest.mark.parametrize(
    ("name", "old", "new", "versions_changed"),
    [
        ("nest_cameras", '.where(F.col("last_event.has_person"))', "", {"code", "hourly_counts"}),
        ("nest_cameras", "for name in sorted(view.key)", "for name in view.key", {"hourly_counts"}),
        ("nest_cameras", '"parquet": "zstd"', '"parquet": "snappy"', {"code"}),
        ("nest_cameras", 'F.lit("tidemark"), *values', 'F.lit("other"), *values', {"code"}),
        ("nest_cameras", 'regex=r"\\A[0-9]{5}\\z"', 'regex=r"\\A[0-9]{6}\\z"', {"code"}),
        ("gps_positions", "MAX_SCHEMA_DEPTH = 32", "MAX_SCHEMA_DEPTH = 33", ALL),
        ("gps_positions", "_PADDING = 65_536", "_PADDING = 65_537", ALL),
        ("gps_positions", "MOVING = 3.0", "MOVING = 4.0", {"code", "hourly_counts"}),
        ("auction_bids", 'F.col("amount") > limit', 'F.col("amount") >= limit', {"rules"}),
        ("wiki_changes", '"edit", "new")', '"edit",)', {"code", "user_edits"}),
    ],
)  # fmt: skip
def test_version_changes_only_when_its_code_does(
    tree: Path, name: str, old: str, new: str, versions_changed: set[str]
) -> None:
    assert changed(tree, name, old, new) == versions_changed


OF_SUITE = {
    "a bound of the suite": ('regex=r"\\A[0-9]{5}\\z"', 'regex=r"\\A[0-9]{6}\\z"'),
    "a further expectation": (
        '"""Expectations by table. DataFrames',
        'SUITES["nest_cameras"].append(gxe.ExpectColumnToExist(column="a"))\n"""Expectations by table. DataFrames',
    ),
    "a severity": ('regex=r"\\A[0-9]{5}\\z"', 'regex=r"\\A[0-9]{5}\\z", severity="warning"'),
    "what is usual": ("    at_least: int = 48", "    at_least: int = 24"),
    "the bounds of what is usual": ("min(counts) / usual.factor", "min(counts) // usual.factor"),
    "what passes": ('severity == "info" or (', 'severity != "fail" or ('),
}


@pytest.mark.parametrize("kind", OF_SUITE)
def test_suite_changes_and_with_it_an_approval_is_void_when_what_is_expected_does(tree: Path, kind: str) -> None:
    before = versions.suite_version("nest_cameras")
    edit(tree, *OF_SUITE[kind])
    clear()
    assert versions.suite_version("nest_cameras") != before


def test_suite_changes_when_a_pipeline_declares_what_is_usual_and_when_it_changes_that(tree: Path) -> None:
    suite = tree / "expectations" / "nest_cameras.py"
    found = [versions.suite_version("nest_cameras")]
    for declared in ("USUAL = None", "USUAL = Usual(factor=3)", "USUAL = Usual(factor=4)"):
        suite.write_text(f"{suite.read_text()}\n{declared}\n")
        clear()
        found.append(versions.suite_version("nest_cameras"))
    assert len(set(found)) == 4


@pytest.mark.parametrize("kind", ["a comment", "a docstring", "the ledger", "another pipeline's transform"])
def test_suite_stays_when_something_else_changes(tree: Path, kind: str) -> None:
    before = versions.suite_version("nest_cameras")
    edit(tree, *WITHOUT_EFFECT[kind])
    clear()
    assert versions.suite_version("nest_cameras") == before


WITHOUT_EFFECT = {
    "a comment": ("    # NaN is greater than every number.", "    # NaN is the greatest number."),
    "a docstring": ('"""Return the cameras of a message: array', '"""Return all cameras of a message: array'),
    "the docstring of a constant": ('"""Rows of a message that are', '"""Rows of one message that are'),
    "an annotation": ("def utc_date(moment: Column) -> Column:", 'def utc_date(moment: "Column") -> "Column":'),
    "the layout": ('    meta = message["meta"]\n', '    meta = (\n        message["meta"]\n    )\n'),
    "a function beside": ("def archive_rows(", "def other() -> int:\n    return 1\n\n\ndef archive_rows("),
    "the transform of a report": ('~F.col("last.is_online")', 'F.col("last.is_online")'),
    "what limits are learned": ("_TIMES_USUAL = 10", "_TIMES_USUAL = 11"),
    "another decoder": ("MAX_SCHEMA_DEPTH = 32", "MAX_SCHEMA_DEPTH = 33"),
    "another pipeline's transform": ("MOVING = 3.0", "MOVING = 4.0"),
    "an error's text": ("text.strip().splitlines()[0][:most]", "text.strip().splitlines()[0]"),
    "the registry's client": ("MAX_ANSWER = 1_048_576", "MAX_ANSWER = 1"),
    "the ledger": ("class MicroBatch(", "class Unrelated:\n    pass\n\n\nclass MicroBatch("),
    "the settings": (
        "@dataclass(frozen=True)\nclass Settings:",
        "class Unrelated:\n    pass\n\n\n@dataclass(frozen=True)\nclass Settings:",
    ),
}


@pytest.mark.parametrize("kind", WITHOUT_EFFECT)
def test_no_version_changes_when_nothing_that_decides_about_rows_does(tree: Path, kind: str) -> None:
    assert changed(tree, "nest_cameras", *WITHOUT_EFFECT[kind]) == set()


@pytest.mark.parametrize(
    ("module", "moved"),
    [
        ("spark_jobs.decoding.fitting", "spark_jobs.spark.exactness"),
        ("spark_jobs.decoding.reasons", "spark_jobs.decoding.words"),
        ("include.pipelines.spec.file_formats", "include.formats"),
        ("include.lake.files", "include.lake.operations"),
        ("spark_jobs.spark.schemas", "spark_jobs.columns"),
        ("include.schemas.writer_schemas", "include.writers_of_schemas"),
    ],
)
def test_no_version_changes_when_a_module_moves(tree: Path, module: str, moved: str) -> None:
    names = ("nest_cameras", "gps_positions")
    before = [untouched(name) for name in names]
    source, target = (tree / f"{each.replace('.', '/')}.py" for each in (module, moved))
    source.rename(target)
    for file in tree.rglob("*.py"):
        file.write_text(file.read_text().replace(f"from {module} import", f"from {moved} import"))
    assert [all_versions(name) for name in names] == before


@pytest.mark.parametrize(
    ("new", "called"),
    [
        ("from spark_jobs.decoding import unknown_fields as unknown", "unknown.unknown_fields"),
        ("from . import unknown_fields", "unknown_fields.unknown_fields"),
        ("from .unknown_fields import unknown_fields as unknown", "unknown"),
        ("from .unknown_fields import *", "unknown_fields"),
    ],
)
def test_no_version_changes_when_a_name_is_imported_otherwise(tree: Path, new: str, called: str) -> None:
    old = "from spark_jobs.decoding.unknown_fields import unknown_fields"
    before = untouched("nest_cameras")
    (file,) = (file for file in tree.rglob("*.py") if old in file.read_text())
    file.write_text(file.read_text().replace(old, new).replace(", unknown_fields(", f", {called}("))
    assert all_versions("nest_cameras") == before


@pytest.mark.parametrize(
    ("imported", "called"),
    [
        ("from .common import clean", "clean"),
        ("from . import common", "common.clean"),
        ("from spark_jobs.transforms.common import *", "clean"),
    ],
)
def test_every_version_changes_when_a_helper_of_the_rows_transform_does(tree: Path, imported: str, called: str) -> None:
    transforms = tree / "spark_jobs" / "transforms"
    (transforms / "common.py").write_text("def clean(column):\n    return column\n")
    cameras = transforms / "nest_cameras.py"
    text = cameras.read_text().replace("F.map_values(", f"{called}(F.map_values)(")
    cameras.write_text(text.replace("import functions as F", f"import functions as F\n{imported}"))
    before = all_versions("nest_cameras")
    edit(tree, "    return column\n", "    return -column\n")
    assert differing(before, all_versions("nest_cameras")) == ALL


def test_version_changes_when_a_name_is_imported_from_another_definition(tree: Path) -> None:
    before = versions.decoder_version("nest_cameras")
    clear()
    old = "from spark_jobs.decoding.unknown_fields import unknown_fields"
    (tree / "include" / "others.py").write_text("def unknown_fields(*given):\n    return None\n")
    edit(tree, old, "from include.others import unknown_fields")
    assert versions.decoder_version("nest_cameras") != before


def test_error_names_what_is_missing_when_a_root_is_gone(tree: Path) -> None:
    edit(tree, "def load_references(", "def load_others(")
    with pytest.raises(TidemarkError, match=r"records:load_references, which is not there"):
        versions.code_version("nest_cameras")


def test_every_version_changes_when_spark_s_does(monkeypatch: pytest.MonkeyPatch) -> None:
    before = all_versions("nest_cameras")
    monkeypatch.setattr(versions, "version", lambda package: "4.2.1")
    after = all_versions("nest_cameras")
    assert not set(before.values()) & set(after.values())


def test_user_s_function_counts_when_it_is_in_the_repository(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tree / "spark_jobs" / "transforms" / "meters.py"
    file.write_text("def decode(value):\n    return {'a': len(value)}\n")
    pipeline = replace(
        load_pipeline("nest_cameras"), decoder=UserDefined("spark_jobs.transforms.meters:decode", "a INT")
    )
    monkeypatch.setattr(versions, "load_pipeline", lambda name: pipeline)
    before = versions.decoder_version("nest_cameras")
    clear()
    file.write_text("def decode(value):\n    return {'a': len(value) + 1}\n")
    assert versions.decoder_version("nest_cameras") != before


@pytest.mark.spark
def test_hashed_module_is_the_decoding_one_when_a_decoder_is_declared() -> None:
    from spark_jobs.decoding.decoders import decoding_of

    for kind, module in versions.DECODING_MODULES.items():
        assert decoding_of(object.__new__(kind)).__name__ == module  # type: ignore[attr-defined]


def test_versions_differ_when_pipelines_do() -> None:
    # Two pipelines of a user may well decode alike.
    found = [all_versions(name) for name in SHIPPED]
    assert len({each["code"] for each in found}) == len({each["decoder"] for each in found}) == len(found)


def test_versions_are_the_same_when_another_process_computes_them() -> None:
    code = "from include.versions import *; print(code_version('auction_bids'), rules_version('auction_bids'))"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
