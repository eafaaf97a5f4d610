"""Measures have their declared types where they leave Tidemark, also where an aggregate or a sum has a wider one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F

from include.errors import UsageError
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Pipeline
from spark_jobs.archive.schema import archive_schema
from spark_jobs.decoding.records import load_references
from spark_jobs.intervals import build
from spark_jobs.sinks import speed_view
from spark_jobs.sinks.speed_view import SpeedViewSink
from spark_jobs.spark.failures import SPARK_FAILURES, translate
from spark_jobs.spark.frames import empty_frame, frame_of
from spark_jobs.streaming import speed_base
from spark_jobs.views import aggregate
from spark_jobs.views.aggregate import aggregate_view
from spark_jobs.views.measures import declared_measures
from spark_jobs.views.stored_base import StoredBase
from tests.support.shipped import SHIPPED

pytestmark = pytest.mark.spark

PIPELINE = load_pipeline("isp_hits")
TOTAL = next(view for view in PIPELINE.views if view.name == "zip_totals")
MOST = 2**31 - 1
WIDER = [
    ("BIGINT", "INT"),
    ("DECIMAL(22,2)", "DECIMAL(12,2)"),
    ("BIGINT", "DECIMAL(20,2)"),
    ("DECIMAL(20,0)", "BIGINT"),
]


def declared(kind: str) -> AdditiveView:
    return replace(TOTAL, columns=f"zipcode STRING, hits {kind}")


def counted(spark: Any, kind: str, *counts: tuple[str, Any]) -> Any:
    """Rows as an aggregate returns them."""
    return frame_of(spark, [(zipcode, number) for zipcode, number in counts], f"zipcode STRING, hits {kind}")


def meaning_of(action: Callable[[], object]) -> str:
    """What the error of a step says, when its driver ends with the exit code of wrong usage."""
    with pytest.raises(SPARK_FAILURES) as raised:
        action()
    meaning = translate(raised.value)
    assert isinstance(meaning, UsageError)
    assert meaning.exit_code == 64
    return str(meaning)


def base_of(
    spark: Any, monkeypatch: pytest.MonkeyPatch, view: AdditiveView, aggregated: Any, location: Path
) -> StoredBase:
    """The base of a view whose aggregate returns these rows."""
    monkeypatch.setattr(speed_base, "load_references", lambda *_: {})
    monkeypatch.setattr(speed_base, "aggregate_view", lambda *_: aggregated)
    StoredBase.write(speed_base._aggregate(spark, PIPELINE, view, aggregated), str(location))
    return StoredBase(spark, view, str(location))


class Emitted:
    """A target that keeps what is written, and the sink of a view that writes to it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, view: AdditiveView, base: StoredBase | None) -> None:
        self.values: list[Any] = []
        self.committed = 0
        self.kinds: list[str] = []
        monkeypatch.setattr(speed_view, "writers", SimpleNamespace(renew=lambda lease: False))
        monkeypatch.setattr(speed_view, "micro_batches", SimpleNamespace(is_committed=lambda *_: False))
        monkeypatch.setattr(SpeedViewSink, "_commit_of", lambda *_: self._commit)
        target: Any = self
        generation = StreamGeneration(PIPELINE.name, 0, {}, {})
        lease = Lease(PIPELINE.name, 1, "here")
        self.sink = SpeedViewSink(PIPELINE, view, lease, generation, base, "id", "checkpoint", "version", [target])

    def write(self, values: Any, version: int) -> None:
        self.values += [each["hits"] for each in values.collect()]
        self.kinds.append(values.schema["hits"].dataType.simpleString())

    def _commit(self, batch: Any) -> None:
        self.committed += 1


@pytest.mark.parametrize(("returned", "kind"), WIDER)
def test_base_is_read_as_declared_when_the_aggregate_returns_another_type(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: str, kind: str
) -> None:
    number = 5 if returned == "BIGINT" else Decimal(5)
    aggregated = counted(spark, returned, ("94103", number), ("10001", None))
    base = base_of(spark, monkeypatch, declared(kind), aggregated, tmp_path / "base")
    assert sorted((row["key"], row["hits"]) for row in base.every().collect()) == [
        ('{"zipcode":"10001"}', None),
        ('{"zipcode":"94103"}', 5),
    ]


@pytest.mark.parametrize(("returned", "kind"), WIDER)
@pytest.mark.parametrize("has_base", [False, True])
def test_targets_get_the_declared_type_when_the_aggregate_returns_another_one(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returned: str, kind: str, has_base: bool
) -> None:
    number = 5 if returned == "BIGINT" else Decimal(5)
    aggregated = counted(spark, returned, ("94103", number))
    base = base_of(spark, monkeypatch, declared(kind), aggregated, tmp_path / "base") if has_base else None
    emitted = Emitted(monkeypatch, declared(kind), base)
    emitted.sink.emit(aggregated, 0)
    assert (emitted.values, emitted.kinds) == ([10 if has_base else 5], [kind.lower()])
    assert emitted.committed == 1


