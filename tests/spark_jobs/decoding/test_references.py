"""Reference files: their rows, and headers that are not the declared columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import all_pipelines, load_pipeline
from include.pipelines.spec import Pipeline, Reference
from include.pipelines.spec.references import reference_lines

pytestmark = pytest.mark.spark


def referring(path: Path, content: str) -> Pipeline:
    path.write_text(content, encoding="utf-8")
    reference = Reference(path, "device_id STRING, zip_code INT")
    return replace(load_pipeline("nest_cameras"), references={"places": reference})


@pytest.mark.parametrize(
    "header", ["device_id,zip_code", "device_id, zip_code", '"device_id","zip_code"', "\ufeffdevice_id,zip_code"]
)
def test_rows_are_loaded_when_the_header_is_the_declared_columns(spark: Any, tmp_path: Path, header: str) -> None:
    from spark_jobs.decoding.records import load_references

    pipeline = referring(tmp_path / "places.csv", f"{header}\ncam-1,94103\n\ncam-2,\n")
    places = load_references(spark, pipeline)["places"]
    assert [tuple(row) for row in places.collect()] == [("cam-1", 94103), ("cam-2", None)]
    assert places.columns == ["device_id", "zip_code"]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("cam-1,94103\ncam-2,10001\n", "'cam-1,94103'"),
        ("zip_code,device_id\n94103,cam-1\n", "'zip_code,device_id'"),
        ("device_id\ncam-1\n", "'device_id'"),
        ("device_id,zip_code,street\n", "'device_id,zip_code,street'"),
        ("", "empty"),
    ],
)
def test_file_is_refused_when_its_first_line_is_not_the_declared_columns(
    spark: Any, tmp_path: Path, content: str, named: str
) -> None:
    from spark_jobs.decoding.records import load_references

    pipeline = referring(tmp_path / "places.csv", content)
    with pytest.raises(UsageError) as refused:
        load_references(spark, pipeline)
    assert f"the first line of the reference places (places.csv) is {named}" in str(refused.value)
    assert "'device_id,zip_code'" in str(refused.value)
    assert refused.value.exit_code == 64


def test_interval_is_refused_before_anything_is_read_when_a_header_is_wrong(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from spark_jobs.intervals.build import build

    # Neither a session nor an attempt is there to be asked.
    run: Any = SimpleNamespace(pipeline=referring(tmp_path / "places.csv", "cam-1,94103\n"))
    with pytest.raises(UsageError, match="the first line of the reference places"):
        build(run)


def test_line_of_a_reference_is_whole_when_a_value_holds_a_line_separator_of_unicode(tmp_path: Path) -> None:
    path = tmp_path / "places.csv"
    path.write_bytes("device_id,zip_code\r\ncam\u2028-1,94103\r\ncam-2\x85,10001\r\n".encode())
    [(name, reference)] = referring(path, path.read_bytes().decode()).references.items()
    assert reference_lines(name, reference) == ["cam\u2028-1,94103", "cam-2\x85,10001"]


def test_reference_begins_with_its_columns_when_a_pipeline_ships_it() -> None:
    references = [each for pipeline in all_pipelines() for each in pipeline.references.items()]
    assert references
    # A file whose header is another, or that cannot be read, raises.
    assert all(reference_lines(name, reference) for name, reference in references)
