"""Expectations that warn: what they let pass, what they show, and what is usual."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from expectations.usual import Usual, UsualBounds, bounds_of, usual_of
from include.ledger.intervals.findings import RecordCounts
from include.ledger.validation.usual import PastInterval
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Json
from include.times import Interval
from tests.conftest import REPOSITORY, SetSettings

INTERVAL = Interval(datetime(2026, 11, 20, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC))
PAST = [PastInterval(100 + number, timedelta(seconds=number)) for number in range(48)]


@pytest.fixture(autouse=True)
def main_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the main module a file: in a worker of pytest-xdist it has none, and Spark Connect then ends the process."""
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(REPOSITORY / "tests" / "conftest.py"), raising=False)


@pytest.fixture(scope="module")
def rows(spark: Any) -> Any:
    """30 rows, of which 25 have a kind that is not expected; one of these would colour a terminal."""
    kinds = ["'a'" if number < 5 else "'\\u001b[31m<b>'" if number == 5 else "'b'" for number in range(30)]
    values = ", ".join(f"('t', 0, {number}L, 0, {kind}, 1)" for number, kind in enumerate(kinds))
    columns = "kafka_topic, kafka_partition, kafka_offset, kafka_element, kind, amount"
    return spark.sql(f"SELECT * FROM VALUES {values} AS t({columns})").persist()


def expected(bounds: UsualBounds, rows: int) -> list[Any]:
    """The expectations of bounds."""
    from expectations.bounds import expectations_of_bounds

    return list(expectations_of_bounds(bounds, rows))


def check(rows: Any, *expectations: Any, accepted: Any = ()) -> tuple[bool, list[Any], list[Any]]:
    """Return whether the checkpoint passed, its results, and those that each call of `on_pass` got."""
    from expectations.checkpoint import run_checkpoint
    from include.pipelines.spec import IDENTITY

    told: list[Any] = []
    passed, found = run_checkpoint("t", expectations, rows, told.append, accepted=accepted, named_by=IDENTITY)
    return passed, found, told


@pytest.mark.spark
def test_revision_is_kept_back_when_a_warning_is_not_accepted_or_an_expectation_failed(rows: Any) -> None:
    from great_expectations import expectations as gxe

    warned = gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=["a"], severity="warning")
    met = gxe.ExpectColumnValuesToNotBeNull(column="kafka_topic")
    passed, found, told = check(rows, met, warned)
    assert (passed, told) == (False, [])
    assert [(each.expectation, each.success, each.severity) for each in found] == [
        ("expect_column_values_to_not_be_null", True, "fail"),
        ("expect_column_values_to_be_in_set", False, "warn"),
    ]
    passed, accepted_found, told = check(rows, met, warned, accepted={found[1].key})
    assert (passed, told) == (True, [accepted_found])
    passed, _, told = check(rows, met, warned, accepted={(*found[1].key[:2], "another", found[1].key[3])})
    assert (passed, told) == (False, [])
    failed = gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=2)
    passed, found, told = check(rows, warned, failed, accepted={each.key for each in found})
    assert (passed, told, found[1].severity) == (False, [], "fail")
    # A failure cannot be accepted.
    passed, found, told = check(rows, failed, accepted={found[1].key})
    assert (passed, told) == (False, [])


@pytest.mark.spark
def test_warning_is_not_let_pass_when_others_of_its_kind_were_accepted(rows: Any) -> None:
    from great_expectations import expectations as gxe

    query = "SELECT * FROM {{batch}} WHERE kind {} 'a'"
    warned = [
        gxe.ExpectTableRowCountToBeBetween(min_value=50, severity="warning"),
        *expected(UsualBounds(severity="warn", rows=(40, 90), kept=45), 30),
        *(gxe.UnexpectedRowsExpectation(unexpected_rows_query=query.format(sign), severity="warning") for sign in "=>"),
    ]
    _, found, _ = check(rows, *warned)
    assert len({each.key for each in found if not each.success}) == len(warned)
    passed, _, told = check(rows, *warned, accepted={each.key for each in found[:-1]})
    assert (passed, told) == (False, [])
    # Its bounds may be others by now.
    warned[1:3] = expected(UsualBounds(severity="warn", rows=(41, 92), kept=46), 30)
    assert check(rows, *warned, accepted={each.key for each in found})[0]


@pytest.mark.spark
def test_share_has_no_value_when_there_is_nothing_but_nulls(rows: Any) -> None:
    from great_expectations import expectations as gxe

    lengths = gxe.ExpectColumnValueLengthsToBeBetween(column="note", max_value=200)
    _, [found], _ = check(rows.selectExpr("*", "CAST(NULL AS STRING) AS note"), lengths)
    assert (found.success, found.observed, found.checked) == (True, "no value to look at", 0)
    assert (found.value, found.low, found.high) == (None, 1, 1)
    _, [found], _ = check(rows.selectExpr("*", "IF(kind = 'a', NULL, kind) AS note"), lengths)
    assert (found.observed, found.checked, found.value) == ("0 % unexpected", 25, 1)


