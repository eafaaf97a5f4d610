"""A speed view's rows in PostgreSQL: keys and measures with nulls in them."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg2
import pytest
from psycopg2 import sql
from pyspark.sql import functions as F

from include import serving
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView
from include.serving.answers import Question, ask
from include.settings import settings
from spark_jobs.sinks.jdbc_table import JdbcTableTarget
from spark_jobs.spark.frames import frame_of
from spark_jobs.views.values import key_json
from tests.conftest import Home

pytestmark = pytest.mark.services

START = datetime(2026, 11, 20, 5, tzinfo=UTC)
COLUMNS = "name STRING, number INT, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, hits BIGINT"


def target(name: str) -> JdbcTableTarget:
    pipeline = load_pipeline("isp_hits")
    view: AdditiveView = replace(
        pipeline.views[0], name=name, key=("name", "number", "window"), measures=("hits",), columns=COLUMNS
    )
    return JdbcTableTarget(pipeline, view, lambda: None)


def values(spark: Any, view: AdditiveView, rows: list[tuple[str | None, int | None, int]]) -> Any:
    plain = frame_of(spark, [(*row, START) for row in rows], "name STRING, number INT, hits BIGINT, at TIMESTAMP")
    ended = F.col("at") + F.lit(timedelta(hours=1))
    window = F.struct(F.col("at").alias("start"), ended.alias("end")).alias("window")
    return plain.select("name", "number", window, "hits").select(key_json(view).alias("key"), "hits")


def in_serving(statement: sql.Composable) -> list[tuple[Any, ...]]:
    address = settings().database("serving").set(drivername="postgresql").render_as_string(hide_password=False)
    connection = psycopg2.connect(address)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def stored(table: str) -> set[tuple[Any, ...]]:
    query = sql.SQL("SELECT name, number, hits FROM {}").format(sql.Identifier(table))
    rows = in_serving(query)
    assert len(rows) == len(set(rows))
    return set(rows)


def test_null_is_a_value_of_its_own_when_a_key_has_an_empty_text_too(in_process: Home, spark: Any) -> None:
    to = target("nulls")
    to.write(values(spark, to.view, [(None, 1, 10), ("", 1, 20), ("a", None, 30), (None, None, 40)]), 0)
    to.write(values(spark, to.view, [(None, 1, 11), ("a", None, 31)]), 1)
    assert stored(to.table) == {(None, 1, 11), ("", 1, 20), ("a", None, 31), (None, None, 40)}
    # A base that is made again after a crash has the same version, and may have other values.
    for count in (7, 1):
        to.replace(values(spark, to.view, [(None, None, count)]), 2)
        assert stored(to.table) == {(None, None, count)}
    to.write(values(spark, to.view, [(None, None, 9)]), 2)
    to.replace(values(spark, to.view, [(None, None, 9)]), 1)

    def refuse() -> None:
        raise AnotherWriter("this driver's lease is over")

    # Else the base of a driver that was frozen would replace that of its successor.
    with pytest.raises(AnotherWriter):
        replace(to, check_lease=refuse).replace(values(spark, to.view, [(None, None, 9)]), 2)
    assert stored(to.table) == {(None, None, 1)}


def test_rows_stay_and_nulls_are_taken_when_earlier_code_made_the_table(in_process: Home, spark: Any) -> None:
    to = target("with_primary_key")
    in_serving(
        sql.SQL(
            "CREATE TABLE {} (name text NOT NULL, number integer NOT NULL, window_start timestamptz NOT NULL, "
            "window_end timestamptz NOT NULL, hits bigint NOT NULL, version bigint NOT NULL, "
            "PRIMARY KEY (name, number, window_start, window_end))"
        ).format(sql.Identifier(to.table))
    )
    row = sql.SQL("INSERT INTO {} VALUES ('a', 1, '2026-11-20T05:00:00Z', '2026-11-20T06:00:00Z', 5, 0)")
    in_serving(row.format(sql.Identifier(to.table)))
    for version in (1, 2):
        to.write(values(spark, to.view, [("a", 1, 5 + version), (None, 1, version)]), version)
        assert stored(to.table) == {("a", 1, 5 + version), (None, 1, version)}


def test_rows_stay_when_a_measure_is_renamed_and_wider_and_another_one_is_declared(
    in_process: Home, spark: Any
) -> None:
    to = target("later_measures")
    narrow = replace(to, view=replace(to.view, columns=COLUMNS.replace("hits BIGINT", "hits INT")))
    narrow.write(values(spark, to.view, [("a", 1, 5)]), 0)
    columns = f"{COLUMNS.replace('hits BIGINT', 'visits BIGINT')}, bytes DECIMAL(20,2)"
    renamed = {"visits": ("hits",)}
    later = replace(to, view=replace(to.view, measures=("visits", "bytes"), columns=columns, renamed=renamed))
    rows = values(spark, to.view, [("b", 1, 2**40)]).select(
        "key", F.col("hits").alias("visits"), F.lit(1.25).cast("DECIMAL(20,2)").alias("bytes")
    )
    later.write(rows, 1)
    query = sql.SQL("SELECT name, visits, bytes, state FROM live.{} ORDER BY name").format(sql.Identifier(to.table))
    assert in_serving(query) == [("a", 5, None, "live"), ("b", 2**40, Decimal("1.25"), "live")]


def test_table_is_made_anew_when_the_key_is_another(in_process: Home, spark: Any) -> None:
    to = target("another_key")
    to.write(values(spark, to.view, [("a", 1, 5)]), 0)
    key = ("name", "window")
    other = replace(to, view=replace(to.view, key=key, columns=COLUMNS.replace("number INT, ", "")))
    plain = values(spark, to.view, [("b", 1, 7)])
    from_key = F.from_json("key", "name STRING, window STRUCT<start: STRING, end: STRING>")
    rows = plain.select(F.to_json(from_key).alias("key"), "hits")
    other.replace(rows, 1)
    query = sql.SQL("SELECT name, hits FROM live.{}").format(sql.Identifier(to.table))
    assert in_serving(query) == [("b", 7)]


def test_null_sum_is_stored_when_earlier_code_made_the_table_without_nulls(in_process: Home, spark: Any) -> None:
    to = target("null_sums")
    to.write(values(spark, to.view, [("a", 1, 5)]), 0)
    in_serving(sql.SQL("ALTER TABLE {} ALTER COLUMN hits SET NOT NULL").format(sql.Identifier(to.table)))
    none: Any = None
    to.write(values(spark, to.view, [("a", 1, none), ("b", 1, 7)]), 1)
    assert stored(to.table) == {("a", 1, None), ("b", 1, 7)}
    to.write(values(spark, to.view, [("a", 1, 6), ("c", 1, none)]), 2)
    assert stored(to.table) == {("a", 1, 6), ("b", 1, 7), ("c", 1, None)}
    served = sql.SQL("SELECT name, hits, state FROM live.{} ORDER BY name").format(sql.Identifier(to.table))
    assert in_serving(served) == [("a", 6, "live"), ("b", 7, "live"), ("c", None, "live")]


def test_key_is_served_by_its_beginning_and_a_hash_when_it_is_longer_than_an_index_takes(
    in_process: Home, spark: Any
) -> None:
    to = target("long_keys")
    texts = [f"text {number} {secrets.token_hex(4_000)}" for number in range(2)]
    to.write(values(spark, to.view, [(texts[0], 1, 5), (texts[1], 1, 6), ("a" * 1_999, 1, 7)]), 0)
    to.write(values(spark, to.view, [(texts[0], 1, 8)]), 1)
    held = stored(to.table)
    assert {(name[:6], hits) for name, _, hits in held} == {("text 0", 8), ("text 1", 6), ("aaaaaa", 7)}
    assert ("a" * 1_999, 1, 7) in held
    with (
        pytest.raises(TidemarkError, match=r"exceeds btree|maximum size") as refused,
        serving.transaction("a test") as asked,
    ):
        asked.execute(f'CREATE INDEX ON "{to.table}" ((name || %s))', [secrets.token_hex(4_000)])
    assert not isinstance(refused.value, ServiceUnreachable)


def test_date_and_time_are_served_when_python_or_postgresql_cannot_hold_them(in_process: Home, spark: Any) -> None:
    to = target("far_times")
    columns = f"{COLUMNS}, day DATE, at TIMESTAMP".replace("number INT, ", "")
    to = replace(to, view=replace(to.view, key=("name", "day", "at", "window"), columns=columns))
    days = {"a": 20_412_211, "b": -719_163, "c": -2_500_000, "d": 2**31 - 1, "e": 0}
    plain = frame_of(spark, [(name, days[name], START) for name in days], "name STRING, days INT, start TIMESTAMP")
    # A window's time may lie as far as any.
    start = F.when(F.col("name") == "a", F.timestamp_micros(F.lit(1763615107000 * 10**6))).otherwise(F.col("start"))
    rows = plain.select(
        "name",
        F.date_from_unix_date("days").alias("day"),
        F.timestamp_micros(F.col("days").cast("bigint") * 1_000_000 + 1).alias("at"),
        F.struct(start.alias("start"), start.alias("end")).alias("window"),
        F.lit(1).cast("bigint").alias("hits"),
    ).select(key_json(to.view).alias("key"), "hits")
    to.write(rows, 0)
    to.write(rows, 1)
    query = sql.SQL("SELECT name, day::text, at::text, window_start::text FROM {} ORDER BY name")
    found = {name: rest for name, *rest in in_serving(query.format(sql.Identifier(to.table)))}
    assert {name: day for name, (day, *_) in found.items()} == {
        "a": "57856-09-26",
        "b": "0001-12-31 BC",
        "c": "-infinity",
        "d": "infinity",
        "e": "1970-01-01",
    }
    assert found["e"][1:] == ["1970-01-01 00:00:00.000001+00", "2026-11-20 05:00:00+00"]
    assert found["a"][2] == "57856-09-26 21:16:40+00"
    answer = ask(to._shape, Question("name", "a", timedelta(hours=1), 10))
    assert [(row["day"], row["window_start"]) for row in answer.rows] == [("57856-09-26", "57856-09-26 21:16:40+00")]
