"""Whose code's rows the archive has where landing was removed and the interval was run again, on a real PostgreSQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.ledger.archive import removal
from include.ledger.archive.decoders import decoded_otherwise, decoders_of, other_code, replaced_by_other_code
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes, Registration
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Build, LandingFileRow, MicroBatch
from include.offsets import OffsetRange
from include.reconciliation import ReconciliationCounts
from tests.support.committed import DAY, TP, commit, register, span
from tests.support.ledger_waits import waits_with

pytestmark = pytest.mark.services


def land(pipeline: str, number: int, begin: int, until: int, version: str | None) -> int:
    """A micro-batch of that code, with a row for each record, of the interval's first minutes."""
    batch = commit(pipeline, number, begin, until, archived=until - begin)
    with session() as ledger:
        ledger.get_one(MicroBatch, batch).decoder_version = version
        file = ledger.query(LandingFileRow).filter_by(micro_batch_id=batch).one()
        file.event_time_min, file.event_time_max = DAY, DAY + timedelta(minutes=5)
    return batch


def begin_publishing(pipeline: str, *versions: str, change: str = "points") -> Registration:
    """Build the interval with rows that the versions decoded, up to the last step of its registration."""
    pinned = pins.find_interval(pipeline, DAY)
    assert pinned is not None
    spec = attempts.load_attempt(attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka"))
    built = BuiltRevision(pipeline, f"date={spec.id}", f"r-{spec.id}", "file:///nowhere", 10, "00", {})
    findings = BuildFindings(
        pinned.ranges,
        {TP: FateCounts(10, 0, 0, 0)},
        RecordCounts(in_ranges=10, archived=10),
        ReconciliationCounts(matched=10),
        decoder_versions=versions,
    )
    builds.note_build(spec, [built], findings)
    spec = attempts.load_attempt(spec.id)
    return builds.begin_registration(spec, Validation(True, pipeline), Changes(**{change: (built,)}))


def publish(pipeline: str, *versions: str, change: str = "points") -> None:
    builds.finish_registration(begin_publishing(pipeline, *versions, change=change))


def landed_and_removed(pipeline: str) -> None:
    """An interval of ten offsets that the first version landed and built, without landing."""
    register(pipeline, 0, 0, 10)
    batch = land(pipeline, 0, 0, 10, "first")
    publish(pipeline, "first")
    assert removal.mark_removed(pipeline, [batch]) == {batch}


def facts(pipeline: str) -> tuple[list[OffsetRange], list[OffsetRange], list[str]]:
    """What other code replaced, what the first version did not decode, and who decoded the rows."""
    ranges = [span(0, 10)]
    return (
        replaced_by_other_code(pipeline, ranges),
        decoded_otherwise(pipeline, ranges, "first"),
        decoders_of(pipeline, ranges),
    )


def test_rows_are_of_the_last_code_that_changed_them_when_landing_was_removed_before(pipeline: str) -> None:
    landed_and_removed(pipeline)
    assert facts(pipeline) == ([], [], ["first"])
    publish(pipeline, "second")
    assert facts(pipeline) == ([span(0, 10)], [span(0, 10)], ["second"])
    # Its other records are those that the first one landed.
    assert decoded_otherwise(pipeline, [span(0, 10)], "second") == [span(0, 10)]
    # What gives the same rows leaves the registered ones.
    publish(pipeline, "third", change="kept")
    assert facts(pipeline) == ([span(0, 10)], [span(0, 10)], ["second"])
    publish(pipeline, "first")
    assert facts(pipeline) == ([], [], ["first"])
    publish(pipeline, "second", change="kept")
    assert facts(pipeline) == ([], [], ["first"])


def test_rows_are_of_the_code_that_took_a_table_partition_away_when_landing_was_removed_before(pipeline: str) -> None:
    landed_and_removed(pipeline)
    begun = begin_publishing(pipeline, "second", change="kept")
    with session() as ledger:
        ledger.get_one(Build, begun.build).changes = {"points": [], "kept": [], "drops": [{"table": "any"}]}
    builds.finish_registration(begun)
    assert facts(pipeline) == ([span(0, 10)], [span(0, 10)], ["second"])


def test_rows_are_as_they_were_landed_when_landing_is_there(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    land(pipeline, 0, 0, 10, "first")
    publish(pipeline, "second")
    assert facts(pipeline) == ([], [], ["first"])


def test_only_removed_parts_are_replaced_when_some_landing_is_there(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    first, _ = land(pipeline, 0, 0, 4, "first"), land(pipeline, 1, 4, 10, "first")
    publish(pipeline, "first")
    assert removal.mark_removed(pipeline, [first]) == {first}
    publish(pipeline, "second")
    assert facts(pipeline) == ([span(0, 4)], [span(0, 4)], ["first", "second"])
    # From the archive: the removed part has the second's rows, and the other one the first's.
    publish(pipeline, "first", "second")
    assert facts(pipeline)[0] == [span(0, 4)]


def test_nothing_is_replaced_when_two_versions_landed_an_interval_that_was_built_from_the_archive(
    pipeline: str,
) -> None:
    register(pipeline, 0, 0, 10)
    batches = {land(pipeline, 0, 0, 4, "first"), land(pipeline, 1, 4, 10, None)}
    publish(pipeline, "first", "unknown")
    assert removal.mark_removed(pipeline, batches) == batches
    assert facts(pipeline) == ([], [span(4, 10)], ["first", "unknown"])


def test_window_is_of_other_code_when_its_removed_landing_was_replaced(pipeline: str) -> None:
    """Of the interval itself, and of another one whose rows it meets there."""

    def touches(begin: int, until: int, minute: int, landed_by: str = "first") -> bool:
        start = DAY + timedelta(minutes=minute)
        by = {"version": 0, "landed_by": landed_by, "counted_by": "view"}
        window = (start, start + timedelta(minutes=1))
        return other_code(pipeline, "view", [span(begin, until)], (DAY, DAY + timedelta(hours=1)), **by).touches(
            *window
        )

    landed_and_removed(pipeline)
    assert not touches(0, 10, 4)
    publish(pipeline, "second")
    assert touches(0, 10, 40)
    assert touches(10, 20, 4)
    assert not touches(10, 20, 40)


def test_landing_stays_when_other_code_runs_the_interval_again_before_it_is_removed(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = land(pipeline, 0, 0, 10, "first")
    publish(pipeline, "first")
    [settled] = removal.settled_batches(pipeline, datetime.now(UTC), ("archived",))
    publish(pipeline, "second")
    assert settled.keys() == {batch}
    assert removal.mark_removed(pipeline, settled) == set()
    assert removal.removed_ranges(pipeline, [span(0, 10)]) == []
    # It gave the rows that the landing has.
    publish(pipeline, "first")
    publish(pipeline, "second", change="kept")
    assert removal.mark_removed(pipeline, settled) == {batch}


def test_removal_waits_and_landing_stays_when_other_code_is_being_registered(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    batch = land(pipeline, 0, 0, 10, "first")
    publish(pipeline, "first")
    begun, marked = begin_publishing(pipeline, "second"), []
    query = waits_with(
        lambda: marked.append(removal.mark_removed(pipeline, [batch])), lambda ledger: builds.finish(ledger, begun)
    )
    assert "FOR SHARE" in query
    assert marked == [set()]
