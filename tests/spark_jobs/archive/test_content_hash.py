"""The hash of rows: what it tells apart, what it takes for the same, and by which version hashes are compared."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from spark_jobs.archive.content_hash import HashVersion, common_version, content_hash, row_hashes, sums, version_of

VALUES = {
    "STRING": ("NULL", "''", "'null'", "'a'", "'A'", "'a '"),
    "BIGINT": ("NULL", "0", "1", "-1"),
    "BOOLEAN": ("NULL", "true", "false"),
    "BINARY": ("NULL", "X''", "X'00'", "X'0000'"),
    "DOUBLE": ("NULL", "0D", "-0D", "double('NaN')", "double('Infinity')", "1D", "1.0000000000000002D"),
    "FLOAT": ("NULL", "0F", "-0F", "float('NaN')", "1F"),
    "DECIMAL(10,2)": ("NULL", "0.00", "0.01", "-0.01"),
    "DECIMAL(38,10)": ("NULL", "0.0000000000", "0.0000000001", "9999999999999999999999999999.9999999999"),
    "DATE": ("NULL", "DATE'1970-01-01'", "DATE'1969-12-31'"),
    "TIMESTAMP": ("NULL", "TIMESTAMP'2026-11-20 05:00:00.000001Z'", "TIMESTAMP'2026-11-20 05:00:00.000002Z'"),
    "TIMESTAMP_NTZ": (
        "NULL",
        "TIMESTAMP_NTZ'2026-11-20 05:00:00.000001'",
        "TIMESTAMP_NTZ'2026-11-20 05:00:00.000002'",
    ),
    "STRUCT<a: STRING, b: STRING>": (
        "NULL",
        "named_struct('a', NULL, 'b', NULL)",
        "named_struct('a', 'x', 'b', NULL)",
        "named_struct('a', NULL, 'b', 'x')",
    ),
    "ARRAY<STRING>": (
        "NULL",
        "array()",
        "array(NULL)",
        "array('')",
        "array('a', NULL)",
        "array(NULL, 'a')",
        "array('a', 'b')",
        "array('b', 'a')",
        "array('ab')",
    ),
    "ARRAY<ARRAY<INT>>": ("NULL", "array(array(1), array(2))", "array(array(1, 2), array())", "array(array(1, 2))"),
    "ARRAY<STRUCT<x: DOUBLE, y: INT>>": (
        "array(named_struct('x', 0D, 'y', 1))",
        "array(named_struct('x', -0D, 'y', 1))",
        "array(named_struct('x', NULL, 'y', 1))",
        "array(CAST(NULL AS STRUCT<x: DOUBLE, y: INT>))",
    ),
    "MAP<STRING, INT>": (
        "NULL",
        "map()",
        "map('a', 1)",
        "map('a', NULL)",
        "map('a', 1, 'b', NULL)",
        "map('b', 1, 'a', NULL)",
    ),
}
"""SQL of values that differ, by type."""


@pytest.mark.spark
def test_values_of_every_type_are_distinguished_in_both_lanes_when_they_differ(spark: Any) -> None:
    selected = []
    for kind, values in VALUES.items():
        schema = spark.sql(f"SELECT CAST(NULL AS {kind}) AS value").schema
        for value in values:
            row = spark.sql(f"SELECT CAST({value} AS {kind}) AS value").select(
                F.lit(kind).alias("kind"),
                F.lit(value).alias("of"),
                *(h.alias(f"h{n}") for n, h in enumerate(row_hashes(schema))),
            )
            selected.append(row)
    every = selected[0]
    for each in selected[1:]:
        every = every.unionByName(each)
    rows = every.collect()
    for lane in ("h0", "h1"):
        of_kind = {(row.kind, row[lane]) for row in rows}
        assert len(of_kind) == len(rows) == sum(map(len, VALUES.values()))
    assert len({row.h0 for row in rows} & {row.h1 for row in rows}) == 0


@pytest.mark.spark
def test_hash_changes_when_a_value_moves_to_the_next_column(spark: Any) -> None:
    frame = spark.sql("SELECT * FROM VALUES ('x', CAST(NULL AS STRING)), (NULL, 'x') AS (a, b)")
    one, two = row_hashes(frame.schema)
    rows = frame.select(one.alias("one"), two.alias("two")).collect()
    assert rows[0].one != rows[1].one
    assert rows[0].two != rows[1].two


@pytest.mark.spark
def test_hash_stays_when_a_number_is_widened(spark: Any) -> None:
    narrow, wide = (
        spark.sql(f"SELECT CAST(7 AS {i}) AS n, CAST(0.5 AS {f}) AS x")
        for i, f in (("INT", "FLOAT"), ("BIGINT", "DOUBLE"))
    )
    hashes = [
        frame.select(*(h.alias(f"h{n}") for n, h in enumerate(row_hashes(frame.schema)))).collect()
        for frame in (narrow, wide)
    ]
    assert hashes[0] == hashes[1]


@pytest.mark.spark
def test_sums_are_exact_when_a_bigint_would_overflow(spark: Any) -> None:
    hashes = [2**63 - 1, 2**63 - 1, -(2**63), -1, 1 << 32, None]
    frame = spark.createDataFrame([(each, each and -each - 1) for each in hashes], "hash_1 BIGINT, hash_2 BIGINT")
    (found,) = frame.agg(*sums()).collect()
    known = [each for each in hashes if each is not None]
    assert found["rows"] == len(hashes)
    assert (int(found["sum_1"]), int(found["sum_2"])) == (sum(known), sum(-each - 1 for each in known))


def test_oldest_version_is_used_when_hashes_of_several_are_compared() -> None:
    old, new = (content_hash(["b", "a"], 2, 3, 4, version) for version in (HashVersion.JSON, HashVersion.TYPED))
    assert old == content_hash(["a", "b"], 2, 3, 4, HashVersion.JSON)
    assert len(old) == 32
    assert new == f"v2:{old}"
    assert (version_of(old), version_of(new)) == (HashVersion.JSON, HashVersion.TYPED)
    assert common_version([]) is common_version([new]) is HashVersion.TYPED
    assert common_version([new, old]) is HashVersion.JSON
