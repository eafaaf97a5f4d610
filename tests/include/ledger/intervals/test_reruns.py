"""What a later attempt of a registered interval leaves alone, on a real PostgreSQL, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from include.errors import AnotherWriter, TidemarkError
from include.ledger import proofs
from include.ledger.columns.partition_sources import sources
from include.ledger.database import engine, session
from include.ledger.intervals import attempts, builds, pins, revisions
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.days import day_totals
from include.ledger.intervals.evidence import recorded_fates
from include.ledger.intervals.findings import BuildFindings, DeltaVersion, FateCounts, RecordCounts, Validation
from include.ledger.intervals.states import RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Attempt, Build, Erasure, IntervalRow, Revision
from include.offsets import Fates
from include.reconciliation import ReconciliationCounts
from tests.support.attempts import begin_attempt, begin_to_register, build_and_register, hour, note_build, register
from tests.support.ledger_reads import rows_fetched
from tests.support.ledger_waits import waits_with

pytestmark = pytest.mark.services


def registering(pipeline: str) -> tuple[AttemptSpec, builds.Registration]:
    """An attempt's build whose registration was begun, and not finished."""
    attempt = begin_attempt(pipeline)
    begun = begin_to_register(attempt, note_build(attempt))
    return attempts.load_attempt(attempt), begun


def build_otherwise(attempt: int) -> BuiltRevision:
    """Return the result of a build whose code quarantines ten more records of each topic partition."""
    built = note_build(attempt)
    spec = attempts.load_attempt(attempt)
    findings = spec.findings.build
    assert findings is not None
    fates = {tp: FateCounts(85, 2, 13, 0) for tp in findings.fates}
    again = replace(built, revision=f"{built.revision}-again")
    builds.note_build(spec, [again], replace(findings, fates=fates))
    return again


def fates_told(pipeline: str) -> tuple[list[Fates], int]:
    """Return the fates with which an attempt from the archive is compared, and the archived records of the day."""
    pinned = pins.find_interval(pipeline, hour().from_time)
    assert pinned is not None
    day = hour().from_time.replace(hour=0)
    archived = day_totals(pipeline, day, day + timedelta(days=1)).records["archived"]
    return [each.fates for each in recorded_fates(pinned)], archived


def test_fates_stay_those_of_what_is_registered_when_a_later_attempt_is_rejected_or_only_rebuilds(
    pipeline: str,
) -> None:
    build_and_register(pipeline)
    registered = ([Fates(95, 2, 3)] * 2, 190)
    assert fates_told(pipeline) == registered
    rejected = begin_attempt(pipeline)
    build_otherwise(rejected)
    builds.reject(attempts.load_attempt(rejected), Validation(False, pipeline))
    assert fates_told(pipeline) == registered
    rebuilt = build_otherwise(begin_attempt(pipeline))
    revisions.set_state([rebuilt], RevisionState.DISCARDED)
    assert fates_told(pipeline) == registered
    # The registered one counts.
    last = begin_attempt(pipeline)
    register(last, build_otherwise(last))
    assert fates_told(pipeline) == ([Fates(85, 2, 13)] * 2, 170)


def test_code_that_counted_the_told_fates_is_of_the_registered_build_and_before_there_is_one_of_the_last(
    pipeline: str,
) -> None:
    def build(version: str, unexplained: int = 0) -> tuple[int, BuiltRevision]:
        attempt = begin_attempt(pipeline)
        built = note_build(attempt, unexplained=1)
        spec = attempts.load_attempt(attempt)
        assert spec.findings.build is not None
        counts = ReconciliationCounts(unexplained=unexplained)
        findings = replace(spec.findings.build, decoder_versions=(version,), reconciliation=counts)
        again = replace(built, revision=f"{built.revision}-again")
        builds.note_build(spec, [again], findings)
        return attempt, again

    def told() -> list[str]:
        pinned = pins.find_interval(pipeline, hour().from_time)
        assert pinned is not None
        return revisions.decoders_of_recorded(pinned.id)

    first = build("first")
    assert told() == ["first"]
    build("unexplained", unexplained=1)
    assert told() == ["first"]
    build("second")
    assert told() == ["second"]
    register(*first)
    assert told() == ["first"]
    build("third")
    assert told() == ["first"]
    # Its rows are those that are registered, so these stay, and with them the build that wrote them.
    attempt, same = build("fourth")
    spec = attempts.load_attempt(attempt)
    builds.finish_registration(builds.begin_registration(spec, Validation(True, pipeline), Changes(kept=(same,))))
    assert told() == ["fourth"]


