"""Landing was removed, and other code ran the interval again: what it decoded otherwise is of class `code`, no more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import TopicRecreated
from include.ledger.intervals.evidence import Recorded
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.streams import losses
from include.ledger.streams.losses import AcceptedLoss
from include.offsets import Fates, OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.reconciliation import Reconciliation
from include.times import Interval
from spark_jobs.intervals import read
from spark_jobs.intervals.losses import with_losses
from spark_jobs.reconciliation import against_ledger
from spark_jobs.reconciliation.against_kafka import ArchiveComparison, reconcile_archive
from spark_jobs.reconciliation.against_ledger import reconcile_with_ledger
from spark_jobs.reconciliation.code_changes import by_coordinates, changed_rows, with_left_out, without_doubles
from spark_jobs.reconciliation.counted import Counted, hashed_coordinates
from spark_jobs.spark.frames import frame_of
from tests.conftest import Home
from tests.support.committed import commit

TP = TopicPartition("events", 0)
RANGE = OffsetRange(TP, 0, 10, "id")
HOUR = Interval(datetime(2026, 11, 20, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC))
PINNED = PinnedInterval(1, "isp_hits", HOUR, (RANGE,), {"events": "id"})

LANDED = Fates(archived=8, empty=1, quarantined=1)
"""What the first code made of the ten records."""
REBUILT = Fates(archived=7, empty=1, quarantined=2)
"""What the second one made of them, without the landing: one more is invalid."""


def compare(
    monkeypatch: pytest.MonkeyPatch,
    held: Fates,
    *,
    replaced: Sequence[OffsetRange] = (RANGE,),
    recorded: Fates = REBUILT,
    noted: Sequence[tuple[str, int]] = (),
    lost: Sequence[AcceptedLoss] = (),
) -> ArchiveComparison:
    """Compare what the archive holds with what micro-batches committed and the registered build recorded."""
    second = [["second"]] if replaced else [["first"]]
    monkeypatch.setattr(against_ledger.evidence, "committed_fates", lambda *_: [Recorded(RANGE, LANDED, "2 batches")])
    monkeypatch.setattr(against_ledger.evidence, "recorded_fates", lambda _: [Recorded(RANGE, recorded, "a build")])
    monkeypatch.setattr(against_ledger.evidence, "noted_rows", lambda _: list(noted))
    monkeypatch.setattr(against_ledger.landing_files, "files_covering", lambda *_: [])
    monkeypatch.setattr(against_ledger, "replaced_by_other_code", lambda *_: list(replaced))
    monkeypatch.setattr(against_ledger, "decoders_of", lambda *_: second[0])
    monkeypatch.setattr(against_ledger.revisions, "decoders_of_registered", lambda _: second)
    monkeypatch.setattr(against_ledger.revisions, "decoders_of_recorded", lambda _: second[0])
    nothing: Any = None
    return reconcile_with_ledger(PINNED, nothing, {TP: Counted(held, (9, 0, 0))}, lost)


def kinds(found: Reconciliation) -> set[tuple[str, str]]:
    return {(str(each.cls), each.what) for each in found.examples()}


def test_archive_agrees_with_the_ledger_when_other_code_left_a_record_out(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Fates(archived=7, empty=1, quarantined=1)
    found = compare(monkeypatch, held)
    assert found.reconciliation.counts.unexplained == 0
    assert kinds(found.reconciliation) == {
        ("code", "archive records left out by the code"),
        ("code", "archive against the ledger"),
    }
    assert found.fates == {TP: Fates(archived=7, empty=2, quarantined=1)}
    assert found.gaps == {TP: 0}
    # What this build records is what the next one finds.
    again = compare(monkeypatch, held, recorded=found.fates[TP])
    assert again.reconciliation.counts.unexplained == 0
    assert again.fates == found.fates


def test_archive_agrees_with_the_ledger_when_other_code_gave_an_empty_record_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rebuilt = Fates(archived=9, empty=0, quarantined=1)
    found = compare(monkeypatch, rebuilt, recorded=rebuilt)
    assert found.reconciliation.counts.unexplained == 0
    assert found.fates == {TP: rebuilt}


def test_missing_record_is_unexplained_when_no_other_code_replaced_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Fates(archived=7, empty=1, quarantined=1)
    assert compare(monkeypatch, held, replaced=(), recorded=LANDED).reconciliation.counts.unexplained == 2


def test_records_are_unexplained_when_the_archive_holds_more_than_the_range_has_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Fates(archived=12)
    found = compare(monkeypatch, held, recorded=held)
    assert found.gaps == {TP: -2}
    named = [each for each in found.reconciliation.differences if "more than the range has" in each.evidence]
    assert [each.cls for each in named] == ["unexplained"]


@pytest.mark.parametrize(("until", "named"), [(1, "1 offsets had no visible record"), (2, "")])
def test_accepted_loss_is_no_offset_without_a_visible_record_when_the_archive_is_read(
    monkeypatch: pytest.MonkeyPatch, until: int, named: str
) -> None:
    loss = AcceptedLoss(1, OffsetRange(TP, 0, until, "id"), HOUR.from_time, "test@host", "retention")
    held = Fates(archived=8)
    found = compare(monkeypatch, held, replaced=(), recorded=held, lost=[loss])
    assert found.gaps == {TP: 2}
    gaps = [each.evidence for each in found.reconciliation.differences if each.cls == "gap"]
    assert gaps == [f"{named} when they were archived"] if named else gaps == []


def test_interval_is_refused_when_its_topic_is_another_one_after_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code's rows are compared by coordinates alone, which those of another topic may share."""
    ids = iter(["id", "other"])
    monkeypatch.setattr(read.kafka, "describe_topics", lambda _: {"events": TopicIdentity("events", next(ids), 1)})
    monkeypatch.setattr(read.kafka, "check_retained", lambda *_: None)
    monkeypatch.setattr(read.losses, "not_archived_in", lambda *_: [])
    for name in ("read_ranges", "without_erased"):
        monkeypatch.setattr(read, name, lambda *_: None)
    monkeypatch.setattr(read, "decoder_version", lambda _: "second")
    monkeypatch.setattr(read, "decoded_otherwise", lambda *_: [RANGE])
    monkeypatch.setattr(read, "withhold_quarantined", lambda *_: ())
    monkeypatch.setattr(read, "decode", lambda _: SimpleNamespace(drop=lambda *_: None))
    nothing: Any = None
    reading = read.Reading(nothing, {TP: LANDED}, {TP: 0}, 0, (), Reconciliation())
    monkeypatch.setattr(read, "_compare_changed_code", lambda *_: reading)
    monkeypatch.setattr(read, "fewer_than_counted", lambda *_: Reconciliation())
    run: Any = SimpleNamespace(spark=None, pipeline=load_pipeline("isp_hits"), pinned=PINNED)
    with pytest.raises(TopicRecreated, match="its id is other"):
        read._read_from_kafka(run, nothing, nothing)


