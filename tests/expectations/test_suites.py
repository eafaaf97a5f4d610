"""No single message that a pipeline archives may fail its suite: that would stop everybody else's rows, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from expectations.sentences import observation
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Json, Pipeline
from include.pipelines.spec.names import OWN_SUITE_MODULES
from include.times import Interval
from tests.conftest import REPOSITORY
from tests.golden.sample import event_time, lines_of
from tests.support.shipped import SHIPPED, UNUSED, all_pipelines

pytestmark = pytest.mark.spark

AS_JSON = {
    "gps_positions": Json(
        "timestamp BIGINT, deviceId BIGINT, latitude DOUBLE, longitude DOUBLE, altitude DOUBLE, speed DOUBLE, "
        "accuracy DOUBLE"
    )
}
"""Decoders of the same fields for pipelines whose messages are of another format, and have all fields, never null."""

PIPELINES = [
    pipeline.name for pipeline in all_pipelines() if isinstance(pipeline.decoder, Json) or pipeline.name in AS_JSON
]
TEXTS = ("", " ", "x" * 100, "x" * 101, "x" * 200, "x" * 201, "é" * 150, "x" * 5_000, "\u0000", "NULL", "../..", "0")
UNUSUAL = {
    "nest_cameras": ("is_online IS NULL",),
    "isp_hits": ("user IS NULL",),
    "wiki_changes": ("user IS NULL", "type = 'NULL'"),
}
"""By pipeline, what a row may be although most are not."""
NUMBERS = (-1e300, -1e9, -2, -0.001, 0, 0.001, 1.005, 1e9, 1e300)


def variations(value: Any) -> Iterator[Any]:
    """The value with each of its texts and numbers, in turn, replaced by each extreme one, by null, and left out."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {key: each for key, each in value.items() if key != name}
            yield from ({**value, name: other} for other in variations(inner))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in variations(inner))
    else:
        yield from (TEXTS if isinstance(value, str) else (True, False) if isinstance(value, bool) else NUMBERS)
        yield None


def first_message(pipeline: Pipeline) -> tuple[dict[str, Any], datetime]:
    """The first message of the pipeline's golden ones, or of the sample that it was made from, and when it arrived.

    Skips the test where a pipeline has neither: nothing else needs them.
    """
    folder = REPOSITORY / "tests" / "golden" / pipeline.name
    golden, sample = folder / "messages.jsonl", folder / "sample.jsonl"
    if pipeline.name in AS_JSON:
        first = json.loads(lines_of((folder / "values.jsonl").read_text(encoding="utf-8"))[0])
        arrival = datetime.fromisoformat(first["timestamp"])
        return {**first["row"], "timestamp": int(arrival.timestamp() * 1000)}, arrival
    if golden.exists():
        first = json.loads(lines_of(golden.read_text(encoding="utf-8"))[0])
        return json.loads(first["value"]), datetime.fromisoformat(first["timestamp"])
    if not sample.exists():
        pytest.skip(f"{pipeline.name} has no message to vary: write one into {golden.relative_to(REPOSITORY)}")
    first = json.loads(lines_of(sample.read_text(encoding="utf-8"))[0])
    return first, event_time(pipeline, first)


def archived(spark: Any, name: str) -> Any:
    """The archive rows of all variations of the pipeline's first message."""
    from spark_jobs.decoding.records import archive_rows, decode
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.spark.kafka_source import KAFKA_COLUMNS

    pipeline = load_pipeline(name)
    message, moment = first_message(pipeline)
    varied = list(variations(message))
    if name in AS_JSON:
        pipeline = replace(pipeline, decoder=AS_JSON[name])
        varied = [each for each in varied if each.keys() == message.keys() and None not in each.values()]
    values = [json.dumps(each).encode() for each in varied]
    records = [(None, value, "golden", 0, offset, moment, 0, []) for offset, value in enumerate(values)]
    return archive_rows(pipeline, decode(pipeline, frame_of(spark, records, KAFKA_COLUMNS)))