def test_fates_stay_as_an_erasure_counted_them_when_a_registration_that_was_begun_before_is_finished(
    pipeline: str,
) -> None:
    spec, begun = registering(pipeline)
    told = {
        "columns": ["device_id"],
        "reason": "test",
        "begun_by": "test",
        "salt": "00",
        "key_hashes": [],
        "counts": {},
    }
    with session() as ledger:
        ledger.add(Erasure(pipeline=pipeline, intervals=[spec.pinned.id], last_build=begun.build, **told))
        erased = {each.topic_partition: FateCounts(94, 2, 3, 0, 1) for each in spec.pinned.ranges}
        attempts.note_fates(ledger, spec.pinned.id, spec.pinned.ranges, erased)
    builds.finish_registration(begun)
    assert fates_told(pipeline)[1] == 188


def test_interval_stays_open_when_it_was_pinned_again_before_its_begun_registration_is_finished(pipeline: str) -> None:
    spec, begun = registering(pipeline)
    longer = [replace(each, until_offset=each.until_offset + 50) for each in spec.pinned.ranges]
    again = pins.replace_ranges(spec.pinned, longer, repinned_by="test")
    assert again is not None
    builds.finish_registration(begun)
    assert pins.is_open(again)


def test_no_fates_are_told_when_the_interval_was_pinned_again_during_its_build(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    spec = attempts.load_attempt(attempt)
    longer = [replace(each, until_offset=each.until_offset + 50) for each in spec.pinned.ranges]
    findings = BuildFindings(
        spec.pinned.ranges,
        {each.topic_partition: FateCounts(95, 2, 3, 0) for each in spec.pinned.ranges},
        RecordCounts(),
        ReconciliationCounts(),
    )
    again = pins.replace_ranges(spec.pinned, longer, repinned_by="test")
    assert again is not None
    # It was read before, and its lock is lost.
    builds.note_build(spec, [], findings)
    assert recorded_fates(again) == []
    builds.note_build(attempts.load_attempt(attempt), [], replace(findings, ranges=again.ranges))
    assert len(recorded_fates(again)) == 2


def test_interval_stays_open_when_its_begun_registration_is_finished_while_it_is_pinned_again(pipeline: str) -> None:
    spec, begun = registering(pipeline)
    longer = [replace(each, until_offset=each.until_offset + 50) for each in spec.pinned.ranges]

    def pin_again(other: Session) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pins, "session", lambda: nullcontext(other))
            assert pins.replace_ranges(spec.pinned, longer, repinned_by="test") is not None
        other.flush()

    assert "intervals" in waits_with(lambda: builds.finish_registration(begun), pin_again)
    again = pins.find_interval(pipeline, hour().from_time)
    assert again is not None
    assert pins.is_open(again)


def test_interval_stays_open_when_the_clock_was_set_back_between_the_build_and_its_being_pinned_again(
    pipeline: str,
) -> None:
    spec, begun = registering(pipeline)
    with session() as ledger:
        ledger.get_one(Build, begun.build).noted_at += timedelta(hours=1)
    longer = [replace(each, until_offset=each.until_offset + 50) for each in spec.pinned.ranges]
    again = pins.replace_ranges(spec.pinned, longer, repinned_by="test")
    assert again is not None
    builds.finish_registration(begun)
    assert pins.is_open(again)
    assert proofs.build_to_prove(again.id) is None
    later = build_and_register(pipeline)
    assert not pins.is_open(again)
    assert proofs.build_to_prove(again.id) == attempts.load_attempt(later).build


def test_registration_that_is_finished_twice_changes_nothing_when_a_later_build_was_registered_in_between(
    pipeline: str,
) -> None:
    spec, begun = registering(pipeline)
    builds.finish_registration(begun)
    later = begin_attempt(pipeline)
    register(later, build_otherwise(later))
    registered = revisions.registered_of_interval(spec.pinned.id)
    builds.finish_registration(begun)
    assert revisions.registered_of_interval(spec.pinned.id) == registered
    assert fates_told(pipeline) == ([Fates(85, 2, 13)] * 2, 170)