@pytest.mark.spark
def test_nothing_is_kept_back_when_only_a_note_is_not_met(rows: Any) -> None:
    from great_expectations import expectations as gxe

    noted = gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=["a"], severity="info")
    passed, found, told = check(rows, noted)
    assert (passed, told) == (True, [found])
    assert [(each.success, each.severity, len(each.examples)) for each in found] == [(False, "info", 20)]


@pytest.mark.spark
def test_first_rows_that_do_not_meet_it_are_told_by_coordinates_and_safe_to_print_also_when_it_is_accepted(
    rows: Any,
) -> None:
    from great_expectations import expectations as gxe

    warned = gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=["a"], severity="warning")
    key = ("t", "expect_column_values_to_be_in_set", "kind", "kind is one of a")
    for accepted in ((), {key}):
        _, [found], told = check(rows, warned, accepted=accepted)
        assert len(found.examples) == 20
        # Without what a terminal would act upon; pages escape the rest.
        assert found.examples[0] == {
            "kafka_topic": "t",
            "kafka_partition": "0",
            "kafka_offset": "5",
            "kafka_element": "0",
            "kind": "[31m<b>",
        }
        assert [each[0].examples for each in told] == ([found.examples] if accepted else [])


@pytest.mark.spark
def test_results_count_when_they_have_no_form_in_json(rows: Any) -> None:
    from great_expectations import expectations as gxe
    from pyspark.sql import functions as F

    # Whether each quantile is met is a boolean of numpy.
    quantiles = {"quantiles": [0.5], "value_ranges": [[0, 1]]}
    passed, [found], told = check(
        rows, gxe.ExpectColumnQuantileValuesToBeBetween(column="amount", quantile_ranges=quantiles)
    )
    assert (passed, told, found.success) == (True, [[found]], True)
    # The examples of a column of intervals are timedeltas.
    lasting = rows.withColumn("kind", F.expr("INTERVAL '1' DAY"))
    passed, [found], told = check(lasting, gxe.ExpectColumnValuesToBeNull(column="kind"))
    assert (passed, told, len(found.examples)) == (False, [], 20)


@pytest.mark.spark
@pytest.mark.parametrize("severity", ["warning", "info"])
def test_check_fails_whatever_was_declared_when_it_raises(rows: Any, severity: Any) -> None:
    from great_expectations import expectations as gxe

    broken = gxe.ExpectColumnValuesToNotBeNull(column="no_such_column", severity=severity)
    key = ("t", "expect_column_values_to_not_be_null", "no_such_column", "no_such_column is never null")
    passed, [found], told = check(rows, broken, accepted={key})
    assert (passed, told) == (False, [])
    assert found.key == key
    # No question is asked: nobody could let it pass.
    assert (found.observed, found.severity) == (
        "the check itself failed: InvalidMetricAccessorDomainKwargsKeyError",
        "fail",
    )


@pytest.mark.spark
def test_error_of_a_check_is_named_without_values_of_rows_when_spark_raises_it(rows: Any) -> None:
    from great_expectations import expectations as gxe

    query = "SELECT * FROM {batch} WHERE CAST(kind AS INT) = 7"
    _, [found], _ = check(rows, gxe.UnexpectedRowsExpectation(unexpected_rows_query=query))
    assert found.observed.startswith("the check itself failed: ")
    assert "[CAST_INVALID_INPUT]" in found.observed
    assert "<b>" not in found.observed


def timed(rows: Any, at: str, kind: str) -> Any:
    """The rows with an event time of this type, as a suite gets those of an archive table."""
    from spark_jobs.publication.validate import named_for_suite

    columns, declared = f"at {kind}", load_pipeline("isp_hits")
    archive = Archive(rows="hits", columns=columns, event_time="at")
    pipeline = replace(declared, decoder=Json(schema=columns), archive=archive, views=(), reports=(), outputs=())
    return named_for_suite(pipeline, pipeline.table, rows.selectExpr("*", f"CAST('{at}' AS {kind}) AS at"))