def columns_in(expectation: Any) -> list[str]:
    """The columns that an expectation names."""
    given = [getattr(expectation, name, None) for name in ("column", "column_A", "column_B")]
    return [name for name in given if name] + list(getattr(expectation, "column_list", None) or [])


@pytest.fixture(scope="module")
def varied(spark: Any) -> Iterator[Callable[[str], Any]]:
    """Those rows of each pipeline, which are decoded once."""
    kept: dict[str, Any] = {}

    def rows(name: str) -> Any:
        if name not in kept:
            kept[name] = archived(spark, name).persist()
        return kept[name]

    yield rows
    for each in kept.values():
        each.unpersist()


@pytest.mark.parametrize("name", PIPELINES)
def test_every_expectation_of_a_row_is_met_when_its_message_is_archived(
    spark: Any, varied: Callable[[str], Any], name: str
) -> None:
    from great_expectations.expectations.expectation import (
        ColumnMapExpectation,
        ColumnPairMapExpectation,
        MulticolumnMapExpectation,
    )

    from expectations.checkpoint import expectations_of, run_checkpoint
    from spark_jobs.decoding.records import load_references
    from spark_jobs.publication.validate import named_for_suite
    from spark_jobs.views.aggregate import aggregate_view

    pipeline = load_pipeline(name)
    rows = varied(name)
    references = load_references(spark, pipeline)
    frames = {pipeline.table: rows} | {
        pipeline.view_table(view): aggregate_view(pipeline, view, rows, references) for view in pipeline.views
    }
    for table, frame in frames.items():
        expectations = expectations_of(pipeline, table, frame.count())
        # Only expectations of single rows; no single message decides about shares and counts.
        of_rows = {
            (each.expectation_type, ", ".join(columns_in(each)))
            for each in expectations
            if isinstance(each, ColumnMapExpectation | ColumnPairMapExpectation | MulticolumnMapExpectation)
            and each.mostly == 1
        }
        # The archive's identity is always checked; of a user's view nothing need be expected.
        assert of_rows or (table != pipeline.table and name not in SHIPPED)
        _, outcomes = run_checkpoint(table, expectations, named_for_suite(pipeline, table, frame), lambda _: None)
        judged = [each for each in outcomes if (each.expectation, each.column) in of_rows]
        assert {(each.expectation, each.column) for each in judged} == of_rows
        assert [each for each in judged if not each.success] == []


def checked(expectation: Any, **details: Any) -> Any:
    """A result of the expectation with these details."""
    config = expectation.configuration
    return SimpleNamespace(expectation_config=config, result=details, exception_info={}, success=True)


def test_expectation_names_its_columns_when_it_is_put_into_words() -> None:
    from expectations.checkpoint import _result, expectations_of

    keys = set()
    for pipeline in all_pipelines():
        for table in pipeline.tables:
            for each in expectations_of(pipeline, table, 7):
                found, named = _result(table, checked(each)), columns_in(each)
                assert [name for name in named if name not in found.words] == []
                assert found.column == ", ".join(named)
                keys.add(found.key[:3])
    pair = "expect_column_pair_values_a_to_be_greater_than_b"
    assert ("gps_positions_hourly_counts", pair, "positions, moving") in keys


def test_words_say_what_passes_when_equal_values_do_or_a_share_of_rows_is_enough() -> None:
    from great_expectations import expectations as gxe

    from expectations.checkpoint import _result

    def words(expectation: Any) -> str:
        return _result("t", checked(expectation)).words

    pair = {"column_A": "a", "column_B": "b"}
    assert words(gxe.ExpectColumnPairValuesAToBeGreaterThanB(**pair, or_equal=True)) == "a is at least b"
    assert words(gxe.ExpectColumnPairValuesAToBeGreaterThanB(**pair)) == "a is greater than b"
    assert words(gxe.ExpectColumnPairValuesToBeEqual(**pair)) == "column pair values to be equal (a, b)"
    kinds = gxe.ExpectColumnValuesToBeInSet(column="type", value_set=["edit", "new"], mostly=0.9)
    assert words(kinds) == "type is one of edit, new for at least 90 % of rows"
    assert words(gxe.ExpectColumnValuesToNotBeNull(column="user")) == "user is never null"
    most = gxe.ExpectColumnValuesToNotBeNull(column="user", mostly=0.995)
    assert words(most) == "user is not null for at least 99.5 % of rows"
    amount = partial(gxe.ExpectColumnValuesToBeBetween, column="amount")
    assert words(amount(min_value=0.5, strict_min=True)) == "amount is greater than 0.5"
    assert words(amount(min_value=0.5, max_value=9.5, strict_max=True)) == "amount is at least 0.5 and less than 9.5"
    assert words(amount(min_value=0.5, max_value=9.5)) == "amount is between 0.5 and 9.5"


