"""Keys of a speed view as JSON: two keys stay two, and what was written of one stays as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView

pytestmark = pytest.mark.spark

TOTAL = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
COLUMNS = (
    "seen TIMESTAMP, local TIMESTAMP_NTZ, trip STRUCT<began: TIMESTAMP, stops: ARRAY<TIMESTAMP>, name: STRING>, "
    "day DATE, hits BIGINT"
)


def times() -> AdditiveView:
    return replace(TOTAL, key=("seen", "local", "trip", "day"), columns=COLUMNS)


def keys(spark: Any, *values: str) -> list[str]:
    """The keys of rows that these values of `COLUMNS` give."""
    from spark_jobs.views.values import key_json

    rows = " UNION ALL ".join(f"SELECT {each}, 1L" for each in values)
    frame = spark.sql(rows).toDF("seen", "local", "trip", "day", "hits").to(spark.createDataFrame([], COLUMNS).schema)
    return [row[0] for row in frame.select(key_json(times())).collect()]


def row(fraction: str) -> str:
    seen = f"TIMESTAMP '2026-11-20 05:00:00{fraction}'"
    trip = f"named_struct('began', {seen}, 'stops', array({seen}, NULL), 'name', 'a')"
    return f"{seen}, TIMESTAMP_NTZ '2026-11-20 05:00:00{fraction}', {trip}, DATE '2026-11-20'"


def test_key_is_written_in_whole_seconds_when_its_times_have_no_more(spark: Any) -> None:
    assert keys(spark, row("")) == [
        '{"day":"2026-11-20","local":"2026-11-20T05:00:00.000","seen":"2026-11-20T05:00:00Z",'
        '"trip":{"began":"2026-11-20T05:00:00Z","stops":["2026-11-20T05:00:00Z",null],"name":"a"}}'
    ]


def test_keys_stay_apart_when_their_times_differ_by_a_microsecond(spark: Any) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.spark.frames import frame_of
    from spark_jobs.views.values import key_columns

    fractions = ("", ".000001", ".5", ".123456")
    found = keys(spark, *map(row, fractions))
    assert len(set(found)) == len(fractions)
    assert json.loads(found[1])["trip"]["stops"] == ["2026-11-20T05:00:00.000001Z", None]
    assert json.loads(found[2])["seen"] == "2026-11-20T05:00:00.500000Z"
    read = frame_of(spark, [(each,) for each in found], "key STRING").select(*key_columns(times(), F.col("key")))
    texts = read.select(*(F.col(name).cast("string") for name in ("seen", "local", "trip.began"))).collect()
    assert [set(each) for each in texts] == [{f"2026-11-20 05:00:00{fraction}"} for fraction in fractions]


def test_null_is_written_when_a_key_has_no_time(spark: Any) -> None:
    assert keys(spark, "NULL, NULL, NULL, NULL") == ['{"day":null,"local":null,"seen":null,"trip":null}']


@pytest.mark.parametrize("year", ["0002", "1969", "9998"])
def test_time_of_any_year_is_told_to_the_microsecond(spark: Any, year: str) -> None:
    from spark_jobs.views.values import key_json

    view = replace(TOTAL, key=("seen",), columns="seen TIMESTAMP, hits BIGINT")
    frame = spark.sql(f"SELECT TIMESTAMP '{year}-12-30 23:59:59.999999' AS seen, 1L AS hits")
    assert frame.select(key_json(view)).first()[0] == f'{{"seen":"{year}-12-30T23:59:59.999999Z"}}'