@pytest.mark.spark
@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("TIMESTAMP", "2026-11-20 05:40:00", "2026-11-20 05:59:00"),
        ("TIMESTAMP_NTZ", "2026-11-20 05:40:00", "2026-11-20 05:59:00"),
        ("STRING", "2026-11-20T05:40:00Z", "2026-11-20T05:59:00Z"),
        ("STRING", "soon", "2026-11-20T05:59:00Z"),
        ("DATE", "2026-11-20", "2026-11-21"),
    ],
)
def test_too_few_and_old_rows_warn_when_intervals_before_had_more_and_newer_ones(
    spark: Any, rows: Any, kind: str, old: str, new: str
) -> None:
    bounds = bounds_of(Usual(severity="warn"), "t", PAST, INTERVAL)
    _, found, _ = check(timed(rows, old, kind), *expected(bounds, 30))
    assert [(each.words, each.success, each.severity, each.column) for each in found] == [
        ("the table has 50 to 294 rows, as the 48 intervals before suggest", False, "warn", ""),
        ("the newest row is of 2026-11-20 05:58:26 UTC or later, as is usual", False, "warn", "event_time"),
    ]
    assert "the check itself failed" not in found[1].observed
    passed, found, _ = check(timed(rows.union(rows), new, kind), *expected(bounds, 60))
    assert passed, found


@pytest.mark.spark
def test_event_time_is_as_declared_when_a_pipeline_s_own_expectation_names_it(rows: Any) -> None:
    from great_expectations import expectations as gxe

    written = gxe.ExpectColumnValuesToMatchRegex(column="event_time", regex="^soon$")
    passed, found, _ = check(timed(rows, "soon", "STRING"), written)
    assert passed, found


@pytest.mark.spark
def test_empty_table_warns_and_its_own_suite_is_left_out_when_rows_are_usual(spark: Any, rows: Any) -> None:
    from expectations.checkpoint import expectations_of

    pipeline = load_pipeline("isp_hits")
    bounds = bounds_of(Usual(severity="warn"), pipeline.table, PAST, INTERVAL)
    suite = expectations_of(pipeline, pipeline.table, 0, bounds)
    passed, found, told = check(rows.limit(0), *suite)
    assert (passed, told) == (False, [])
    assert [each.expectation for each in found if not each.success] == ["expect_table_row_count_to_be_between"]
    assert suite[-1].severity == "warning"