def test_build_that_was_given_up_counts_for_nothing_when_it_is_published_after_the_later_one(pipeline: str) -> None:
    first, given_up = begin_attempt(pipeline), begin_attempt(pipeline)
    built = note_build(first)
    register(first, built)
    changes = Changes(points=(build_otherwise(given_up),))
    spec = attempts.load_attempt(given_up)
    builds.give_up(builds.begin_registration(spec, Validation(True, pipeline), changes).build)
    assert builds.begun_registrations(pipeline) == []
    later = begin_attempt(pipeline)
    same = Changes(kept=(note_build(later),))
    begun = builds.begin_registration(attempts.load_attempt(later), Validation(True, pipeline), same)
    builds.finish_registration(begun)
    builds.note_replaced(spec, Validation(True, pipeline))
    assert builds.is_published(spec.build or 0)
    assert [each.revision for each in revisions.registered_of_interval(spec.pinned.id)] == [built.revision]
    assert proofs.build_to_prove(spec.pinned.id) == attempts.load_attempt(first).build


def begin_registration(attempt: AttemptSpec, validation: Validation) -> None:
    builds.begin_registration(attempt, validation, Changes(points=tuple(revisions.of_build(attempt.build or 0))))


@pytest.mark.parametrize("judge", [begin_registration, builds.reject, builds.hold, builds.note_replaced])
def test_verdict_on_a_build_changes_nothing_when_its_attempt_was_built_again_meanwhile(
    pipeline: str, judge: Callable[[AttemptSpec, Validation], None]
) -> None:
    attempt = begin_attempt(pipeline)
    note_build(attempt)
    judged = attempts.load_attempt(attempt)
    again = build_otherwise(attempt)
    with pytest.raises(AnotherWriter, match=f"attempt {attempt} of .* was built again while it was published"):
        judge(judged, Validation(True, pipeline))
    latest = attempts.load_attempt(attempt)
    assert latest.findings.validation is None
    with session() as ledger:
        states = {row.id: row.state for row in ledger.query(Revision).filter_by(attempt_id=attempt)}
    assert states.pop(again.revision) == RevisionState.BUILT
    assert set(states.values()) == {RevisionState.DISCARDED}


@pytest.mark.parametrize("judge", [begin_registration, builds.reject, builds.note_replaced])
def test_revision_stays_removed_when_its_build_is_judged_while_housekeeping_removes_it(
    pipeline: str, judge: Callable[[AttemptSpec, Validation], None]
) -> None:
    attempt = begin_attempt(pipeline)
    note_build(attempt)
    judged = attempts.load_attempt(attempt)

    def remove(other: Session) -> None:
        for row in other.query(Revision).filter_by(attempt_id=attempt).with_for_update():
            revisions.move(row, RevisionState.REMOVED)
        other.flush()

    def judge_it() -> None:
        with suppress(TidemarkError):
            judge(judged, Validation(True, pipeline))

    assert "revisions" in waits_with(judge_it, remove)
    with session() as ledger:
        states = {row.state for row in ledger.query(Revision).filter_by(attempt_id=attempt)}
    assert states == {RevisionState.REMOVED}


def test_builds_of_several_attempts_are_noted_when_they_end_at_once(pipeline: str) -> None:
    """Each refers to the interval before it locks it: two of them must not wait for each other."""
    numbers = [begin_attempt(pipeline) for _ in range(4)]
    for _ in range(5):
        with ThreadPoolExecutor(len(numbers)) as threads:
            assert len(list(threads.map(note_build_again, numbers))) == len(numbers)


def note_build_again(attempt: int) -> int:
    spec = attempts.load_attempt(attempt)
    ranges = spec.pinned.ranges
    findings = BuildFindings(
        ranges, {each.topic_partition: FateCounts(95, 2, 3) for each in ranges}, RecordCounts(), ReconciliationCounts()
    )
    return builds.note_build(spec, [], findings)


