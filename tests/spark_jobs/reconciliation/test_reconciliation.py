"""The parts of reconciliation that need no services: spans without records, late spans, classes of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from include import kafka
from include.kafka.gap_proof import NEAR, GapProof, runs
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import Fates, OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.reconciliation import (
    ARCHIVE_AGAINST_KAFKA,
    EXAMPLES,
    Difference,
    DifferenceClass,
    Reconciliation,
    ReconciliationCounts,
    against_archive,
)
from include.times import Interval
from spark_jobs.reconciliation import compacted
from spark_jobs.reconciliation.against_kafka import (
    ArchiveComparison,
    MissingOffsets,
    compare_offsets,
    missing_spans,
    reconcile_archive,
)
from spark_jobs.reconciliation.counted import Counted
from spark_jobs.reconciliation.sides import all_sides
from spark_jobs.reconciliation.view_parts import PARTS
from spark_jobs.reconciliation.views import _classify, _Context, _side_by_side
from spark_jobs.spark.frames import frame_of

TP = TopicPartition("logs", 0)
HOUR = datetime(2026, 11, 20, 5, tzinfo=UTC)
ROWS = (
    "fate STRING, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT, "
    "hash_1 BIGINT, hash_2 BIGINT"
)


def hours(count: float) -> datetime:
    return HOUR + timedelta(hours=count)


def rows_of(spark: Any, offsets: Sequence[int], partition: int = 0, *, hashed: int = 2**62) -> Any:
    return spark.createDataFrame([("archived", "logs", partition, o, 0, hashed, hashed) for o in offsets], ROWS)


@pytest.mark.spark
def test_missing_spans_are_found_when_they_lie_at_the_ends_or_in_between(spark: Any) -> None:
    ranges = [
        OffsetRange(TP, 10, 20),
        OffsetRange(TopicPartition("logs", 1), 0, 4),
        OffsetRange(TopicPartition("logs", 2), 5, 7),
    ]
    rows = rows_of(spark, [12, 13, 16]).unionByName(rows_of(spark, [0, 1, 2, 3], partition=1))
    assert missing_spans(rows, ranges) == {
        TP: [(10, 12), (14, 16), (17, 20)],
        TopicPartition("logs", 2): [(5, 7)],
    }


@pytest.mark.spark
def test_doubled_row_is_named_when_the_sum_of_its_hashes_exceeds_a_bigint(spark: Any) -> None:
    columns = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")
    kafka, landed = rows_of(spark, [0, 1]), rows_of(spark, [0, 0, 0, 1])
    values = (kafka.select(*columns), landed.select(*columns))
    compared = reconcile_archive(kafka, landed, values, [OffsetRange(TP, 0, 2)])
    assert (compared.fates[TP].archived, compared.gaps[TP]) == (2, 0)
    assert compared.reconciliation.unexplained == 1
    assert compared.reconciliation.differences[0].evidence == "in Kafka once, in the archive 3 times"


@pytest.mark.spark
def test_differing_columns_are_named_when_python_cannot_hold_a_row_s_dates(spark: Any) -> None:
    kafka, landed = rows_of(spark, [0]), rows_of(spark, [0], hashed=7)

    def values(rows: Any, day: str, name: str) -> Any:
        held = rows.drop("fate", "hash_1", "hash_2")
        nan, at = F.lit(float("nan")), F.timestamp_micros(F.lit(1763615107000 * 10**6))
        return held.withColumns({"n": nan, "at": at, "day": F.lit(day).cast("date"), "name": F.lit(name)})

    both = values(kafka, "+20261-01-01", "a"), values(landed, "+20261-01-02", "a")
    (difference,) = reconcile_archive(kafka, landed, both, [OffsetRange(TP, 0, 1)]).reconciliation.differences
    assert difference.evidence == ("in both, with different values: day: Kafka '+20261-01-01', archive '+20261-01-02'")


@pytest.mark.spark
def test_records_are_unexplained_when_there_are_more_than_offsets(spark: Any) -> None:
    rows = rows_of(spark, [0, 1, 1])
    reconciliation = reconcile_archive(rows, rows, (rows, rows), [OffsetRange(TP, 0, 2)]).reconciliation
    assert reconciliation.unexplained == 1
    assert "Spark read 3 records, the range has 2 offsets" in reconciliation.differences[0].evidence


@pytest.mark.spark
@pytest.mark.parametrize(
    ("policy", "records", "cls", "what"),
    [
        ("compact", 2, DifferenceClass.COMPACTED_SINCE, "records that only the archive holds"),
        ("", 0, DifferenceClass.UNEXPLAINED, "archive against Kafka (compaction not known)"),
    ],
)
def test_missing_right_is_named_when_it_hides_whether_records_were_compacted_since(
    spark: Any, monkeypatch: pytest.MonkeyPatch, policy: str, records: int, cls: DifferenceClass, what: str
) -> None:
    monkeypatch.setattr(kafka, "cleanup_policy", lambda _: policy)
    monkeypatch.setattr(compacted, "prove_gaps", lambda spans: {tp: GapProof(tp) for tp in spans})
    as_noted = ArchiveComparison({}, {}, Reconciliation())
    monkeypatch.setattr(compacted, "reconcile_with_ledger", lambda *_: as_noted)
    pinned = PinnedInterval(1, "p", Interval(HOUR, hours(1)), (OffsetRange(TP, 0, 3),), {})
    found = compacted.find_compacted(pinned, rows_of(spark, [0]), rows_of(spark, [0, 1, 2]), pinned.ranges)
    assert found is not None
    assert (found.records, found.landed.count()) == (records, records)
    # Rows of a topic of which nothing is known are counted where they are compared.
    assert found.reconciliation.unexplained == 0
    [told] = found.reconciliation.differences
    assert (told.cls, told.what, told.where, told.is_of_rows) == (cls, what, str(TP), not policy)
    assert "2 records between offsets 1 and 2 were archived" in told.evidence
    assert ("Grant DescribeConfigs on logs" in told.evidence) == (not policy)
    assert ("--source archive" in told.evidence) == (not policy)


def test_offset_is_unexplained_and_named_when_only_a_second_reader_sees_its_record() -> None:
    proof = GapProof(TP, spans=1, visible=1, seen=[(1, "1 bytes")])
    missing = {TP: MissingOffsets([(1, 2)], proof)}
    compared = compare_offsets({TP: Counted(Fates(1))}, missing, [OffsetRange(TP, 0, 2)])
    assert (compared.gaps, compared.reconciliation.unexplained) == ({TP: 0}, 1)
    [told] = compared.reconciliation.differences
    assert (told.cls, told.where) == (DifferenceClass.UNEXPLAINED, f"{TP} offset 1")
    assert "a second reader sees a record (1 bytes), Spark's read did not" in told.evidence


def test_range_is_unexplained_when_it_has_offsets_that_nobody_accounts_for() -> None:
    compared = compare_offsets({TP: Counted(Fates(1))}, {}, [OffsetRange(TP, 0, 2)])
    assert compared.reconciliation.unexplained == 1
    [told] = compared.reconciliation.differences
    assert told.evidence == "1 records and 0 proved gaps in 2 offsets"


def test_range_is_unexplained_when_a_record_was_read_twice_and_gaps_are_as_many_as_it_lacks_others() -> None:
    proof = GapProof(TP, spans=1, offsets=2, examples=[((1, 3), None)])
    missing = {TP: MissingOffsets([(1, 3)], proof)}
    compared = compare_offsets({TP: Counted(Fates(2))}, missing, [OffsetRange(TP, 0, 3)])
    assert compared.reconciliation.unexplained == 1
    told = [each.evidence for each in compared.reconciliation.differences if each.cls is DifferenceClass.UNEXPLAINED]
    assert told == ["2 records and 2 proved gaps in 3 offsets"]


def test_offset_is_no_difference_but_a_gap_when_a_second_reader_sees_no_record_there_either() -> None:
    proof = GapProof(TP, spans=1, offsets=1, examples=[((1, 2), None)])
    missing = {TP: MissingOffsets([(1, 2)], proof)}
    compared = compare_offsets({TP: Counted(Fates(1))}, missing, [OffsetRange(TP, 0, 2)])
    assert (compared.gaps, compared.reconciliation.unexplained) == ({TP: 1}, 0)
    assert compared.reconciliation.explained == {"gap": 1}
    assert [each.cls for each in compared.reconciliation.differences] == [DifferenceClass.GAP]


def test_spans_are_read_in_one_go_when_they_are_near_and_sought_when_far() -> None:
    dense = [(o, o + 1) for o in range(0, 1000, 10)]
    assert len(list(runs(dense))) == 1
    assert [len(run) for run in runs([(0, 1), (NEAR + 1, NEAR + 2), (3 * NEAR, 3 * NEAR + 5)])] == [2, 1]
    assert list(runs([])) == []


def classified(
    spark: Any,
    sides: Mapping[str, Mapping[str, tuple[int, Any]]],
    *,
    behind: bool = False,
    awaits_base: bool = False,
    other_code: bool = False,
    weight: str = "BIGINT",
) -> Reconciliation:
    """Classes of keys of a view with two measures; `sides` gives side → key → both measures."""
    declared = load_pipeline("nest_cameras").views[0]
    view = replace(declared, measures=("count", "weight"), columns=f"{declared.columns}, weight {weight}")
    schema = f"key STRING, start TIMESTAMP, end TIMESTAMP, count BIGINT, weight {weight}"
    frames = {
        side: frame_of(
            spark, [(key, HOUR, hours(1), *measures) for key, measures in sides.get(side, {}).items()], schema
        )
        for side in ("speed", "batch", *PARTS)
    }
    schema = "start TIMESTAMP, end TIMESTAMP, other_code BOOLEAN"
    windows = frame_of(spark, [(HOUR, hours(1), other_code)], schema)
    context = _Context(behind, {hours(1): (hours(2), hours(3))}, "logs-0 offset 7", awaits_base)
    return _classify(_side_by_side(view, all_sides(frames), windows), view, context)


@pytest.mark.spark
def test_key_falls_into_its_class_when_the_sides_hold_its_values(spark: Any) -> None:
    found = classified(
        spark,
        {
            "speed": {"matched": (3, 30), "shared": (5, 50), "late": (2, 20), "theirs": (4, 40), "equal": (7, 70)},
            "batch": {"matched": (3, 30), "shared": (3, 30), "late": (5, 50), "ahead": (1, 10), "equal": (7, 70)},
            "inside": {"matched": (3, 30), "shared": (3, 30), "late": (2, 20), "equal": (5, 50)},
            "elsewhere": {"shared": (2, 20), "theirs": (4, 40), "equal": (2, 20)},
            "late": {"late": (3, 30)},
            "beyond": {"ahead": (1, 10), "equal": (2, 20)},
        },
    )
    assert found.counts == ReconciliationCounts(matched=1, pending=3, late=3)
    late = next(d for d in found.differences if d.cls == "late")
    assert "dropped by the watermark 2026-11-20T07:00:00Z to 2026-11-20T08:00:00Z" in late.evidence
    assert "count: 3 of 5 in the batch view" in late.evidence


@pytest.mark.spark
def test_null_sum_is_compared_like_any_value_when_a_measure_is_null(spark: Any) -> None:
    none: Any = None
    found = classified(
        spark,
        {
            "speed": {"null": (3, none), "shared": (5, 20), "lost": (2, none), "made": (2, 5)},
            "batch": {"null": (3, none), "shared": (3, none), "lost": (2, 5), "made": (2, none)},
            "inside": {"null": (3, none), "shared": (3, none), "lost": (2, 5), "made": (2, none)},
            "elsewhere": {"shared": (2, 20)},
        },
    )
    assert found.counts == ReconciliationCounts(matched=1, pending=1, unexplained=2)
    assert [each.where for each in found.differences if each.cls == "unexplained"] == ["lost", "made"]


DIGITS = Decimal("1.00000045")
"""Of two of these, Spark's `+` keeps fewer decimals than of one."""