def test_words_say_all_that_is_expected_when_the_kind_has_no_sentence_of_its_own() -> None:
    from great_expectations import expectations as gxe
    from great_expectations.expectations.row_conditions import Column

    from expectations.checkpoint import _result

    class ExpectKindsToBeKnown(gxe.ExpectColumnValuesToBeInSet):
        column: str = "kind"
        value_set: Any = ("b", "a")
        mostly: float = 0.9

    said = {
        "kind is one of a, b": gxe.ExpectColumnValuesToBeInSet(column="kind", value_set=["b", "a"]),
        "the number of rows is between 1 and 9": gxe.ExpectTableRowCountToBeBetween(min_value=1, max_value=9),
        "the table has exactly 5 rows": gxe.ExpectTableRowCountToEqual(value=5),
        "the max of amount is less than 9.5": gxe.ExpectColumnMaxToBeBetween(
            column="amount", max_value=9.5, strict_max=True
        ),
        "column values to not be in set (kind, value_set={a, b})": gxe.ExpectColumnValuesToNotBeInSet(
            column="kind", value_set={"b", "a"}
        ),
        "no row is found by SELECT * FROM {batch} WHERE amount < 0": gxe.UnexpectedRowsExpectation(
            unexpected_rows_query="SELECT *\n  FROM {batch}\n  WHERE amount < 0"
        ),
        "kind is never null where amount > 5": gxe.ExpectColumnValuesToNotBeNull(
            column="kind", row_condition=Column("amount") > 5
        ),
        "the feed is alive": gxe.ExpectTableRowCountToBeBetween(min_value=1, description="the feed\nis alive"),
    }
    for words, expectation in said.items():
        assert _result("t", checked(expectation)).words == words
    # What Great Expectations says about its own kind is no argument.
    unique = gxe.ExpectColumnUniqueValueCountToBeBetween(column="kind", max_value=3)
    assert _result("t", checked(unique)).words == "the unique value count of kind is at most 3"
    rising = gxe.ExpectColumnValuesToBeIncreasing(column="amount")
    assert "maturity" not in _result("t", checked(rising)).words
    found = _result("t", checked(ExpectKindsToBeKnown(), element_count=8, missing_count=4, unexpected_percent=25.0))
    assert found.words == "kinds to be known (kind, value_set={a, b}) for at least 90 % of rows"
    assert (found.column, found.value, found.low, found.checked) == ("kind", 0.75, 0.9, 4)
    known = gxe.ExpectColumnDistinctValuesToContainSet(column="kind", value_set=["a"])
    assert _result("t", checked(known, observed_value=None, missing_count=1)).observed == "1 missing"


@pytest.mark.parametrize(
    ("percent", "said"),
    [
        (0.0, "0 % unexpected"),
        (1e-7, "< 0.0001 % unexpected"),
        (3.14159, "3.14 % unexpected"),
        (99.96, "> 99.9 % unexpected"),
        (100.0, "100 % unexpected"),
        (None, "no value to look at"),
    ],
)
def test_share_is_rounded_neither_to_none_nor_to_all(percent: float | None, said: str) -> None:
    assert observation({"unexpected_percent": percent}) == said