def test_code_is_read_once_for_each_build_when_these_have_many_table_partitions(pipeline: str) -> None:
    """What a build found may be as long as its table partitions are many."""

    def build(*decoders: str) -> tuple[AttemptSpec, list[BuiltRevision]]:
        attempt = begin_attempt(pipeline)
        built = note_build(attempt)
        spec = attempts.load_attempt(attempt)
        assert spec.findings.build is not None
        many = [replace(built, partition=f"zip={n}", revision=f"{built.revision}-again") for n in range(20)]
        builds.note_build(spec, many, replace(spec.findings.build, decoder_versions=decoders))
        return attempts.load_attempt(attempt), many

    def is_of_registered_code(spec: AttemptSpec) -> bool:
        with rows_fetched(engine()) as rows:
            found = revisions.is_of_registered_code(spec.pinned.id, spec.build or 0)
        assert sum(rows) <= 2
        return found

    first, points = build("decoder")
    begun = builds.begin_registration(first, Validation(True, pipeline), Changes(points=tuple(points)))
    assert is_of_registered_code(first)
    builds.finish_registration(begun)
    assert is_of_registered_code(build("decoder")[0])
    assert not is_of_registered_code(build("another")[0])
    assert not is_of_registered_code(build()[0])
    assert not is_of_registered_code(build("another", "decoder")[0])


def test_partition_is_no_longer_registered_when_a_later_build_has_its_rows_elsewhere_until_another_brings_it_back(
    pipeline: str,
) -> None:
    def publish(partition: str) -> list[tuple[str, str]]:
        attempt = begin_attempt(pipeline)
        built = replace(note_build(attempt), partition=partition, revision=f"r-{partition}-{attempt}")
        spec = attempts.load_attempt(attempt)
        assert spec.findings.build is not None
        builds.note_build(spec, [built], spec.findings.build)
        before = revisions.registered_of_interval(spec.pinned.id)
        changes = Changes((built,), tuple(each for each in before if each.partition != partition))
        spec = attempts.load_attempt(attempt)
        builds.finish_registration(builds.begin_registration(spec, Validation(True, pipeline), changes))
        return revisions.no_longer_registered(spec.pinned.id)

    assert publish("date=A") == []
    assert publish("date=B") == [(pipeline, "date=A")]
    # A build that was not registered changes nothing.
    note_build(begin_attempt(pipeline))
    assert publish("date=B") == [(pipeline, "date=A")]
    assert publish("date=A") == [(pipeline, "date=B")]


def test_partition_columns_are_those_of_the_newest_registered_build_that_noted_them(pipeline: str) -> None:
    build_and_register(pipeline, hour(0))
    assert sources(pipeline) == {}
    build_and_register(pipeline, hour(1), partition_by={"zip": "zipcode"})
    note_build(begin_attempt(pipeline, hour(2)), partition_by={"zip": "isp"})
    # Earlier code was deployed again for an hour.
    build_and_register(pipeline, hour(3))
    assert sources(pipeline) == {"zip": "zipcode"}


def test_registrations_that_were_begun_are_finished_in_the_order_of_their_builds_when_the_later_was_begun_first(
    pipeline: str,
) -> None:
    earlier, later = begin_attempt(pipeline), begin_attempt(pipeline)
    points = {each: note_build(each) for each in (earlier, later)}
    for each in (later, earlier):
        changes = Changes(points=(points[each],))
        builds.begin_registration(attempts.load_attempt(each), Validation(True, pipeline), changes)
    for begun in builds.begun_registrations(pipeline):
        builds.finish_registration(begun)
    registered = revisions.registered_of_interval(attempts.load_attempt(later).pinned.id)
    assert [each.revision for each in registered] == [points[later].revision]
    assert builds.begun_registrations(pipeline) == []


def test_registration_is_finished_when_housekeeping_has_removed_a_spare_revision_since_it_was_begun(
    pipeline: str,
) -> None:
    first, again = begin_attempt(pipeline), begin_attempt(pipeline)
    register(first, built := note_build(first))
    spare = note_build(again)
    spec = attempts.load_attempt(again)
    begun = builds.begin_registration(spec, Validation(True, pipeline), Changes(kept=(spare,)))
    revisions.set_state([spare], RevisionState.REMOVED)
    builds.finish_registration(begun)
    assert builds.is_published(begun.build)
    assert [each.revision for each in revisions.registered_of_interval(spec.pinned.id)] == [built.revision]