@pytest.mark.spark
def test_decimals_are_compared_to_the_last_digit_when_sides_are_added(spark: Any) -> None:
    one, two, less = DIGITS, 2 * DIGITS, 2 * DIGITS - Decimal("0.00000001")
    found = classified(
        spark,
        {
            "speed": {"shared": (2, two), "late": (1, one), "replayed": (1, one), "speed": (2, less)},
            "batch": {"shared": (1, one), "late": (2, two), "replayed": (2, two), "batch": (2, less)},
            "inside": {"shared": (1, one), "late": (1, one), "replayed": (1, one), "speed": (1, one)},
            "elsewhere": {"shared": (1, one), "speed": (1, one)},
            "late": {"late": (1, one), "batch": (1, one)},
            "beyond": {"batch": (1, one)},
            "replayed": {"replayed": (1, one)},
        },
        weight="DECIMAL(28,8)",
    )
    assert {each.where: each.cls for each in found.differences} == {
        "shared": "pending",
        "late": "late",
        "replayed": "quarantined",
        "speed": "unexplained",
        "batch": "unexplained",
    }


@pytest.mark.spark
@pytest.mark.parametrize("other_code", [False, True])
def test_evidence_has_all_digits_when_decimals_have_more_than_python_s_own_28(spark: Any, other_code: bool) -> None:
    large = 10**35
    of_sides = {"speed": 1, "batch": 1, "inside": large, "elsewhere": large + 1, "late": large + 3, "beyond": 0}
    sides = {side: {"k": (1, Decimal(weight))} for side, weight in of_sides.items()}
    (difference,) = classified(spark, sides, other_code=other_code, weight="DECIMAL(38,0)").differences
    assert f"{2 * 10**35 + 1}" in difference.evidence
    if not other_code:
        assert f"the archive's rows of the interval {2 * 10**35 + 3} " in difference.evidence


