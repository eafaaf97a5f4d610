"""Names of columns that an archive table cannot have: its rows have columns of Tidemark's by these names."""

from __future__ import annotations

from dataclasses import replace

import pytest

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


def test_partition_columns_are_refused_when_the_metastore_may_not_keep_the_path_of_a_partition() -> None:
    def archive(*names: str) -> Archive:
        columns = "at TIMESTAMP, country STRING"
        return Archive(rows="rows", columns=columns, event_time="at", partition_by=dict.fromkeys(names, "country"))

    names = [f"by_{number}_{'x' * 10}" for number in range(6)]
    archive(*names)
    # date=…/NAME=VALUE/…/interval=…: 42 characters, with 6 names 42 + 6 * 117, and 767 are kept.
    with pytest.raises(UsageError, match=r"a partition by by_0_x+, .* may have a path of 768 characters: .* keeps 767"):
        archive(*names[:5], names[5] + "y" * 24)