@pytest.mark.spark
@pytest.mark.parametrize("table", ["isp_hits", "isp_hits_by_zip"])
def test_table_without_rows_is_judged_when_its_suite_expects_some(
    spark: Any, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    from great_expectations import expectations as gxe

    from expectations import isp_hits
    from spark_jobs.publication.validate import validate

    monkeypatch.setattr("expectations.usual.past_intervals", lambda *_: PAST if table == "isp_hits" else [])
    build = SimpleNamespace(records=RecordCounts(), code_changes={})
    attempt = SimpleNamespace(findings=SimpleNamespace(build=build))
    pinned = SimpleNamespace(interval=INTERVAL)
    run: Any = SimpleNamespace(spark=spark, pipeline=load_pipeline("isp_hits"), attempt=attempt, pinned=pinned)
    told: list[Any] = []
    assert validate(run, [], told.append).success
    some = gxe.ExpectTableRowCountToBeBetween(min_value=1)
    monkeypatch.setitem(isp_hits.SUITES, table, [*isp_hits.SUITES[table], some])
    judged = validate(run, [], told.append)
    assert (judged.success, len(told)) == (False, 1)
    first = judged.failed[0]
    assert (first.table, first.words, first.observed) == (table, "the number of rows is at least 1", "0")
    # An erasure that took them out could not end.
    build.records = RecordCounts(erased=3)
    assert [each for each in validate(run, [], told.append).failed if each.severity == "fail"] == []


@pytest.mark.spark
def test_person_is_asked_when_other_code_takes_out_more_than_half_of_the_registered_rows(rows: Any) -> None:
    from expectations.checkpoint import expectations_of

    pipeline = load_pipeline("isp_hits")
    bounds = UsualBounds(severity="info", kept=15)
    empty = check(rows.limit(0), *expectations_of(pipeline, pipeline.table, 0, bounds))
    [missed] = [each for each in empty[1] if not each.success]
    assert (missed.severity, missed.observed) == ("warn", "0")
    assert "--source archive" in missed.words
    assert empty[0] is False
    assert check(rows.limit(0), *expected(bounds, 0), accepted={missed.key})[0]
    assert check(rows.limit(14), *expected(bounds, 14))[0] is False
    assert check(rows.limit(15), *expected(bounds, 15))[0]


def test_bounds_are_half_the_smallest_and_twice_the_largest_when_earlier_intervals_suggest_them() -> None:
    bounds = bounds_of(Usual(), "t", PAST, INTERVAL)
    assert bounds.rows == (50, 294)
    assert bounds.newest_after == INTERVAL.to_time - timedelta(seconds=94)
    assert bounds.not_checked == ()
    wider = bounds_of(Usual(factor=4, severity="fail"), "t", PAST, INTERVAL)
    assert wider.rows == (25, 588)
    assert {each.severity for each in expected(wider, 30)} == {"critical"}
    noted = bounds_of(Usual(severity="info"), "t", PAST, INTERVAL)
    assert {each.severity for each in expected(noted, 30)} == {"info"}


def test_a_minute_may_be_missing_when_rows_come_until_the_very_end() -> None:
    past = [PastInterval(10, timedelta(seconds=-3))] * 48
    assert bounds_of(Usual(), "t", past, INTERVAL).newest_after == INTERVAL.to_time - timedelta(minutes=1)


def test_nothing_is_usual_and_reported_so_when_too_few_intervals_are_registered() -> None:
    bounds = bounds_of(Usual(), "t", PAST[:47], INTERVAL)
    assert expected(bounds, 30) == []
    assert not bounds.expects_rows
    assert bounds.not_checked == (
        "whether rows and freshness of t are usual: "
        "it takes 48 registered earlier intervals of its length, and there are 47",
    )
    assert bounds_of(Usual(at_least=3), "t", PAST[:3], INTERVAL).expects_rows


def test_freshness_alone_is_not_checked_and_it_is_said_when_too_few_intervals_have_a_newest_row() -> None:
    past = [*PAST[:47], *[PastInterval(100, None)] * 5]
    bounds = bounds_of(Usual(), "t", past, INTERVAL)
    assert [each.expectation_type for each in expected(bounds, 30)] == ["expect_table_row_count_to_be_between"]
    assert bounds.not_checked == (
        "whether the freshness of t is usual: "
        "it takes 48 earlier intervals of its length with a newest row, and there are 47",
    )


@pytest.mark.parametrize("factor", [1e10, 1e300])
def test_freshness_has_no_bound_and_it_is_said_when_no_time_is_that_far_back(factor: float) -> None:
    bounds = bounds_of(Usual(factor=factor), "t", PAST, INTERVAL)
    assert [each.expectation_type for each in expected(bounds, 30)] == ["expect_table_row_count_to_be_between"]
    assert bounds.not_checked == (
        f"whether the freshness of t is usual: its greatest lag times the factor {factor} is longer than any time",
    )


def test_freshness_is_not_expected_when_an_interval_has_no_row() -> None:
    bounds = bounds_of(Usual(), "t", PAST, INTERVAL)
    assert [each.expectation_type for each in expected(bounds, 0)] == ["expect_table_row_count_to_be_between"]


def test_empty_interval_is_usual_when_earlier_ones_were_empty() -> None:
    assert not bounds_of(Usual(), "t", [*PAST, PastInterval(0, None)], INTERVAL).expects_rows


@pytest.mark.parametrize("declared", [{"at_least": 0}, {"at_least": 169}, {"factor": 0.5}, {"severity": "warning"}])
def test_what_cannot_be_usual_is_refused_when_it_is_declared(declared: Any) -> None:
    with pytest.raises(ValueError, match="at_least is from 1 to 168"):
        Usual(**declared)


@pytest.mark.parametrize(("setting", "severity"), [(None, "info"), ("warn", "warn")])
def test_unusual_interval_is_only_reported_when_the_setting_asks_for_no_more(
    monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings, setting: str | None, severity: str
) -> None:
    monkeypatch.setattr("expectations.usual.past_intervals", lambda *_: PAST)
    set_settings(**({"TIDEMARK_UNUSUAL": setting} if setting else {}))
    assert usual_of(load_pipeline("isp_hits"), INTERVAL).severity == severity
    # A suite that changes only a bound says nothing about the severity.
    monkeypatch.setattr("expectations.isp_hits.USUAL", Usual(factor=3), raising=False)
    assert usual_of(load_pipeline("isp_hits"), INTERVAL).severity == severity


@pytest.mark.spark
def test_table_is_not_read_once_more_for_each_expectation_when_all_are_met(
    spark: Any, rows: Any, tmp_path: Path
) -> None:
    from great_expectations import expectations as gxe

    rows.write.parquet(str(tmp_path / "rows"))
    written = spark.read.parquet(str(tmp_path / "rows"))

    def jobs_of(names: list[str]) -> int:
        spark.sparkContext.setJobGroup(f"{len(names)} expectations", "checked")
        try:
            passed, _, _ = check(written, *(gxe.ExpectColumnValuesToNotBeNull(column=name) for name in names))
        finally:
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
        assert passed
        return len(spark.sparkContext.statusTracker().getJobIdsForGroup(f"{len(names)} expectations"))

    few, many = jobs_of(["kind"]), jobs_of(["kind", "amount", "kafka_topic", "kafka_partition", "kafka_offset"])
    assert many == few > 0