@pytest.mark.spark
def test_key_is_unexplained_when_any_measure_of_any_side_differs(spark: Any) -> None:
    found = classified(
        spark,
        {
            "speed": {"speed alone": (1, 1), "weight": (1, 9), "below": (1, 1)},
            "batch": {"no speed": (1, 1), "batch alone": (1, 1), "weight": (1, 1)},
            "inside": {"no speed": (1, 1), "weight": (1, 1)},
            "elsewhere": {"below": (2, 2)},
        },
    )
    expected = {
        "speed alone": "count: speed view 1, the archive up to its position 0",
        "no speed": "count: speed view 0, the archive up to its position 1",
        "batch alone": "count: batch view 1, the archive's rows of the interval 0",
        "weight": "weight: speed view 9, the archive up to its position 1",
        "below": "count: speed view 1, the archive up to its position 2",
    }
    assert found.unexplained == len(expected)
    evidence = {each.where: each.evidence for each in found.differences}
    assert evidence.keys() == expected.keys()
    for key, said in expected.items():
        assert said in evidence[key]


@pytest.mark.spark
def test_speed_value_is_pending_when_it_is_above_an_archive_that_is_behind(spark: Any) -> None:
    found = classified(spark, {"speed": {"above": (1, 1)}, "elsewhere": {"below": (1, 1)}}, behind=True)
    assert {each.where: each.cls for each in found.differences} == {"above": "pending", "below": "unexplained"}