@pytest.mark.parametrize("has_base", [False, True])
def test_stream_ends_before_it_writes_when_a_total_outgrows_its_declared_type(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_base: bool
) -> None:
    view = declared("INT")
    base, held = None, 0
    if has_base:
        base, held = base_of(spark, monkeypatch, view, counted(spark, "BIGINT", ("94103", 1)), tmp_path / "base"), 1
    emitted = Emitted(monkeypatch, view, base)
    emitted.sink.emit(counted(spark, "BIGINT", ("94103", MOST - held)), 0)
    assert emitted.values == [MOST]
    over = counted(spark, "BIGINT", ("10001", 7), ("94103", MOST + 1 - held))
    said = meaning_of(lambda: emitted.sink.emit(over, 1))
    assert said == (
        "isp_hits: the measure hits of the view zip_totals is 2147483648, and is declared as int, which does not hold "
        'it; nothing of it was written — declare a wider type, then ./tidemark new-generation isp_hits --reason "…"'
    )
    assert (emitted.values, emitted.committed) == ([MOST], 1)


def test_stream_ends_when_a_decimal_has_more_digits_than_are_declared(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted = Emitted(monkeypatch, declared("DECIMAL(12,2)"), None)
    over = counted(spark, "DECIMAL(22,2)", ("94103", Decimal("12345678901.25")))
    said = meaning_of(lambda: emitted.sink.emit(over, 0))
    assert "the measure hits of the view zip_totals is 12345678901.25, and is declared as decimal(12,2)" in said
    assert emitted.values == []


def test_new_generation_does_not_begin_when_its_base_outgrows_the_declared_type(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = counted(spark, "BIGINT", ("94103", MOST + 1))
    view = declared("INT")
    said = meaning_of(lambda: base_of(spark, monkeypatch, view, over, tmp_path / "base"))
    assert "the measure hits of the view zip_totals is 2147483648" in said


@pytest.mark.parametrize("is_over", [False, True])
def test_interval_ends_before_it_writes_the_view_when_a_measure_outgrows_its_declared_type(
    spark: Any, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    pipeline = replace(PIPELINE, views=(declared("INT"),), reports=())
    written: list[Any] = []

    def write(rows: Any, *_: Any) -> list[Any]:
        written.extend(row["hits"] for row in rows.collect())
        return []

    nothing: Any = SimpleNamespace(added_to=lambda rows: rows, records=0)
    empty: Any = []
    aggregated = counted(spark, "BIGINT", ("94103", MOST + is_over))
    for name, value in {
        "check_compacted_topics": lambda _: None,
        "revisions": SimpleNamespace(registered_of_interval=lambda _: []),
        "common_version": lambda _: 2,
        "replayed_rows": lambda *_: nothing,
        "read_interval": lambda *_: SimpleNamespace(rows=None, reconciliation=empty),
        "load_references": lambda *_: {},
        "aggregate_view": lambda *_: aggregated,
        "write_revisions": write,
        "reconcile_total": lambda *_: empty,
        "collect_report": lambda *_: ({}, []),
        "_findings": lambda *_: None,
        "_with_drift": lambda pipeline, rows, findings: SimpleNamespace(),
        "replace": lambda held, **_: held,
    }.items():
        monkeypatch.setattr(build, name, value)
    attempt = SimpleNamespace(id=1, is_rebuild=False)
    run: Any = SimpleNamespace(
        spark=spark, pipeline=pipeline, pinned=SimpleNamespace(id=1, interval=None), attempt=attempt, references=()
    )

    def built() -> None:
        build._build(run, [], {}, {pipeline.view_table(pipeline.views[0]): {}})

    if is_over:
        assert "isp_hits: the measure hits of the view zip_totals is 2147483648" in meaning_of(built)
    else:
        built()
    assert written == ([] if is_over else [MOST])


@pytest.mark.parametrize("name", SHIPPED)
def test_plan_of_a_view_stays_the_same_when_its_aggregate_returns_the_declared_types(spark: Any, name: str) -> None:
    pipeline = load_pipeline(name)
    rows = empty_frame(spark, archive_schema(pipeline)).withColumn("event_time", F.col(pipeline.archive.event_time))
    for view in pipeline.views:
        aggregated = aggregate_view(pipeline, view, rows, load_references(spark, pipeline))
        assert declared_measures(pipeline, view, aggregated) is aggregated


def empty_rows(spark: Any, pipeline: Pipeline) -> Any:
    """Return archive rows as a view's functions get them, without any."""
    rows = empty_frame(spark, archive_schema(pipeline))
    return rows.withColumn("event_time", F.col(pipeline.archive.event_time))


@pytest.mark.parametrize("misspelt", ["counted_hits", "total_by_zip"])
def test_function_is_named_when_it_asks_for_a_column_that_is_not_there(
    spark: Any, monkeypatch: pytest.MonkeyPatch, misspelt: str
) -> None:
    known = aggregate.transform

    def wrong(pipeline: Pipeline, name: str) -> Callable[..., Any]:
        return (lambda rows, *_: rows.select("zip")) if name == misspelt else known(pipeline, name)

    monkeypatch.setattr(aggregate, "transform", wrong)
    with pytest.raises(UsageError) as refused:
        aggregate_view(PIPELINE, TOTAL, empty_rows(spark, PIPELINE), {})
    assert str(refused.value).startswith(
        f"isp_hits: Spark refuses the function {misspelt} of spark_jobs/transforms/isp_hits.py: [UNRESOLVED_COLUMN"
    )


def aggregated_by(spark: Any, monkeypatch: pytest.MonkeyPatch, hits: Any) -> Any:
    """Return the running total whose aggregate computes its measure so."""

    def total(rows: Any) -> Any:
        made = rows.groupBy("zipcode").agg(hits.alias("made"), F.max("user").alias("last_user"))
        return made.where("made is not null").select("zipcode", F.col("made").cast("BIGINT").alias("HITS"))

    known = aggregate.transform
    monkeypatch.setattr(aggregate, "transform", lambda of, name: total if name == TOTAL.aggregate else known(of, name))
    return aggregate_view(PIPELINE, TOTAL, empty_rows(spark, PIPELINE), {})


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda: F.max("kafka_offset"), "max"),
        (lambda: F.count(F.lit(1)) - F.min("kafka_offset"), "min"),
        (lambda: F.avg("kafka_offset"), "avg"),
        (lambda: F.count_distinct("user"), "count of distinct values"),
        (lambda: F.sum_distinct("kafka_offset"), "sum of distinct values"),
        (lambda: F.coalesce(F.approx_count_distinct("user"), F.lit(0)), "approx_count_distinct"),
        (lambda: F.size(F.collect_set("user")), "collect_set"),
        (lambda: F.any_value("kafka_offset"), "any_value"),
    ],
)
def test_measure_is_refused_when_its_values_do_not_add_up(
    spark: Any, monkeypatch: pytest.MonkeyPatch, made: Callable[[], Any], named: str
) -> None:
    with pytest.raises(UsageError, match=f"isp_hits: .* view zip_totals makes hits by {named}, .* do not add up"):
        aggregated_by(spark, monkeypatch, made())