@pytest.mark.parametrize("name", UNUSUAL)
def test_interval_waits_for_nobody_when_rows_lack_what_is_optional(varied: Callable[[str], Any], name: str) -> None:
    from expectations.checkpoint import expectations_of, run_checkpoint
    from spark_jobs.publication.validate import named_for_suite

    pipeline = load_pipeline(name)
    rows = varied(name)
    usual = rows.where(" AND ".join(f"NOT coalesce({each}, true)" for each in UNUSUAL[name])).limit(3)
    for unusual in UNUSUAL[name]:
        few = usual.union(rows.where(unusual).limit(1)).persist()
        assert few.count() == 4
        expectations = expectations_of(pipeline, pipeline.table, 4)
        named = named_for_suite(pipeline, pipeline.table, few)
        _, outcomes = run_checkpoint(pipeline.table, expectations, named, lambda _: None)
        missed = [each for each in outcomes if not each.success]
        assert [each.severity for each in missed] == ["info"], missed
        few.unpersist()


@pytest.mark.parametrize("without", ["hits", "a view"])
def test_missing_suite_is_named_with_its_file_when_a_table_has_none(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from expectations import isp_hits
    from expectations.checkpoint import check_suites, expectations_of

    pipeline = load_pipeline("isp_hits")
    check_suites(pipeline)
    table = pipeline.table if without == "hits" else pipeline.view_table(pipeline.views[-1])
    monkeypatch.setattr(isp_hits, "SUITES", {name: each for name, each in isp_hits.SUITES.items() if name != table})
    for check in (check_suites, lambda of: expectations_of(of, table, 1)):
        with pytest.raises(UsageError, match=f"expectations/isp_hits.py has no suite of the table {table}") as refused:
            check(pipeline)
        assert f'"{table}": []' in refused.value.remedy


@pytest.mark.parametrize("missing", ["file", "SUITES"])
def test_suite_file_is_wrong_usage_and_said_when_it_is_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from expectations import isp_hits
    from expectations.checkpoint import check_suites
    from expectations.usual import usual_of

    monkeypatch.delattr(isp_hits, "SUITES")
    name, said = (UNUSED, "is not there") if missing == "file" else ("isp_hits", "declares no SUITES")
    pipeline = replace(load_pipeline("isp_hits"), name=name)
    interval = Interval(datetime(2026, 11, 20, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC))
    for check in (check_suites, lambda of: usual_of(of, interval)):
        with pytest.raises(UsageError, match=f"{name}: expectations/{name}.py {said}") as refused:
            check(pipeline)
        assert refused.value.remedy.startswith(f'write expectations/{name}.py with SUITES = {{"{name}": [], "{name}_')


def of_isp_hits(table: str, *expectations: Any) -> dict[str, Any]:
    """The suites of isp_hits with these expectations of one table."""
    from expectations import isp_hits

    return {**isp_hits.SUITES, table: expectations}


WRONG: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a typo": ("isp_hits", "ExpectColumnValuesToNotBeNull", {"column": "usr"}),
    "among several": ("isp_hits_by_zip", "ExpectCompoundColumnsToBeUnique", {"column_list": ["zipcode", "usr"]}),
    "of a pair": ("isp_hits", "ExpectColumnPairValuesToBeEqual", {"column_A": "user", "column_B": "usr"}),
    "a partition column": ("isp_hits", "ExpectColumnValuesToNotBeNull", {"column": "zip"}),
    "the date": ("isp_hits", "ExpectColumnValuesToNotBeNull", {"column": "date"}),
    "a field that is not there": ("isp_hits_by_zip", "ExpectColumnMaxToBeBetween", {"column": "window.until"}),
    "a field of a text": ("isp_hits", "ExpectColumnValuesToNotBeNull", {"column": "user.name"}),
    "another table's": ("isp_hits_by_zip", "ExpectColumnValuesToNotBeNull", {"column": "event_time"}),
    "a window of a total": ("isp_hits_zip_totals", "ExpectColumnValuesToNotBeNull", {"column": "window_start"}),
}