@pytest.mark.spark
def test_speed_value_is_pending_whatever_it_is_when_it_has_not_begun_again_since_a_topic_was_adopted(
    spark: Any,
) -> None:
    sides = {
        "speed": {"above": (1, 1)},
        "elsewhere": {"below": (1, 1)},
        "batch": {"wrong": (2, 2)},
        "inside": {"wrong": (1, 1)},
    }
    found = classified(spark, sides, awaits_base=True)
    classes = {each.where: each.cls for each in found.differences}
    assert classes == {"above": "pending", "below": "pending", "wrong": "unexplained"}
    pending = [each.evidence for each in found.differences if each.cls == "pending"]
    assert all("the stream has not begun again since a topic was adopted" in each for each in pending)


@pytest.mark.spark
def test_speed_value_is_pending_only_when_it_counts_more_rows_than_an_archive_that_is_behind(spark: Any) -> None:
    sides: dict[str, dict[str, tuple[int, Any]]] = {
        "speed": {"negative": (2, -5), "as many": (1, 9)},
        "elsewhere": {"negative": (1, 3), "as many": (1, 5)},
    }
    found = classified(spark, sides, behind=True)
    assert {each.where: each.cls for each in found.differences} == {"negative": "pending", "as many": "unexplained"}


@pytest.mark.spark
def test_surplus_of_the_batch_view_is_explained_when_rows_were_replayed(spark: Any) -> None:
    sides = {"speed": {"k": (2, 2)}, "batch": {"k": (3, 3)}, "inside": {"k": (2, 2)}, "replayed": {"k": (1, 1)}}
    found = classified(spark, sides)
    assert found.counts == ReconciliationCounts()
    assert [d.cls for d in found.differences] == ["quarantined"]
    assert "count: 1 of 3" in found.differences[0].evidence
    assert "logs-0 offset 7" in found.differences[0].evidence