def test_verdict_on_a_build_is_noted_when_housekeeping_has_removed_its_revisions(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    revisions.set_state([note_build(attempt)], RevisionState.REMOVED)
    builds.reject(attempts.load_attempt(attempt), Validation(False, pipeline))
    assert attempts.load_attempt(attempt).findings.validation == Validation(False, pipeline)


def state_of(pipeline: str) -> str:
    with session() as ledger:
        return ledger.query(IntervalRow).filter_by(pipeline=pipeline).one().state


def test_interval_stays_registered_when_it_has_no_rows_and_a_later_attempt_fails(pipeline: str) -> None:
    first = begin_attempt(pipeline)
    note_build(first)
    spec = attempts.load_attempt(first)
    builds.finish_registration(builds.begin_registration(spec, Validation(True, pipeline), Changes()))
    attempts.end_attempt(begin_attempt(pipeline), 2, {})
    assert state_of(pipeline) == "registered"


def test_interval_counts_as_pinned_only_when_it_was_pinned_again_and_the_attempt_that_follows_fails(
    pipeline: str,
) -> None:
    first = begin_attempt(pipeline)
    register(first, note_build(first))
    pinned = attempts.load_attempt(first).pinned
    longer = [replace(each, until_offset=each.until_offset + 50) for each in pinned.ranges]
    assert pins.replace_ranges(pinned, longer, repinned_by="test") is not None
    attempts.end_attempt(begin_attempt(pipeline), 2, {})
    assert state_of(pipeline) == "pinned"


def test_exit_code_of_an_attempt_stays_when_a_job_of_it_fails_after_its_end(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    attempts.close_attempt(attempt, 0)
    assert attempts.note_failure(attempt, 4) == 4
    with session() as ledger:
        assert ledger.get_one(Attempt, attempt).exit_code == 0


def test_findings_of_an_attempt_stay_those_of_its_latest_build_when_something_is_noted_of_an_earlier_one(
    pipeline: str,
) -> None:
    attempt = begin_attempt(pipeline)
    note_build(attempt)
    earlier = attempts.load_attempt(attempt).build
    assert earlier is not None
    note_build(attempt)
    attempts.note_delta_anew(earlier, DeltaVersion("view", 3))
    assert attempts.of_build(earlier).findings.delta == DeltaVersion("view", 3)
    with session() as ledger:
        assert "delta" not in (ledger.get_one(Attempt, attempt).verdict or {})


def test_attempt_is_not_too_late_when_the_later_one_only_built_for_comparison(pipeline: str) -> None:
    attempt, rebuild = begin_attempt(pipeline), begin_attempt(pipeline, run_by=attempts.REBUILD)
    note_build(attempt)
    revisions.set_state([note_build(rebuild)], RevisionState.DISCARDED)
    attempts.close_attempt(rebuild, 0)
    assert attempts.superseded_by(attempts.load_attempt(attempt)) is None


def test_revision_is_superseded_when_its_table_is_no_longer_declared_as_its_registration_is_finished(
    pipeline: str,
) -> None:
    attempt = begin_attempt(pipeline)
    built = note_build(attempt)
    begun = builds.begin_registration(
        attempts.load_attempt(attempt), Validation(True, pipeline), Changes(points=(built,))
    )
    builds.finish_registration(replace(begun, changes=replace(begun.changes, points=(), undeclared=(built,))))
    with session() as ledger:
        assert ledger.query(Revision).filter_by(attempt_id=attempt).one().state == RevisionState.SUPERSEDED


def test_records_with_rows_are_those_of_the_last_published_build_with_what_replays_put_into_it(pipeline: str) -> None:
    first, later = begin_attempt(pipeline), begin_attempt(pipeline)
    register(first, note_build(first))
    built = note_build(later)
    spec = attempts.load_attempt(later)
    assert spec.findings.build is not None
    again = replace(built, revision=f"{built.revision}-again")
    builds.note_build(spec, [again], replace(spec.findings.build, records=RecordCounts(archived=7, replayed=2)))
    with session() as ledger:
        assert revisions.archived_records(ledger, spec.pinned.id) == 190
    register(later, again)
    with session() as ledger:
        assert revisions.archived_records(ledger, spec.pinned.id) == 9