def test_measure_is_taken_when_its_values_add_up(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for made in (
        F.count("user"),
        F.coalesce(F.sum("kafka_offset"), F.lit(0)) * 2,
        F.count_if(F.col("isp") == "one") + F.sum(F.when(F.col("isp").isNull(), 1)),
        F.sum(F.greatest("kafka_offset", F.lit(7))),
    ):
        assert aggregated_by(spark, monkeypatch, made).columns == ["zipcode", "HITS"]


WINDOWED = PIPELINE.views[0]


@pytest.mark.parametrize(
    ("event_time", "is_taken"),
    [
        (lambda: F.col("event_time"), True),
        (lambda: F.col("hittime"), False),
        (lambda: F.date_trunc("hour", "event_time"), False),
        (lambda: F.col("kafka_timestamp"), False),
        (lambda: F.date_trunc("hour", "kafka_timestamp"), False),
        (lambda: F.lit("2026-11-20").cast("TIMESTAMP"), False),
    ],
)
@pytest.mark.parametrize("is_joined", [False, True])
def test_rows_function_is_refused_when_it_makes_another_event_time(
    spark: Any, monkeypatch: pytest.MonkeyPatch, event_time: Callable[[], Any], is_taken: bool, is_joined: bool
) -> None:
    def replaced(archive: Any, references: Any) -> Any:
        rows = archive.join(archive.select("isp").distinct(), "isp") if is_joined else archive
        return rows.withColumn("was", event_time()).withColumn("event_time", F.col("was")).where("zipcode is not null")

    known = aggregate.transform
    monkeypatch.setattr(aggregate, "transform", lambda of, name: replaced if name == WINDOWED.rows else known(of, name))
    if is_taken:
        assert aggregate_view(PIPELINE, WINDOWED, empty_rows(spark, PIPELINE), {})
    else:
        with pytest.raises(UsageError, match=f"isp_hits: the function {WINDOWED.rows} .* another event_time"):
            aggregate_view(PIPELINE, WINDOWED, empty_rows(spark, PIPELINE), {})