@pytest.mark.spark
def test_difference_is_of_class_code_when_other_code_had_a_part_in_the_window(spark: Any) -> None:
    found = classified(spark, {"speed": {"k": (1, 1)}, "batch": {"k": (2, 2)}}, other_code=True)
    assert found.unexplained == 0
    assert [d.cls for d in found.differences] == ["code"]


def test_difference_is_of_rows_only_when_no_live_view_takes_part_in_it() -> None:
    sides = {
        f"{ARCHIVE_AGAINST_KAFKA} (archived)": True,
        against_archive("hourly_counts"): True,
        "hourly_counts against nest-camera-stats": False,
        "outages of offline_cameras": False,
    }
    assert {what: Difference(DifferenceClass.UNEXPLAINED, what, "", "").is_of_rows for what in sides} == sides


def test_examples_are_limited_when_counts_go_on() -> None:
    one_by_one = [
        Reconciliation.of([Difference(DifferenceClass.UNEXPLAINED, "a against b", str(number), "differs")])
        for number in range(EXAMPLES + 5)
    ]
    total = sum(one_by_one, Reconciliation())
    assert total.unexplained == EXAMPLES + 5
    assert [each.where for each in total.examples()] == [str(number) for number in range(EXAMPLES)]


def test_what_is_explained_is_counted_by_class_when_examples_are_few() -> None:
    gap = Difference(DifferenceClass.GAP, "offsets without a visible record", "logs-0", "offsets 1..50000")
    code = Difference(DifferenceClass.CODE, "a against b", "key", "computed by other code")
    total = Reconciliation.of([gap], {"gap": 50_000, "elsewhere": 7}) + Reconciliation.of([gap, code])
    assert total.explained == {"gap": 50_001, "code": 1}
    assert total.counts == ReconciliationCounts()


def test_each_view_has_its_share_of_examples_when_several_differ() -> None:
    def of_view(name: str, count: int) -> Reconciliation:
        return Reconciliation.of(
            Difference(DifferenceClass.UNEXPLAINED, f"{name} against its topic", f"{name} {number}", "differs")
            for number in range(count)
        )

    total = sum((of_view("first", 50), of_view("second", 50), of_view("third", 3)), Reconciliation())
    assert total.unexplained == 103
    named = Counter(each.what.split()[0] for each in total.differences)
    assert total.differences[0].where == "first 0"
    assert sum(named.values()) == EXAMPLES
    assert named["third"] == 3
    assert min(named["first"], named["second"]) >= 8


def test_unexplained_differences_come_first_when_there_are_others() -> None:
    late = Difference(DifferenceClass.LATE, "a against b", "one", "late")
    unexplained = Difference(DifferenceClass.UNEXPLAINED, "a against b", "two", "differs")
    assert Reconciliation.of([late, unexplained]).examples() == (unexplained, late)
