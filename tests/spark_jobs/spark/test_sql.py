"""Results of SQL as JSON values: nothing of a value is lost, and a cut result says so."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

from include.errors import UsageError
from include.monitor import exact_json
from spark_jobs.spark import sql
from spark_jobs.spark.sql import run_statement, run_whole

pytestmark = pytest.mark.spark


def one(spark: SparkSession, expression: str) -> Any:
    ((value,),) = run_statement(spark, f"SELECT {expression} AS x").rows
    return value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("123456789012345.6789BD", Decimal("123456789012345.6789")),
        ("array(map('a', 0.12345678901234567890BD))", [{"a": Decimal("0.12345678901234567890")}]),
        ("12345678901234567890123456789BD", 12345678901234567890123456789),
        ("1.50BD", 1.5),
        ("-0.001BD", -0.001),
        ("2.5D", 2.5),
        ("cast('NaN' AS DOUBLE)", "NaN"),
        ("TIMESTAMP '2026-11-20 05:00:00'", "2026-11-20T05:00:00Z"),
        ("TIMESTAMP '2026-11-20 05:00:00.120'", "2026-11-20T05:00:00.120Z"),
        ("TIMESTAMP '2026-11-20 05:00:00.123456'", "2026-11-20T05:00:00.123456Z"),
        ("TIMESTAMP '1960-02-29 23:59:59.999999'", "1960-02-29T23:59:59.999999Z"),
        ("TIMESTAMP_NTZ '2026-11-20 05:00:00'", "2026-11-20T05:00:00"),
        ("TIMESTAMP_NTZ '2026-11-20 05:00:00.000001'", "2026-11-20T05:00:00.000001"),
        ("struct(array(TIMESTAMP '2026-11-20 05:00:00.123456') AS at)", {"at": ["2026-11-20T05:00:00.123456Z"]}),
        # What only looks like a time stays as it is.
        ("'2026-11-20T05:00:00.123000Z'", "2026-11-20T05:00:00.123000Z"),
        ("CAST(NULL AS TIMESTAMP)", None),
        ("DATE '2026-11-20'", "2026-11-20"),
    ],
)
def test_value_is_told_with_all_of_its_digits(spark: SparkSession, expression: str, value: Any) -> None:
    told = one(spark, expression)
    assert (told, type(told)) == (value, type(value))
    assert exact_json.loads(exact_json.dumps({"x": told})) == {"x": value}


def test_decimal_is_a_number_with_its_digits_when_it_is_written_as_json() -> None:
    text = exact_json.dumps({"x": [Decimal("123456789012345.6789"), Decimal("NaN"), 1.5, "1.5"]})
    assert text == '{"x": [123456789012345.6789, "NaN", 1.5, "1.5"]}'


def test_rows_are_cut_and_it_is_logged_when_there_are_more_than_are_shown(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sql, "MOST_ROWS", 3)

    def told() -> list[str]:
        # Py4J logs, too.
        return [each.getMessage() for each in caplog.records if each.name.startswith("tidemark")]

    assert len(run_statement(spark, "SELECT id FROM range(3)").rows) == 3
    assert told() == []
    assert len(run_statement(spark, "SELECT id FROM range(4)").rows) == 3
    assert ["only the first 3 rows are shown, there are more" in each for each in told()] == [True]
    caplog.clear()
    columns, rows = run_whole(spark, "SELECT id FROM range(4) ORDER BY id DESC")
    assert (columns, list(rows), told()) == (["id"], [[3], [2], [1], [0]], [])
    _, rows = run_whole(spark, "SELECT 1 / (9 - id) FROM range(0, 10, 1, 5)")
    with pytest.raises(UsageError, match="DIVIDE_BY_ZERO"):
        list(rows)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SELEKT 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT x", "UNRESOLVED_COLUMN"),
        ("SELECT 1 / id FROM range(3)", "DIVIDE_BY_ZERO"),
        ("SELECT CAST(concat('x', id) AS INT) FROM range(3)", "CAST_INVALID_INPUT"),
        ("SELECT CAST(concat('x', id) AS DATE) FROM range(3)", "CAST_INVALID_INPUT"),
        ("SELECT sequence(0, id)[5] FROM range(3)", "INVALID_ARRAY_INDEX"),
        ("SELECT make_date(2026, 13, int(id)) FROM range(3)", "DATETIME_FIELD_OUT_OF_BOUNDS"),
        ("SELECT CAST(concat('x', id) AS BOOLEAN) FROM range(3)", "CAST_INVALID_INPUT"),
        ("SELECT regexp_extract(concat('x', id), '(', 1) FROM range(3)", "INVALID_PARAMETER_VALUE"),
        ("SELECT raise_error(concat('no ', id)) FROM range(3)", "no [012]"),
        ("INSERT INTO lake.isp_hits_by_zip PARTITION (interval = 'x') VALUES (1)", "INSERT would change lake"),
        ("INSERT OVERWRITE lake.isp_hits SELECT * FROM lake.isp_hits", "INSERT would change lake"),
        ("DROP TABLE lake.isp_hits", "DROP would change lake"),
        ("drop database lake cascade", "DROP would change lake"),
        ("ALTER TABLE lake.isp_hits DROP PARTITION (date = '2026-11-20')", "ALTER would change lake"),
        ("ALTER TABLE lake.isp_hits PARTITION (date = 'x') SET LOCATION '/x'", "ALTER would change lake"),
        ("TRUNCATE TABLE lake.isp_hits", "TRUNCATE would change lake"),
        ("MSCK REPAIR TABLE lake.isp_hits", "MSCK would change lake"),
        ("CREATE TABLE lake.more AS SELECT 1 AS x", "CREATE would change lake"),
        ("CREATE VIEW lake.more AS SELECT 1 AS x", "CREATE would change lake"),
        ("DELETE FROM lake.isp_hits WHERE zipcode = '1'", "DELETE would change lake"),
        ("WITH t AS (SELECT 1 AS x) INSERT INTO lake.isp_hits SELECT * FROM t", "INSERT would change lake"),
        ("FROM range(1) INSERT INTO other.a SELECT id INSERT INTO lake.b SELECT id", "INSERT would change lake"),
        ("INSERT INTO LAKE.isp_hits VALUES (1)", "INSERT would change lake"),
        ("INSERT INTO spark_catalog.lake.isp_hits VALUES (1)", "INSERT would change lake"),
        ("INSERT INTO lake.isp_hits REPLACE WHERE x = 1 SELECT 1 AS x", "INSERT would change lake"),
        ("DROP TABLE IDENTIFIER('Lake.isp_hits')", "DROP would change lake"),
        ("DROP DATABASE spark_catalog.lake", "DROP would change lake"),
        ("EXECUTE IMMEDIATE 'DROP TABLE lake.isp_hits'", "EXECUTE IMMEDIATE would run what only its run tells"),
        ("BEGIN DROP TABLE lake.isp_hits; END", "BEGIN … END would run more than one statement"),
        ("INSERT OVERWRITE DIRECTORY '/x' USING parquet SELECT 1", "files that nothing knows of"),
        ("MERGE INTO lake.a USING lake.b ON a.x = b.x WHEN MATCHED THEN DELETE", "MERGE would change lake"),
        ("DELETE FROM lake.isp_hits AS hits WHERE hits.zipcode = '1'", "DELETE would change lake"),
        ("INSERT INTO IDENTIFIER('lake' || '.isp_hits') SELECT 1 AS x", "would name what only its run tells"),
        ("INSERT INTO IDENTIFIER('lake' || '.a') REPLACE WHERE x = 1 SELECT 1 AS x", "would name what only its run"),
        ("WITH t AS (SELECT 1) INSERT INTO IDENTIFIER('lake' || '.a') SELECT * FROM t", "would name what only its run"),
        ("DROP TABLE IDENTIFIER('lake' || '.isp_hits')", "would name what only its run tells"),
        ("TRUNCATE TABLE IDENTIFIER('lake' || '.isp_hits')", "would name what only its run tells"),
        ("DROP DATABASE IDENTIFIER('la' || 'ke')", "would name what only its run tells"),
        ('COMMENT ON TABLE lake.isp_hits IS "\'UnresolvedTable [other]"', "COMMENT would change lake"),
        ("ANALYZE TABLES IN lake COMPUTE STATISTICS", "ANALYZE would change lake"),
    ],
)
def test_statement_is_refused_when_it_is_wrong_or_meets_a_value_that_it_cannot_take(
    spark: SparkSession, statement: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        run_statement(spark, statement)


def test_every_column_is_told_when_several_have_one_name(spark: SparkSession) -> None:
    told = run_statement(spark, "SELECT a.id, b.id, 1.50BD AS id FROM range(1) a JOIN range(1) b ON a.id = b.id")
    assert (told.columns, told.rows) == (["id", "id", "id"], [[0, 0, 1.5]])


@pytest.mark.parametrize(
    "statement",
    [
        "SHOW TABLES IN default",
        "SHOW TABLES IN IDENTIFIER('def' || 'ault')",
        "DESCRIBE FUNCTION abs",
        "EXPLAIN SELECT 1",
        "SET spark.sql.ansi.enabled",
        "CLEAR CACHE",
    ],
)
def test_statement_that_only_shows_something_is_run(spark: SparkSession, statement: str) -> None:
    assert isinstance(run_statement(spark, statement).columns, list)


def test_view_of_the_session_is_made_when_it_reads_a_table_of_any_database(spark: SparkSession) -> None:
    run_statement(spark, "CREATE OR REPLACE TEMPORARY VIEW lake_of_two AS SELECT id FROM range(2)")
    assert run_statement(spark, "SELECT count(*) FROM lake_of_two").rows == [[2]]
    run_statement(spark, "DROP VIEW lake_of_two")