@pytest.mark.services
def test_offsets_are_gaps_with_a_reason_when_the_archive_begins_after_them(postgres: Home) -> None:
    commit("begun_at_3", 1, 3, 10)
    passed = losses.not_archived_in("begun_at_3", [RANGE])
    assert losses.without([RANGE], passed) == [OffsetRange(TP, 3, 10, "id")]
    before = OffsetRange(TP, 0, 3, "id")
    nothing: Any = None
    pinned = PinnedInterval(0, "begun_at_3", HOUR, (before,), {"events": "id"})
    found = reconcile_with_ledger(pinned, nothing, {}, passed)
    assert (found.gaps, list(found.reconciliation.differences)) == ({TP: 3}, [])
    (told,) = with_losses([before], [before], found.gaps, passed)[1].differences
    assert (told.cls, told.where) == ("gap", "events-0 [0, 3)")
    assert "read by no micro-batch" in told.evidence
    assert losses.accepted_among(passed) == 0
    # What lacks a micro-batch after the first one is no beginning.
    commit("begun_at_3", 2, 12, 20)
    assert losses.not_archived_in(pinned.pipeline, [OffsetRange(TP, 10, 20, "id"), OffsetRange(TP, 20, 30, "id")]) == []


def test_missing_quarantined_record_is_unexplained_whatever_code_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """No code takes a record out of quarantine."""
    found = compare(monkeypatch, Fates(archived=7, empty=1))
    assert found.reconciliation.counts.unexplained == 1


