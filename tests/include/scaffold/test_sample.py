"""What a sample becomes: types that keep its values, and a pipeline that can run beside the others."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from include import pipelines
from include.errors import UsageError
from include.pipelines import declarations, load_pipeline
from include.scaffold import new_pipeline
from include.scaffold.new_pipeline import write_pipeline
from include.scaffold.schema import Sample, read_sample
from tests.golden.sample import lines_of

AT = "2026-11-20T05:00:00Z"


def sample_of(folder: Path, *messages: dict[str, Any]) -> Path:
    file = folder / "sample.jsonl"
    file.write_text("".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in messages), encoding="utf-8")
    return file


def read(folder: Path, *messages: dict[str, Any]) -> Sample:
    return read_sample(sample_of(folder, *messages))


def types_of(folder: Path, *values: Any) -> set[str]:
    sample = read(folder, *({"at": AT, "value": value} for value in values))
    return {field.ddl for field in sample.fields if field.name == "value"}


def test_column_to_count_by_has_no_name_of_the_view_s_own_columns(tmp_path: Path) -> None:
    names = ("window", "Count", "window_start", "WINDOW_END")
    assert read(tmp_path, {"at": AT, **dict.fromkeys(names, "a"), "door": "b"}).keys() == ["door"]


def test_text_that_is_empty_in_a_message_is_not_counted_by(tmp_path: Path) -> None:
    assert read(tmp_path, {"at": AT, "a": "", "b": "x"}, {"at": AT, "a": "y", "b": "x"}).keys() == ["b"]


def test_names_of_the_view_s_own_columns_are_refused_when_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    with pytest.raises(UsageError, match=r"'window' is not text .*, or is the name of another column of the view"):
        write_pipeline("doors", sample_of(tmp_path, {"at": AT, "window": "w", "door": "a"}), key="window")


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        ((2**63 - 1, 5), "BIGINT"),
        ((2**63, 5), "DECIMAL(38, 0)"),
        ((-(10**38) + 1, None), "DECIMAL(38, 0)"),
        ((10**38, 5), "STRING"),
        ((2**63, 0.5), "DOUBLE"),
        (([2**64], [1]), "ARRAY<DECIMAL(38, 0)>"),
        (({"id": 2**64}, {"id": 1}), "STRUCT<id: DECIMAL(38, 0)>"),
    ],
)
def test_whole_numbers_keep_their_digits_when_they_are_longer_than_a_bigint(
    tmp_path: Path, values: tuple[Any, ...], ddl: str
) -> None:
    assert types_of(tmp_path, *values) == {ddl}


@pytest.mark.parametrize(
    ("values", "ddl"),
    [
        (({}, {}), "STRING"),
        (({"tags": {}}, {"tags": {}}), "STRUCT<tags: STRING>"),
        (([{}], []), "ARRAY<STRING>"),
        (({}, {"a": 1}), "STRUCT<a: BIGINT>"),
    ],
)
def test_object_is_text_when_it_has_no_field_in_the_whole_sample(
    tmp_path: Path, values: tuple[Any, ...], ddl: str
) -> None:
    assert types_of(tmp_path, *values) == {ddl}


def test_text_is_counted_by_and_an_empty_object_is_not(tmp_path: Path) -> None:
    assert read(tmp_path, {"at": AT, "tags": {}, "id": 10**40, "door": "a"}).keys() == ["door"]


@pytest.mark.parametrize("messages", [({},), ({}, {})])
def test_sample_is_refused_when_its_messages_have_no_fields(tmp_path: Path, messages: tuple[dict[str, Any]]) -> None:
    with pytest.raises(UsageError, match="have no fields — an event needs a time"):
        read(tmp_path, *messages)


@pytest.mark.parametrize("wanted", ["", "at"])
def test_page_is_named_when_the_only_time_of_a_sample_is_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    with pytest.raises(UsageError) as refused:
        write_pipeline("door_a", sample_of(tmp_path, {"at": 1_763_614_800_000, "door": "a"}), event_time=wanted)
    assert refused.value.remedy.endswith("for a number: include/docs/declaring.md, “From a sample”")


def test_nothing_is_written_when_another_pipeline_has_the_topic_of_the_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path / "include" / "pipelines")])
    sample = sample_of(tmp_path, {"at": AT, "door": "a"})
    try:
        first = write_pipeline("door_a", sample, topic="events")
        declarations.cache_clear()
        kept = {path: (tmp_path / path).read_bytes() for path in first.files}
        said = "door_a and door_b both write the topic events-hourly-counts; no file was written — choose another name"
        with pytest.raises(UsageError, match=said):
            write_pipeline("door_b", sample, topic="events")
        assert {path: (tmp_path / path).read_bytes() for path in first.files} == kept
        assert not list(tmp_path.rglob("*door_b*"))
    finally:
        declarations.cache_clear()
        load_pipeline.cache_clear()
        # Another test may declare a pipeline of this name.
        if sys.modules.pop("include.pipelines.door_a", None):
            del pipelines.door_a  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("isp-hits", "isp_hits reads the topic isp-hits"),
        ("isp-hits-by-zip", "isp_hits writes the topic isp-hits-by-zip"),
    ],
)
def test_nothing_is_written_when_another_pipeline_has_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str, said: str
) -> None:
    """The next step writes messages to it that were made up."""
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    sample = sample_of(tmp_path, {"at": AT, "door": "a"})
    with pytest.raises(UsageError, match=f"{said}; no file was written") as refused:
        write_pipeline("doors", sample, topic=topic)
    assert "--topic" in refused.value.remedy
    assert list(tmp_path.iterdir()) == [sample]


@pytest.mark.parametrize("name", ["bounds", "checkpoint", "class", "spec"])
def test_nothing_is_written_when_a_pipeline_cannot_have_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    sample = sample_of(tmp_path, {"at": AT, "door": "a"})
    with pytest.raises(UsageError) as refused:
        write_pipeline(name, sample)
    assert refused.value.remedy in ("choose another name", "choose another one")
    assert list(tmp_path.iterdir()) == [sample]


@pytest.mark.parametrize(
    ("name", "column"), [("date", "date_"), ("tidemark_file", "_tidemark_file"), ("_file", "_file")]
)
def test_column_has_another_name_when_a_field_s_is_tidemark_s_own(tmp_path: Path, name: str, column: str) -> None:
    [field] = [each for each in read(tmp_path, {"at": AT, name: "a"}).fields if each.name == name]
    assert field.column == column


def test_nothing_is_written_when_the_topic_of_the_view_would_be_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_pipeline, "REPOSITORY", tmp_path)
    sample = sample_of(tmp_path, {"at": AT, "door": "a"})
    with pytest.raises(UsageError, match=r"topic 't+-hourly-counts' is not a Kafka topic name"):
        write_pipeline("doors", sample, topic="t" * 249)
    assert list(tmp_path.iterdir()) == [sample]


def test_line_of_a_sample_is_whole_when_a_value_has_another_line_separator() -> None:
    lines = [json.dumps({"a": each}, ensure_ascii=False) for each in ("\x85", "\u2028", "x")]
    assert lines_of("\n".join([*lines, ""])) == lines
