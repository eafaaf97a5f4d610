"""Keys and times of served views as PostgreSQL holds them, without PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import JdbcTable
from include.pipelines.spec.ddl import fields_of
from include.serving import follow
from include.serving.shape import Shape, served_shapes, shape_of
from include.serving.stored import date_text, stored_rows, time_text
from tests.conftest import SetSettings

FAR = 1763615107000 * 10**6
"""Microseconds since 1970, in seconds by mistake."""


@pytest.fixture
def shape() -> Shape:
    """Key columns a and b, which are texts, day, and a window; one measure."""
    pipeline = load_pipeline("isp_hits")
    columns = "a STRING, b STRING, day DATE, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, hits BIGINT"
    key = ("a", "b", "day", "window")
    return shape_of(pipeline, replace(pipeline.views[0], key=key, measures=("hits",), columns=columns))


@pytest.mark.parametrize(
    ("key", "measure"),
    [
        (("place", "place_id", "window"), "hits"),
        (("place_id", "place", "window"), "hits"),
        (("place", "window"), "place_id"),
    ],
)
def test_view_is_refused_when_a_part_of_a_struct_has_the_name_of_another_column(
    key: tuple[str, ...], measure: str
) -> None:
    pipeline = load_pipeline("isp_hits")
    flat = "" if measure == "place_id" else "place_id STRING, "
    columns = f"place STRUCT<id: STRING>, {flat}window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, {measure} BIGINT"
    view = replace(pipeline.views[0], key=key, measures=(measure,), columns=columns)
    with pytest.raises(UsageError, match=r"table of the view by_zip has two columns place_id, of place.* — rename one"):
        shape_of(pipeline, view)


LONGEST = "ö" * 31
"""PostgreSQL keeps 63 bytes of a name."""


@pytest.mark.parametrize(
    ("key", "measure", "words"),
    [
        (f"{LONGEST}xx STRING", "hits", f"the column {LONGEST}xx, whose name is longer than the 63 bytes"),
        (f"`{LONGEST}` STRUCT<id: STRING>", "hits", f"the column {LONGEST}_id, whose name is longer"),
        ("zip STRING", "h" * 57, f"the column proved_{'h' * 57}, whose name is longer"),
        ("xmin STRING", "hits", "the column xmin, whose name PostgreSQL has for a column of its own"),
        ("t STRUCT<`oid%`: STRING>", "hits", "the column t_oid%, with a %"),
        ("zip STRING", "tableoid", "the column tableoid, whose name PostgreSQL has"),
        ("zip STRING", "share_%", "the column share_%, with a %"),
    ],
    ids=["long key", "long part", "long measure", "own key", "% in a part", "own measure", "% in a measure"],
)
def test_view_is_refused_when_postgresql_cannot_serve_a_column_by_its_name(
    key: str, measure: str, words: str, set_settings: SetSettings
) -> None:
    pipeline = load_pipeline("isp_hits")
    columns = f"{key}, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, `{measure}` BIGINT"
    name = fields_of(key)[0].name
    view = replace(pipeline.views[0], key=(name, "window"), measures=(measure,), columns=columns, sinks=())
    with pytest.raises(UsageError, match=f"isp_hits: the table of the view by_zip has {words}"):
        shape_of(pipeline, view)
    declared = replace(pipeline, views=(view,), reports=())
    # Without a table it is left out where all views are served.
    set_settings(TIDEMARK_SERVE="all")
    assert served_shapes(declared) == {}
    with pytest.raises(UsageError, match=f"isp_hits: the table of the view by_zip has {words}") as refused:
        replace(declared, views=(replace(view, sinks=(JdbcTable(),)),))
    assert "or take JdbcTable from the view's sinks" in refused.value.remedy


def test_view_is_served_when_postgresql_keeps_the_names_of_its_columns_whole() -> None:
    pipeline = load_pipeline("isp_hits")
    measure = "h" * 56
    columns = f"`{LONGEST}` STRING, XMIN STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, {measure} BIGINT"
    key = (LONGEST, "XMIN", "window")
    view = replace(pipeline.views[0], key=key, measures=(measure,), columns=columns, sinks=(JdbcTable(),))
    shape = served_shapes(replace(pipeline, views=(view,), reports=()))["by_zip"]
    assert [each.name for each in shape.columns] == [LONGEST, "XMIN", "window_start", "window_end", measure]


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (2_932_896, "9999-12-31"),
        (2_932_897, "10000-01-01"),
        (20_412_211, "57856-09-26"),
        (-719_162, "0001-01-01"),
        (-719_163, "0001-12-31 BC"),
        (-2_440_588, "4714-11-24 BC"),
        (-2_440_589, "-infinity"),
        (2145042905, "5874897-12-31"),
        (2145042906, "infinity"),
        (2**31 - 1, "infinity"),
        (-(2**31), "-infinity"),
    ],
)
def test_date_is_one_that_postgresql_holds_when_it_is_any_of_spark_s(days: int, text: str) -> None:
    assert date_text(days) == text


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (-1, "1969-12-31 23:59:59.999999+00"),
        (FAR, "57856-09-26 21:16:40.000000+00"),
        (2**63 - 1, "294247-01-10 04:00:54.775807+00"),
        (-2_440_588 * 86_400_000_000, "4714-11-24 00:00:00.000000+00 BC"),
        (-(2**63), "-infinity"),
    ],
)
def test_time_is_one_that_postgresql_holds_when_it_is_any_of_spark_s(microseconds: int, text: str) -> None:
    assert time_text(microseconds) == text


def test_texts_of_a_key_are_abbreviated_when_they_are_too_long_together(shape: Shape) -> None:
    def stored(a: str | None, b: str | None) -> list[object]:
        (row,) = stored_rows(shape, [(a, b, 0, 0, 0, 1)])
        return row[:2]

    assert stored("a" * 1_000, "b" * 1_000) == ["a" * 1_000, "b" * 1_000]
    assert stored("a" * 1_000, None) == ["a" * 1_000, None]
    long, short = stored("ä" * 1_000, "b" * 900)
    assert short == "b" * 900
    assert str(long).startswith("ä" * 16 + "… sha256 ")
    assert stored("ä" * 1_000, "b" * 900) == [long, short]
    assert stored("ä" * 1_001, "b" * 900)[0] not in (long, "ä" * 1_001)
    assert all(len(str(each).encode()) < 250 for each in stored("😀" * 9_000, "😀" * 9_000))


def test_registered_key_is_the_stream_s_when_python_cannot_hold_its_times(shape: Shape, tmp_path: Path) -> None:
    times, long = pa.array([FAR, 0], pa.timestamp("us", "UTC")), "x" * 3_000
    days = pa.array([20_412_211, 0], pa.int32()).cast(pa.date32())
    table = {"a": ["a", long], "b": [None, "b"], "day": days, "hits": [1, 2]}
    window = pa.StructArray.from_arrays([times, times], ["start", "end"])
    pq.write_table(pa.table({**table, "window": window}), tmp_path / "part.parquet")
    interval: Any = SimpleNamespace(location=tmp_path.as_uri(), id=7)
    of_stream = [("a", None, 20_412_211, FAR, FAR, 1), (long, "b", 0, 0, 0, 2)]
    registered = list(follow._rows(shape, interval, ["part.parquet"]))
    assert registered == [(*row, 7) for row in stored_rows(shape, of_stream)]
    assert registered[0][2:4] == ("57856-09-26", "57856-09-26 21:16:40.000000+00")
