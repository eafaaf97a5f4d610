"""Names of columns that an archive table cannot have: its rows have columns of Tidemark's by these names."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from include.catalog import declared
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import OWN_COLUMNS, Archive


@pytest.mark.parametrize("name", [*sorted(OWN_COLUMNS), "Date"])
def test_column_is_refused_when_tidemark_has_one_of_its_name(name: str) -> None:
    with pytest.raises(UsageError, match=f"column '{name}' is Tidemark's own — call it {name}_"):
        Archive(rows="rows", columns=f"at TIMESTAMP, {name} STRING", event_time="at")


@pytest.mark.parametrize("name", ["tidemark_file", "Tidemark_x"])
def test_column_is_refused_when_its_name_begins_like_those_that_tidemark_adds(name: str) -> None:
    said = f"column '{name}' .*is Tidemark's own — call it _{name}, and say so in `renamed` if"
    with pytest.raises(UsageError, match=said):
        Archive(rows="rows", columns=f"at TIMESTAMP, {name} STRING", event_time="at")
    view = load_pipeline("nest_cameras").views[0]
    with pytest.raises(UsageError, match=said):
        replace(view, key=(name, "window"), columns=view.columns.replace("zip_code", name))


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("country", "a column"),
        ("city", "a column"),
        ("land", "a column"),
        *(
            (name, "Tidemark's own")
            for name in ("kafka_topic", "kafka_element", "event_time", "date", "interval", "fate")
        ),
        *((name, "Tidemark's own") for name in ("rows", "records", "parts", "sum_1", "sum_2", "tidemark_file")),
    ],
)
def test_partition_column_is_refused_when_rows_have_a_column_of_its_name(name: str, whose: str) -> None:
    with pytest.raises(UsageError, match=f"partition column '{name}'.* {whose}.* — call it by_{name}$"):
        Archive(
            rows="rows",
            columns="at TIMESTAMP, country STRING, City STRING",
            event_time="at",
            partition_by={name: "country"},
            renamed={"country": "land"},
        )


def test_name_is_free_when_no_row_has_it() -> None:
    columns = "at TIMESTAMP, place STRUCT<country: STRING>"
    names = {"country": "place.country", "by_country": "place.country", "key": "place.country"}
    archive = Archive(rows="rows", columns=columns, event_time="at", partition_by=names)
    assert archive.partition_columns == ("date", *names)


def test_name_is_free_when_it_is_a_field_inside_a_column() -> None:
    columns = "at TIMESTAMP, event STRUCT<date: STRING, key: STRING>, date_ STRING"
    assert Archive(rows="rows", columns=columns, event_time="at").columns == columns


def test_partition_columns_are_refused_when_the_metastore_can_keep_no_path_of_a_partition() -> None:
    def archive(*names: str) -> Archive:
        columns = "at TIMESTAMP, country STRING"
        return Archive(rows="rows", columns=columns, event_time="at", partition_by=dict.fromkeys(names, "country"))

    names = [f"by_{number:02}_{'x' * 57}" for number in range(11)]
    # An installation goes on whose values are short, however long they may be.
    archive(*names[:10])
    # date=…/NAME=VALUE/…/interval=…: 42 characters, with 11 names 42 + 11 * 66, and 767 are kept.
    with pytest.raises(UsageError, match=r"a partition by by_00_x+, .* of at least 768 characters, .* keeps 767"):
        archive(*names)


@pytest.mark.parametrize(
    ("kind", "stored", "known", "refused"),
    [
        ("STRING", None, {}, True),
        ("INT", None, {}, False),
        ("DECIMAL(38, 2)", None, {}, False),
        ("STRING", "files", {}, False),
        # Somebody dropped the table, or put the catalog back from a copy.
        ("STRING", None, {"nest_cameras": ["nest_cameras"]}, False),
    ],
)
def test_partition_columns_are_refused_before_a_table_exists_when_values_of_their_type_may_be_too_long(
    monkeypatch: pytest.MonkeyPatch, kind: str, stored: str | None, known: dict[str, list[str]], refused: bool
) -> None:
    # 42 characters, and 7 * 113 with texts, at most 7 * 54 with numbers.
    names = [f"by_{number}_{'x' * 6}" for number in range(7)]
    columns = f"at TIMESTAMP, country {kind}"
    archive = Archive(rows="rows", columns=columns, event_time="at", partition_by=dict.fromkeys(names, "country"))
    pipeline: Any = SimpleNamespace(name="nest_cameras", table="nest_cameras", archive=archive)
    for name, answer in (("check_storage", None), ("check_own_tables", None), ("tables_with_rows", known)):
        monkeypatch.setattr(declared, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(declared.catalog, "storage", lambda table: stored)
    with pytest.raises(UsageError, match="may have a path of 833 characters") if refused else nullcontext():
        declared.check_storage_early(pipeline)
    assert bool(declared.long_paths(pipeline)) == (kind == "STRING")
