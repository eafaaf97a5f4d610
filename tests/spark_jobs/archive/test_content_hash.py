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
    "ARRAY<STRUCT<x: STRING, y: STRING>>": (
        "NULL",
        "array()",
        "array(CAST(NULL AS STRUCT<x: STRING, y: STRING>))",
        "array(named_struct('x', 'a', 'y', 'b'))",
        "array(named_struct('x', 'b', 'y', 'a'))",
        "array(named_struct('x', 'a', 'y', NULL))",
        "array(named_struct('x', NULL, 'y', 'a'))",
        "array(named_struct('x', 'a', 'y', 'b'), named_struct('x', NULL, 'y', NULL))",
        "array(named_struct('x', 'a', 'y', 'b'), CAST(NULL AS STRUCT<x: STRING, y: STRING>))",
        # The text that is looked for.
        "array(named_struct('x', '\\u0000', 'y', 'b'))",
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


GOLDEN = {
    "STRING": "v2:83c8376c393b43b101e5b99053dbd00b",
    "BIGINT": "v2:3c2a3dbe364090df385da5e3721df0b4",
    "BOOLEAN": "v2:93bf212eac3acb26e6142a6189c06cad",
    "BINARY": "v2:b1e43db2d176db78aa997282ede88d9b",
    "DOUBLE": "v2:90cf0f341c8ca8d8124cf8ddfeb97e83",
    "FLOAT": "v2:c61ebd08eae059300675c366dc17aa0c",
    "DECIMAL(10,2)": "v2:3c2a3dbe364090df385da5e3721df0b4",
    "DECIMAL(38,10)": "v2:58a833950d92cf064144cd9e3979e369",
    "DATE": "v2:e9bda8ecbd5581f87c80794c085cccae",
    "TIMESTAMP": "v2:9d6fed616b26c9db5916ebe0e9fc003c",
    "TIMESTAMP_NTZ": "v2:9d6fed616b26c9db5916ebe0e9fc003c",
    "STRUCT<a: STRING, b: STRING>": "v2:0a420b0f6a81a76aedd73ae6f55825a8",
    "ARRAY<STRING>": "v2:486501d90936033eecf1d3228eca14da",
    "ARRAY<STRUCT<x: STRING, y: STRING>>": "v2:135f147920be8cddee8ccc1bce613b09",
    "ARRAY<ARRAY<INT>>": "v2:e9175c37fbd27ad2a5e46f2069e1e9e4",
    "ARRAY<STRUCT<x: DOUBLE, y: INT>>": "v2:01fb333659efec20a95b367bd35d3dd1",
    "MAP<STRING, INT>": "v2:d9e9f36ab3c5e98012c7de588e59c4bd",
}
"""Content hashes of these values by type. Registered hashes are compared with new ones: others are another version."""


@pytest.fixture(scope="module")
def hashed(spark: Any) -> list[Any]:
    """The values with their types and the hashes of both lanes."""
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
    rows: list[Any] = every.collect()
    return rows


@pytest.mark.spark
def test_values_of_every_type_are_distinguished_in_both_lanes_when_they_differ(hashed: list[Any]) -> None:
    for lane in ("h0", "h1"):
        of_kind = {(row.kind, row[lane]) for row in hashed}
        assert len(of_kind) == len(hashed) == sum(map(len, VALUES.values()))
    assert len({row.h0 for row in hashed} & {row.h1 for row in hashed}) == 0


@pytest.mark.spark
def test_hashes_of_every_type_are_those_that_are_registered_when_the_values_are_equal(hashed: list[Any]) -> None:
    by_kind = {kind: [row for row in hashed if row.kind == kind] for kind in VALUES}
    found = {
        kind: content_hash(["value"], len(rows), sum(row.h0 for row in rows), sum(row.h1 for row in rows))
        for kind, rows in by_kind.items()
    }
    assert found == GOLDEN


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