def test_missing_file_is_unexplained_whatever_code_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lost = ("landing/isp_hits/1/fate=empty/part.parquet", 1)
    found = compare(monkeypatch, Fates(archived=7, quarantined=1), noted=[lost])
    assert found.reconciliation.counts.unexplained == 1


COLUMNS = "fate STRING, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT"


def side(spark: Any, fates: dict[int, str]) -> Any:
    """Return records of these fates, in the columns of `hashed`."""
    records = [(fate, "events", 0, offset, 0) for offset, fate in fates.items()]
    return hashed_coordinates(frame_of(spark, records, COLUMNS))


FIRST = {0: "archived", 1: "archived", 2: "empty", 3: "quarantined", 4: "archived"}
SECOND = {0: "archived", 1: "quarantined", 2: "archived", 3: "quarantined", 4: "archived"}


def compare_sides(
    spark: Any, in_kafka: dict[int, str], replaced: Sequence[OffsetRange], **landed: dict[int, str]
) -> tuple[Reconciliation, dict[str, int]]:
    """Compare Kafka's five records with rows of the second code beside the first's other records."""
    five = [OffsetRange(TP, 0, 5, "id")]
    rows = side(spark, landed.get("rows", {at: fate for at, fate in SECOND.items() if fate == "archived"}))
    others = side(spark, landed.get("others", {at: fate for at, fate in FIRST.items() if fate != "archived"}))
    kafka = side(spark, in_kafka)
    in_landing = rows.unionByName(without_doubles(others, rows, replaced))
    by_place, all_landed = by_coordinates(kafka, five), by_coordinates(in_landing, five)
    all_landed, left_out = with_left_out(by_place, all_landed, replaced)
    compared = reconcile_archive(by_place, all_landed, (kafka, in_landing), five)
    counts, changes = changed_rows(kafka, in_landing, five)
    return compared.reconciliation + left_out + changes, counts


@pytest.mark.spark
@pytest.mark.parametrize(("in_kafka", "added", "removed"), [(SECOND, 0, 0), (FIRST, 1, 1)], ids=["again", "rollback"])
def test_kafka_agrees_with_the_archive_when_other_code_replaced_its_rows(
    spark: Any, in_kafka: dict[int, str], added: int, removed: int
) -> None:
    found, counts = compare_sides(spark, in_kafka, [OffsetRange(TP, 0, 5)])
    assert found.counts.unexplained == 0
    assert counts == {"added": added, "removed": removed, "changed": 0}
    assert ("code", "archive records left out by the code") in kinds(found)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("replaced", "landed", "unexplained"),
    [
        pytest.param([], {}, 2, id="no other code replaced rows"),
        pytest.param([OffsetRange(TP, 2, 5)], {}, 1, id="the record has its landing"),
        pytest.param([OffsetRange(TP, 0, 5)], {"rows": {0: "archived", 2: "archived", 4: "archived", 9: "archived"}},
                     1, id="a record that Kafka does not have"),
        pytest.param([OffsetRange(TP, 0, 3)], {"rows": {0: "archived", 2: "archived"}}, 1, id="a lost row"),
    ],
)  # fmt: skip
def test_lost_and_doubled_records_are_unexplained_where_no_other_code_replaced_them(
    spark: Any, replaced: Sequence[OffsetRange], landed: dict[str, dict[int, str]], unexplained: int
) -> None:
    found, _ = compare_sides(spark, FIRST, replaced, **landed)
    assert found.counts.unexplained == unexplained