@pytest.mark.parametrize("case", WRONG)
def test_column_is_named_with_those_that_exist_when_a_suite_names_one_that_does_not(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from great_expectations import expectations as gxe

    from expectations import isp_hits
    from expectations.checkpoint import check_suites

    table, kind, arguments = WRONG[case]
    monkeypatch.setattr(isp_hits, "SUITES", of_isp_hits(table, getattr(gxe, kind)(**arguments)))
    wrong = "usr" if case in ("among several", "of a pair") else arguments["column"]
    with pytest.raises(UsageError) as refused:
        check_suites(load_pipeline("isp_hits"))
    assert refused.value.exit_code == 64
    assert str(refused.value).startswith(
        f"isp_hits: expectations/isp_hits.py: {table} has no column {wrong}, which {kind} names — one of: zipcode, "
    )
    ends = {"isp_hits": ", kafka_element, event_time", "isp_hits_by_zip": ", window_start, window_end"}
    assert refused.value.remedy.endswith(ends.get(table, "zipcode, hits"))


@pytest.mark.parametrize("kind", ["ExpectColumnValuesToBeInSet", "ExpectColumnValuesToNotBeInSet"])
def test_null_is_refused_when_it_is_among_a_set_of_values(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from great_expectations import expectations as gxe

    from expectations import isp_hits
    from expectations.checkpoint import check_suites

    expectation = getattr(gxe, kind)(column="isp", value_set=["a", None])
    monkeypatch.setattr(isp_hits, "SUITES", of_isp_hits("isp_hits", expectation))
    said = (
        rf"{kind} of isp_hits has None in its set of values; to SQL every value may be one of these then — leave None"
    )
    with pytest.raises(UsageError, match=said):
        check_suites(load_pipeline("isp_hits"))


def test_suite_is_accepted_when_its_columns_exist_or_its_expectations_ask_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from great_expectations import expectations as gxe
    from great_expectations.expectations.expectation import BatchExpectation

    from expectations import isp_hits
    from expectations.checkpoint import check_suites

    class ExpectSomething(BatchExpectation):
        """An expectation of a deployment's own, whose argument is no column of the table."""

        column: str

        def _validate(self, *_: Any, **__: Any) -> Any: ...

    of_hits = (
        gxe.ExpectColumnValuesToNotBeNull(column="event_time"),
        gxe.ExpectColumnValuesToNotBeNull(column="ZipCode"),
        gxe.ExpectColumnValuesToNotBeNull(column="kafka_offset"),
        # Whether it is there is the question.
        gxe.ExpectColumnToExist(column="usr"),
        gxe.ExpectTableColumnsToMatchSet(column_set=["usr"]),
        gxe.ExpectTableColumnsToMatchOrderedList(column_list=["usr"]),
        gxe.UnexpectedRowsExpectation(unexpected_rows_query="SELECT usr FROM {batch}"),
        ExpectSomething(column="usr"),
    )
    of_view = (
        gxe.ExpectColumnMaxToBeBetween(column="window_end", min_value=0),
        gxe.ExpectColumnMaxToBeBetween(column="window.start", min_value=0),
    )
    suites = {**of_isp_hits("isp_hits", *of_hits), **{"isp_hits_by_zip": of_view}}
    monkeypatch.setattr(isp_hits, "SUITES", suites)
    check_suites(load_pipeline("isp_hits"))
    monkeypatch.undo()
    for pipeline in all_pipelines():
        check_suites(pipeline)


def test_fields_of_columns_may_be_named_when_they_are_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    from great_expectations import expectations as gxe

    from expectations import isp_hits
    from expectations.checkpoint import check_suites

    declared = load_pipeline("isp_hits")
    columns = f"{declared.archive.columns}, place STRUCT<floor: INT>, tags MAP<STRING, STRING>, `a b` STRING, "
    columns += "rooms ARRAY<STRUCT<no: INT>>"
    pipeline = replace(declared, archive=replace(declared.archive, columns=columns), views=(), reports=(), outputs=())
    named = {"place.floor": True, "place.flor": False, "a b": True, "tags": True, "tags.any": False, "rooms.no": False}
    for column, is_there in named.items():
        monkeypatch.setattr(isp_hits, "SUITES", {"isp_hits": [gxe.ExpectColumnMaxToBeBetween(column=column)]})
        with nullcontext() if is_there else pytest.raises(UsageError, match=f"no column {column}"):
            check_suites(pipeline)


def test_suite_of_another_kind_is_refused_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    from great_expectations import expectations as gxe

    from expectations import isp_hits
    from expectations.checkpoint import check_suites

    single, without = (of_isp_hits("isp_hits") for _ in range(2))
    single["isp_hits"], without["isp_hits"] = gxe.ExpectColumnToExist(column="zipcode"), [gxe.ExpectColumnToExist]
    wrong = [
        ("SUITES", single, "the suite of isp_hits in FILE is a single ExpectColumnToExist"),
        ("SUITES", without, "one of the suite of isp_hits in FILE is ExpectColumnToExist without its brackets"),
        ("SUITES", list(single), "SUITES of FILE is a list"),
        ("USUAL", {"factor": 3}, "USUAL of FILE is a dict"),
        ("USUAL", False, "USUAL of FILE is False"),
    ]
    for name, declared, said in wrong:
        with monkeypatch.context() as patch:
            patch.setattr(isp_hits, name, declared, raising=False)
            with pytest.raises(UsageError, match=said.replace("FILE", "expectations/isp_hits.py")) as refused:
                check_suites(load_pipeline("isp_hits"))
        assert refused.value.exit_code == 64


def test_version_is_that_of_the_suite_that_judges_when_its_file_changes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from include import versions
    from spark_jobs import build_interval

    begun = versions.suite_version("isp_hits")
    versions.suite_version.cache_clear()

    def build(*_: Any) -> None:
        monkeypatch.setattr(versions, "executed_code", lambda *_: "other code")
        raise InterruptedError

    monkeypatch.setattr(build_interval, "check_transforms", build)
    with pytest.raises(InterruptedError):
        build_interval.main(["--pipeline", "isp_hits", "--attempt", "1"])
    assert versions.suite_version("isp_hits") == begun


def test_columns_are_those_of_the_validated_rows_when_a_suite_is_checked(spark: Any) -> None:
    from expectations.suite_files import columns_of
    from expectations.usual import EVENT_TIMESTAMP
    from spark_jobs.archive.schema import table_schema
    from spark_jobs.publication.validate import named_for_suite

    for pipeline in all_pipelines():
        for table in pipeline.tables:
            rows = named_for_suite(pipeline, table, spark.createDataFrame([], table_schema(pipeline, table)))
            also = [EVENT_TIMESTAMP] if table == pipeline.table else []
            assert [*(each.name for each in columns_of(pipeline, table)), *also] == rows.columns


def test_module_that_a_suite_file_imports_is_named_when_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import expectations
    from expectations.checkpoint import check_suites

    (tmp_path / f"{UNUSED}.py").write_text("import no_such_package\n")
    monkeypatch.setattr(expectations, "__path__", [*expectations.__path__, str(tmp_path)])
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        check_suites(replace(load_pipeline("isp_hits"), name=UNUSED))


def test_name_is_refused_for_a_pipeline_when_a_module_of_the_suites_has_it() -> None:
    own = {file.stem for file in (REPOSITORY / "expectations").glob("[a-z]*.py") if "\nSUITES" not in file.read_text()}
    assert own == OWN_SUITE_MODULES
    for name in own:
        with pytest.raises(UsageError, match=f"the pipeline name '{name}' is that of .*: expectations/{name}.py"):
            replace(load_pipeline("isp_hits"), name=name)


def test_statistics_are_imported_only_when_an_expectation_compares_distributions(tmp_path: Path) -> None:
    # Run from a file: Spark Connect, at import, ends a process whose main module has none.
    program = tmp_path / "program.py"
    program.write_text(
        "import expectations.checkpoint, sys\n"
        "print('scipy.stats._stats_py' in sys.modules)\n"
        "from scipy import stats\n"
        "print(stats.norm.cdf(0))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, program], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "0.5"]
