"""Reference files: their rows, and headers that are not the declared columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline, Reference
from include.pipelines.spec.references import numbered_lines
from tests.support.shipped import all_pipelines

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


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("cam-1", "has 1 columns, declared are the 2 columns"),
        ("cam-1,1,x", "has 3 columns"),
        ('"cam\n1",1', "has a value in quotes that does not end in it"),
        ("cam\r1,1", "a quote or line break that is not read back"),
        # Spark reads it with its quotes.
        ('"a ""b"" c",1', "has a value in quotes"),
        ("cam-1,n/a", "has a value of the column zip_code that is not INT"),
        ("cam-1, 1", "a value of the column zip_code"),
        ("cam-1,02134", "a value of the column zip_code"),
        ("cam-1,1.5", "a value of the column zip_code"),
        ("cam-1,9999999999", "a value of the column zip_code"),
    ],
)
def test_file_is_refused_by_its_line_when_a_row_is_not_of_the_declared_columns(
    spark: Any, tmp_path: Path, line: str, named: str
) -> None:
    from spark_jobs.decoding.records import load_references

    pipeline = referring(tmp_path / "places.csv", f"device_id,zip_code\r\ncam-0,1\r\n\r\n{line}\r\n")
    with pytest.raises(UsageError, match=r"nest_cameras: line 4 of the reference places \(places\.csv\)") as refused:
        load_references(spark, pipeline)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("cam-1,1\ncam-2,2\ncam-1,2", "line 4 .* device_id 'cam-1'; so has line 2"),
        ('cam-1,1\n"cam-1" ,2', "line 3 .* device_id 'cam-1'; so has line 2"),
        ('"a \\"b",1\n"a \\"b",1', "line 3 .* device_id 'a \"b'; so has line 2"),
        ('"a,b",1\n"a,c",1\n,1\n,1\ncam-1,\nCam-1,', ""),
    ],
)
def test_file_is_refused_when_two_lines_have_the_same_key(tmp_path: Path, lines: str, named: str) -> None:
    (tmp_path / "places.csv").write_text(f"device_id,zip_code\n{lines}\n", encoding="utf-8")
    reference = Reference(tmp_path / "places.csv", "device_id STRING, zip_code INT")
    assert numbered_lines("places", reference)
    by_both = replace(reference, key=("device_id", "zip_code"))
    if '"a \\' in lines:
        with pytest.raises(UsageError, match="zip_code '1'"):
            numbered_lines("places", by_both)
    else:
        assert numbered_lines("places", by_both)
    keyed = replace(reference, key=("device_id",))
    if named:
        with pytest.raises(UsageError, match=named):
            numbered_lines("places", keyed)
    else:
        assert numbered_lines("places", keyed)


@pytest.mark.parametrize("key", [("street",), ("price",), ("device_id", "street")])
def test_reference_is_refused_when_its_key_is_no_column_that_can_be_one(key: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="whole numbers"):
        Reference(Path("places.csv"), "device_id STRING, price DECIMAL(6, 2)", key=key)


def test_shipped_device_is_in_one_place() -> None:
    assert load_pipeline("nest_cameras").references["device_locations"].key == ("device_id",)


def test_text_comes_back_whole_when_it_has_characters_that_end_a_line_elsewhere(spark: Any, tmp_path: Path) -> None:
    from spark_jobs.decoding.records import load_references

    texts = ["a\x85b", "a\u2028b\x0b", ' "a", \\ ', '5" pipe']
    written = ["a\x85b", "a\u2028b\x0b", r'" \"a\", \\ "', '5" pipe']
    lines = [f"{text},{number}" for number, text in enumerate(written)]
    pipeline = referring(tmp_path / "places.csv", "\n".join(["device_id,zip_code", *lines]))
    rows = load_references(spark, pipeline)["places"].collect()
    assert [tuple(row) for row in rows] == [(text, number) for number, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("kind", "kept", "changed"),
    [
        ("BIGINT", ["-1", "0", "9223372036854775807"], ["+1", "007", "1e3", "9223372036854775808"]),
        ("DECIMAL(6, 2)", ["1.5", "-0.25", "1e2"], ["1.555", "12345.6", "1,234.5", "02.5", "x"]),
        ("DOUBLE", ["1.50", "1e5", "NaN", "-Infinity", "0.1234567890123456789"], ["1d", "0x1p3", "1e999", "01.5"]),
        ("FLOAT", ["0.1"], ["1e300"]),
        ("BOOLEAN", ["true", "FALSE"], ["1", "yes"]),
        ("DATE", ["2024-01-05", "2024-1-5"], ["2024", "2024-01-05T00:00", "2024-02-30"]),
        ("TIMESTAMP", ["2024-01-05", "2024-01-05 01:02:03.123456", "2024-01-05T01:02:03+02:00"],
         ["12:00", "2024-01-05 01:02:03.1234567", "now"]),
        ("BINARY", ["abc"], []),
    ],
)  # fmt: skip
def test_value_is_refused_when_its_column_would_change_it(
    spark: Any, tmp_path: Path, kind: str, kept: list[str], changed: list[str]
) -> None:
    from spark_jobs.decoding.records import load_references

    def load(*values: str) -> list[Any]:
        pipeline = referring(tmp_path / "places.csv", "\n".join(["device_id,zip_code", *(f'x,"{v}"' for v in values)]))
        reference = replace(pipeline.references["places"], columns=f"device_id STRING, zip_code {kind}")
        return load_references(spark, replace(pipeline, references={"places": reference}))["places"].collect()

    assert all(row["zip_code"] is not None for row in load(*kept))
    for value in changed:
        with pytest.raises(UsageError, match="line 2 of the reference places"):
            load(value)


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
    assert [line for _, line in numbered_lines(name, reference)] == ["cam\u2028-1,94103", "cam-2\x85,10001"]


def test_reference_begins_with_its_columns_when_a_pipeline_ships_it() -> None:
    references = [each for pipeline in all_pipelines() for each in pipeline.references.items()]
    assert references
    # A file whose header is another, or that cannot be read, raises.
    assert all(numbered_lines(name, reference) for name, reference in references)
