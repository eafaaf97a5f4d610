"""Running totals against the sum of the intervals' parts: classes of keys, without services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import functions as F

from include.ledger.completeness.partials import Partial, Partials
from include.ledger.intervals.evidence import SpeedPosition
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.reconciliation import Reconciliation, ReconciliationCounts
from spark_jobs.archive.files import within
from spark_jobs.archive.replayed import Replayed
from spark_jobs.reconciliation import totals
from spark_jobs.reconciliation.totals import SIDES, Context, _side_by_side, classify, reconcile_total
from spark_jobs.spark.frames import frame_of

Sides = dict[str, dict[str, tuple[int, Any]]]


def classified(
    spark: Any,
    sides: Sides,
    *,
    behind: bool = False,
    awaits_base: bool = False,
    other_code: bool = False,
    weight: str = "BIGINT",
) -> Reconciliation:
    """Classes of keys of a total with two measures; `sides` gives side → key → both measures."""
    declared = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
    view = replace(declared, measures=("hits", "weight"), columns=f"{declared.columns}, weight {weight}")
    assert not sides.keys() - set(SIDES)
    frames = {
        side: frame_of(
            spark,
            [(key, *measures) for key, measures in sides.get(side, {}).items()],
            f"key STRING, hits BIGINT, weight {weight}",
        )
        for side in SIDES
    }
    return classify(_side_by_side(view, frames), view, Context(behind, other_code, "hits-0 offset 7", awaits_base))


@pytest.mark.spark
def test_key_falls_into_its_class_when_the_sides_hold_its_values(spark: Any) -> None:
    found = classified(
        spark,
        {
            "speed": {"matched": (5, 50), "newer": (6, 60), "ahead": (2, 20), "theirs": (4, 40), "replays": (3, 30)},
            "proved": {"matched": (2, 20), "newer": (2, 20), "theirs": (4, 40), "replays": (3, 30)},
            "batch": {"matched": (3, 30), "newer": (3, 30), "ahead": (5, 50), "replays": (1, 10)},
            "inside": {"matched": (3, 30), "newer": (3, 30), "ahead": (2, 20), "replays": (1, 10)},
            "rest": {"newer": (1, 10)},
            "beyond": {"ahead": (3, 30)},
            "delivered": {"replays": (1, 10)},
        },
    )
    assert found.counts == ReconciliationCounts(matched=1, pending=2)
    assert {each.where: each.cls for each in found.differences} == {
        "newer": "pending",
        "ahead": "pending",
        "replays": "quarantined",
    }
    newer = next(each for each in found.differences if each.where == "newer")
    assert newer.what == "zip_totals against isp-hits-zip-totals"
    assert "hits: speed view 6; other registered intervals 2, of which 0 by replays, this interval 3" in newer.evidence
    assert "rows of no such interval 1" in newer.evidence


@pytest.mark.spark
def test_key_is_unexplained_when_any_side_differs_whichever_interval_has_it(spark: Any) -> None:
    found = classified(
        spark,
        {
            "speed": {"of nothing": (1, 1), "doubled": (4, 4), "weight": (5, 6), "unlanded": (1, 1), "batch": (1, 1)},
            "proved": {"lost": (1, 1), "doubled": (5, 5), "weight": (5, 5)},
            "batch": {"unlanded": (0, 0), "batch": (2, 2)},
            "inside": {"unlanded": (1, 1), "batch": (1, 1)},
        },
    )
    assert found.counts == ReconciliationCounts(unexplained=6)
    assert {each.where for each in found.differences} == {
        *("of nothing", "lost", "doubled", "weight", "unlanded", "batch"),
    }


@pytest.mark.spark
def test_decimals_are_compared_to_the_last_digit_when_sides_are_added(spark: Any) -> None:
    one = Decimal("1.00000045")
    two, less = 2 * one, 2 * one - Decimal("0.00000001")
    found = classified(
        spark,
        {
            "speed": {"matched": (2, two), "replays": (1, one), "speed": (2, less), "batch": (1, one)},
            "proved": {"matched": (1, one), "replays": (2, two), "speed": (1, one)},
            "delivered": {"replays": (1, one)},
            "batch": {"matched": (1, one), "speed": (1, one), "batch": (2, less)},
            "inside": {"matched": (1, one), "speed": (1, one), "batch": (1, one)},
            "beyond": {"batch": (1, one)},
        },
        weight="DECIMAL(28,8)",
    )
    assert found.counts == ReconciliationCounts(matched=1, unexplained=2)
    assert {each.where: each.cls for each in found.differences if each.cls == "unexplained"} == {
        "speed": "unexplained",
        "batch": "unexplained",
    }


@pytest.mark.spark
def test_evidence_has_all_digits_when_decimals_have_more_than_python_s_own_28(spark: Any) -> None:
    large = 10**35
    sides: Sides = {
        "speed": {"k": (1, Decimal(1))},
        "proved": {"k": (1, Decimal(large + 1))},
        "older": {"k": (1, Decimal(large + 2))},
    }
    (difference,) = classified(spark, sides, weight="DECIMAL(38,0)").differences
    assert f"other registered intervals {2 * 10**35 + 3}, of which" in difference.evidence


@pytest.mark.spark
def test_total_is_pending_when_it_is_above_an_archive_that_is_behind(spark: Any) -> None:
    found = classified(spark, {"speed": {"above": (1, 1)}, "proved": {"below": (1, 1)}}, behind=True)
    assert {each.where: each.cls for each in found.differences} == {"above": "pending", "below": "unexplained"}


@pytest.mark.spark
def test_total_is_pending_whatever_it_counts_when_it_has_not_begun_again_since_a_topic_was_adopted(spark: Any) -> None:
    sides: Sides = {"speed": {"above": (1, 1)}, "proved": {"below": (1, 1)}}
    found = classified(spark, sides, awaits_base=True)
    assert {each.where: each.cls for each in found.differences} == {"above": "pending", "below": "pending"}
    assert all(
        "the stream has not begun again since a topic was adopted" in each.evidence for each in found.differences
    )


@pytest.mark.spark
def test_total_is_pending_only_when_it_counts_more_rows_than_an_archive_that_is_behind(spark: Any) -> None:
    sides: Sides = {
        "speed": {"negative": (2, -5), "as many": (1, 9)},
        "proved": {"negative": (1, 3), "as many": (1, 5)},
    }
    found = classified(spark, sides, behind=True)
    assert {each.where: each.cls for each in found.differences} == {"negative": "pending", "as many": "unexplained"}


@pytest.mark.spark
def test_difference_is_of_class_code_only_when_other_code_had_a_part(spark: Any) -> None:
    sides: Sides = {
        "speed": {"k": (3, 3), "l": (1, 1), "same": (4, 4)},
        "proved": {"l": (2, 2)},
        "older": {"k": (4, 4), "same": (4, 4)},
    }
    found = classified(spark, sides)
    assert {each.where: each.cls for each in found.differences} == {"k": "code", "l": "unexplained"}
    found = classified(spark, sides, other_code=True)
    assert {each.where: each.cls for each in found.differences} == {"k": "code", "l": "code"}


TP = TopicPartition("isp-hits", 0)
COUNTS = "zipcode STRING, hits BIGINT"


@dataclass
class Archived:
    """A total whose parts lie at `/<interval>`, on a ledger and a lake in memory; the last interval is run again."""

    spark: Any
    monkeypatch: pytest.MonkeyPatch
    zip_codes: list[str]
    """Of the archive's rows, by offset, as the current code gives them."""
    built: dict[int, tuple[str, OffsetRange, dict[str, int]]] = field(default_factory=dict)
    """By interval: code, range, its part."""
    read_otherwise: set[int] = field(default_factory=set)
    """Intervals whose part the current code built from Kafka, with other rows than were landed."""
    counted_from_archive: list[OffsetRange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.view = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
        position = SpeedPosition({TP: len(self.zip_codes)}, batch_id=7, query_id="speed")
        replaced = {
            "evidence": SimpleNamespace(speed_position=lambda *_: position, awaits_base=lambda *_: False),
            "await_archive": lambda *_: False,
            "with_causes": lambda found, _: found,
            "closed": lambda _: (),
            "closed_extents": lambda _: [],
            "counted_otherwise": lambda *_: False,
            "decoded_otherwise": lambda *_: [],
            "code_version": lambda *_: "now",
            "of_other_code": lambda _, parts, **__: frozenset(
                each.interval_id for each in parts if each.code_version == "before"
            ),
            "read_otherwise": lambda parts: self.read_otherwise & {each.interval_id for each in parts},
            "replays_into": lambda _: SimpleNamespace(paths=[], records=0),
            "read_replayed": lambda *_: self.counts({}),
            "micro_batches": SimpleNamespace(stored_topics=lambda _: {}),
            "stored_parts": self.parts,
            "read_files": self.stored,
            "read_archived": self.archived,
            "load_references": lambda *_: {},
            "aggregate_view": lambda _, __, rows, ___: rows.groupBy("zipcode").agg(F.count(F.lit(1)).alias("hits")),
        }
        for name, value in replaced.items():
            self.monkeypatch.setattr(totals, name, value, raising=False)

    def stored(self, _: Any, paths: list[str], *__: Any) -> Any:
        parts = (self.built[int(each.split("/")[1])][2] for each in paths)
        return self.counts(dict(sum(map(Counter, parts), Counter())))

    def counts(self, of: dict[str, int]) -> Any:
        return frame_of(self.spark, of.items(), COUNTS)

    def parts(self, pipeline: Any, view: Any, but: Collection[int], **_: Any) -> Partials:
        here = {number: each for number, each in self.built.items() if number not in but}
        held = [
            Partial(number, *(("r", f"/{number}", {"part-0": {}}) if rows else ("", "", {})), code, number)
            for number, (code, _, rows) in here.items()
        ]
        return Partials(tuple(held), tuple(each for _, each, _ in here.values()))

    def archived(self, spark: Any, pipeline: Any, ranges: list[OffsetRange], damaged: str) -> Any:
        self.counted_from_archive += [each for each in ranges if len(each)]
        rows = [(TP.topic, 0, offset, code) for offset, code in enumerate(self.zip_codes)]
        schema = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, zipcode STRING"
        return frame_of(self.spark, rows, schema).where(within(ranges))

    def reconciled(self, speed: dict[str, int]) -> Reconciliation:
        """Compare the interval of the last two offsets with these live values."""
        own = OffsetRange(TP, len(self.zip_codes) - 2, len(self.zip_codes))
        batch = self.archived(self.spark, None, [own], "").groupBy("zipcode").agg(F.count(F.lit(1)).alias("hits"))
        pinned: Any = SimpleNamespace(id=99, ranges=[own])
        pipeline = load_pipeline("isp_hits")
        run: Any = SimpleNamespace(
            spark=self.spark, pipeline=pipeline, pinned=pinned, versioned_references=(), damaged="refuse"
        )
        keyed = self.counts(speed).select(F.to_json(F.struct("zipcode")).alias("key"), "hits")
        self.monkeypatch.setattr(totals, "speed_values", lambda *_: keyed)
        self.counted_from_archive.clear()
        return reconcile_total(run, self.view, batch, Replayed(self.counts({}), 0, ""))


@pytest.fixture
def archived(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Archived:
    """Six records; other code wrote the zip code of the first two as `94103-1234`, which the code now shortens."""
    made = Archived(spark, monkeypatch, ["94103", "94103", "10001", "10001", "94103", "10001"])
    made.built[1] = "before", OffsetRange(TP, 0, 2), {"94103-1234": 2}
    made.built[2] = "now", OffsetRange(TP, 2, 4), {"10001": 2}
    return made


@pytest.mark.spark
def test_archive_counts_what_other_code_built_when_it_gave_rows_another_key(archived: Archived) -> None:
    found = archived.reconciled({"94103": 3, "10001": 3})
    assert found.counts == ReconciliationCounts(matched=1, pending=1)
    assert [(each.where, each.cls) for each in found.differences] == [('{"zipcode":"94103"}', "pending")]
    assert OffsetRange(TP, 0, 2) in archived.counted_from_archive
    assert OffsetRange(TP, 2, 4) not in archived.counted_from_archive, "the current code built that part"


@pytest.mark.spark
@pytest.mark.parametrize("code", ["now", "before"])
def test_archive_is_not_read_for_an_interval_when_it_has_no_row_of_the_total(archived: Archived, code: str) -> None:
    archived.built[1] = code, OffsetRange(TP, 0, 2), {}
    found = archived.reconciled({"94103": 1, "10001": 3})
    assert found.counts == ReconciliationCounts(matched=2)
    assert archived.counted_from_archive == [OffsetRange(TP, 4, 6)], "its own"


@pytest.mark.spark
def test_archive_counts_an_interval_without_a_row_of_the_total_when_other_code_gave_none(archived: Archived) -> None:
    archived.built[1] = "before", OffsetRange(TP, 0, 2), {}
    found = archived.reconciled({"94103": 3, "10001": 3})
    assert found.counts == ReconciliationCounts(matched=1, pending=1)
    assert OffsetRange(TP, 0, 2) in archived.counted_from_archive


@pytest.mark.spark
def test_wrong_total_is_unexplained_when_the_archive_counts_what_other_code_built(archived: Archived) -> None:
    found = archived.reconciled({"94103": 4, "10001": 2, "0": 1})
    unexplained = {each.where for each in found.differences if each.cls == "unexplained"}
    assert unexplained == {f'{{"zipcode":"{each}"}}' for each in ("94103", "10001", "0")}
    assert found.unexplained == 3


@pytest.mark.spark
def test_archive_is_not_read_for_parts_when_every_key_is_explained(archived: Archived) -> None:
    archived.built[1] = "before", OffsetRange(TP, 0, 2), {"94103": 1}
    found = archived.reconciled({"94103": 3, "10001": 3})
    assert [each.cls for each in found.differences] == ["code"]
    assert archived.counted_from_archive == [OffsetRange(TP, 4, 6)]


@pytest.mark.spark
def test_archive_counts_an_interval_that_was_run_again_from_kafka_when_the_code_now_refuses_a_landed_record(
    archived: Archived,
) -> None:
    """The base of the new generation counted both landed records; the part of the rerun has one."""
    archived.built[1] = "now", OffsetRange(TP, 0, 2), {"94103": 1}
    assert archived.reconciled({"94103": 3, "10001": 3}).unexplained == 1
    archived.read_otherwise = {1}
    found = archived.reconciled({"94103": 3, "10001": 3})
    assert found.unexplained == 0
    assert OffsetRange(TP, 0, 2) in archived.counted_from_archive
    assert archived.reconciled({"94103": 4, "10001": 3}).unexplained == 1, "a row that no record gives"


@pytest.mark.spark
def test_archive_counts_an_interval_that_was_run_again_from_kafka_when_its_rows_had_another_key(
    archived: Archived,
) -> None:
    """Two records were landed with a space, which the code now trims: so the base has them, and not the part."""
    archived.built[1] = "now", OffsetRange(TP, 0, 2), {"94103": 2}
    archived.read_otherwise = {1}
    archived.zip_codes[:2] = ["94103 ", "94103 "]
    assert archived.reconciled({"94103 ": 2, "94103": 1, "10001": 3}).unexplained == 0
