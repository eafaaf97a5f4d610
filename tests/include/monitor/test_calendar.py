"""The calendar of intervals over a real ledger: attempts that crash, builds for comparison, changed schedules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from include.doctor.examine import unregistered
from include.intervals.boundaries import asked_interval
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, locks, pins
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.intervals.missing import missing_intervals
from include.ledger.models import Attempt, Build, QuarantineCount, Revision, Topic
from include.ledger.totals import interval_counts
from include.ledger.validation import approvals
from include.monitor.history.calendar import Attention, Calendar, read_calendar
from include.monitor.history.drill import read_interval
from include.monitor.history.quarantine import read_quarantine
from include.monitor.history.remedies import run_command
from include.monitor.history.states import CellState
from include.monitor.history.trend import read_table
from include.monitor.missing import building_commands, summarize_missing
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.times import Interval, every, format_time, parse_time
from tests.conftest import Home, last_hours
from tests.support.attempts import begin_attempt, build_and_register, note_build, register
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

HOUR = timedelta(hours=1)
WARNED = ExpectationResult("t", "expect_set", "kind", "kind is a", False, "1 %", 1, severity="warn")


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> Pipeline:
    """A pipeline of this test alone."""
    number = sorted(each.name for each in request.session.items).index(request.node.name)
    return replace(load_pipeline("isp_hits"), name=f"calendar_{number}")


def past_hour(ago: int) -> Interval:
    """The hour that began so many whole hours before the current one."""
    (hour,) = past_hours(ago)
    return hour


def past_hours(*ago: int) -> list[Interval]:
    """The hours that began so many whole hours before the current one, all by one look at the clock."""
    current = last_hours(0)
    return [Interval(current - n * HOUR, current - (n - 1) * HOUR) for n in ago]


def calendar_of(pipeline: Pipeline) -> Calendar:
    return read_calendar([pipeline], now=datetime.now(UTC))


def state_of(pipeline: Pipeline, interval: Interval) -> CellState:
    (strip, *_) = calendar_of(pipeline).strips
    (found,) = (cell.state for day in strip.days for cell in day.cells if cell.label == interval.label)
    return found


def attention_of(pipeline: Pipeline, interval: Interval) -> Attention | None:
    return next((each for each in calendar_of(pipeline).attention if each.label == interval.label), None)


def announced(pipeline: Pipeline, interval: Interval, *, code: int = 0) -> int:
    """Build an interval in an attempt that is announced with this exit code; return the attempt."""
    attempt = begin_attempt(pipeline.name, interval)
    built = note_build(attempt)
    if code == 0:
        register(attempt, built)
    attempts.end_attempt(attempt, code, {})
    return attempt


def rebuild(attempt: int, *, code: int) -> None:
    """Build the attempt's interval again for comparison, as the command does."""
    pinned = attempts.load_attempt(attempt).pinned
    again = attempts.begin_attempt(pinned, run_by=attempts.REBUILD, code_version="1a2b3c", source="kafka")
    if code == 0:
        note_build(again)
    attempts.close_attempt(again, code)


def test_interval_stays_registered_when_a_build_for_comparison_fails(pipeline: Pipeline) -> None:
    hour = past_hour(2)
    rebuild(announced(pipeline, hour), code=4)
    assert state_of(pipeline, hour) is CellState.REGISTERED
    assert attention_of(pipeline, hour) is None


def test_interval_stays_failed_when_a_build_for_comparison_succeeds(pipeline: Pipeline) -> None:
    hour = past_hour(2)
    announced(pipeline, hour)
    rebuild(announced(pipeline, hour, code=3), code=0)
    assert state_of(pipeline, hour) is CellState.FAILED
    told = attention_of(pipeline, hour)
    assert told is not None
    assert told.advice.meaning.startswith("exit code 3")


def test_advice_reads_the_archive_when_an_interval_s_offsets_are_lost(pipeline: Pipeline) -> None:
    hour = past_hour(2)
    announced(pipeline, hour, code=4)
    told = attention_of(pipeline, hour)
    assert told is not None
    assert told.advice.command == f"{run_command(pipeline.name, hour)} --source archive"
    # Both are refused where the stream is past these offsets.
    assert "the stream's error" in told.advice.remedy


def test_question_stays_open_when_what_is_registered_is_built_for_comparison(pipeline: Pipeline) -> None:
    hour = past_hour(2)
    announced(pipeline, hour)
    attempt = begin_attempt(pipeline.name, hour)
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    question = approvals.ask(spec.build, "suite-1", (WARNED,))
    builds.hold(spec, Validation(False, pipeline.name, (WARNED,), question=question.id))
    attempts.end_attempt(attempt, 2, {})
    rebuild(attempt, code=0)
    told = attention_of(pipeline, hour)
    assert told is not None
    assert f"--question {question.id}" in told.advice.command
    assert pins.replace_ranges(spec.pinned, spec.pinned.ranges, repinned_by="test") is not None
    told = attention_of(pipeline, hour)
    assert told is None or "--question" not in told.advice.command


def test_late_rows_are_additions_to_no_table_whose_view_drops_none(pipeline: Pipeline) -> None:
    attempt = announced(pipeline, past_hour(2))
    with session() as ledger:
        (of_archive,) = ledger.scalars(select(Revision).where(Revision.attempt_id == attempt))
        values = {each.key: getattr(of_archive, each.key) for each in Revision.__mapper__.column_attrs}
        ledger.add_all(Revision(**{**values, "table_name": table}) for table in pipeline.tables[1:])
        ledger.get_one(Build, attempts.load_attempt(attempt).build).late = 5
    late = {strip.table: strip.late for strip in calendar_of(pipeline).strips}
    # `by_isp` takes every row, and totals have no windows.
    assert {table for table, marked in late.items() if marked} == {pipeline.name, f"{pipeline.name}_by_zip"}
    assert late.keys() == set(pipeline.tables)
    trends = {each.key: each for each in read_table(pipeline, pipeline.tables[-1], now=datetime.now(UTC)).trends}
    assert [[series.name for series in trends[key].series] for key in ("late", "pending")] == [["late"], ["pending"]]
    assert "all views of the pipeline" in trends["late"].unit


def begun(attempt: int, ago: timedelta) -> None:
    """Let an attempt have begun so long ago."""
    with session() as ledger:
        ledger.get_one(Attempt, attempt).started_at = datetime.now(UTC) - ago


def age(attempt: int, by: timedelta) -> None:
    """Let all that an attempt did until now have happened so much earlier."""
    with session() as ledger:
        row, build = ledger.get_one(Attempt, attempt), ledger.get_one(Build, attempts.load_attempt(attempt).build)
        row.started_at -= by
        build.noted_at -= by
        if build.published_at is not None:
            build.published_at -= by


def counts_of(pipeline: Pipeline) -> dict[str, int]:
    return {each.state: each.count for each in interval_counts() if each.pipeline == pipeline.name}


def test_interval_has_failed_when_its_attempt_ended_without_a_verdict(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    attempt = begin_attempt(pipeline.name, hour)
    assert state_of(pipeline, hour) is CellState.PINNED, "its next process may begin soon"
    attempts.resume_attempt(attempt)
    begun(attempt, timedelta(hours=2))
    assert state_of(pipeline, hour) is CellState.FAILED
    told = attention_of(pipeline, hour)
    assert told is not None
    assert (told.state, told.advice.meaning) == (CellState.FAILED, "its last attempt ended without a verdict")
    assert "log" in told.advice.remedy
    assert told.advice.command.startswith(f"./tidemark interval {pipeline.name} --from ")
    assert counts_of(pipeline) == {"failed": 1}
    # As doctor, status and the metrics have it.
    assert (summarize_missing(pipeline).count, building_commands(pipeline)) == (1, told.advice.command)
    page = read_interval(pipeline, hour.label)
    assert page is not None
    assert (page.state, [each.is_under_way for each in page.attempts]) == (CellState.FAILED, [False])
    announced(pipeline, hour)
    assert state_of(pipeline, hour) is CellState.REGISTERED
    assert counts_of(pipeline) == {"registered": 1}
    assert summarize_missing(pipeline).count == 0


def test_interval_is_under_way_when_its_first_job_waits_for_a_slot(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    attempt = begin_attempt(pipeline.name, hour)
    begun(attempt, timedelta(hours=2))
    assert state_of(pipeline, hour) is CellState.PINNED
    assert counts_of(pipeline) == {"pinned": 1}
    assert summarize_missing(pipeline).count == 0
    # Nothing waits that long: whoever should have begun a job is gone.
    begun(attempt, timedelta(hours=25))
    assert state_of(pipeline, hour) is CellState.FAILED
    assert summarize_missing(pipeline).count == 1


def test_interval_is_under_way_when_it_is_judged_and_its_next_task_waits_for_a_slot(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    attempt = begin_attempt(pipeline.name, hour)
    attempts.resume_attempt(attempt)
    register(attempt, note_build(attempt))
    age(attempt, timedelta(hours=2))
    assert state_of(pipeline, hour) is CellState.REGISTERED
    assert attention_of(pipeline, hour) is None
    # A publication that began since was to end with a verdict.
    attempts.note_failure(attempt, 6)
    attempts.resume_attempt(attempt)
    begun(attempt, timedelta(minutes=90))
    assert attention_of(pipeline, hour) is not None


def test_interval_is_under_way_when_a_process_works_on_it_or_built_it_lately(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    attempt = begin_attempt(pipeline.name, hour)
    attempts.resume_attempt(attempt)
    begun(attempt, timedelta(hours=2))
    with locks.attempt_under_way(pipeline.name, hour):
        assert state_of(pipeline, hour) is CellState.PINNED
        assert attention_of(pipeline, hour) is None
        assert counts_of(pipeline) == {"pinned": 1}
        page = read_interval(pipeline, hour.label)
        assert page is not None
        assert [each.is_under_way for each in page.attempts] == [True]
    note_build(attempt)
    assert state_of(pipeline, hour) is CellState.RECONCILED
    assert counts_of(pipeline) == {"pinned": 1}


def test_registered_interval_has_failed_when_its_rerun_ended_without_a_verdict(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    first = announced(pipeline, hour)
    rerun = begin_attempt(pipeline.name, hour)
    attempts.resume_attempt(rerun)
    begun(rerun, timedelta(hours=2))
    # The other attempt had ended earlier than the rerun began.
    with session() as ledger:
        ledger.get_one(Attempt, first).ended_at = datetime.now(UTC) - timedelta(hours=2, minutes=30)
    told = attention_of(pipeline, hour)
    assert told is not None
    assert told.advice.meaning == "its last attempt ended without a verdict"
    assert counts_of(pipeline) == {"registered": 1}
    # Its first run is cleared: what it announces is newer than the rerun.
    attempts.resume_attempt(first)
    attempts.end_attempt(first, 0, {})
    assert state_of(pipeline, hour) is CellState.REGISTERED


def test_exit_code_is_told_at_once_when_a_job_failed_before_any_verdict(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    older, attempt = begin_attempt(pipeline.name, hour), begin_attempt(pipeline.name, hour)
    attempts.note_failure(attempt, 4)
    told = attention_of(pipeline, hour)
    assert told is not None
    assert told.advice.meaning.startswith("exit code 4")
    assert counts_of(pipeline) == {"failed": 1}
    # Nobody announced it, so that it outdates no other attempt.
    assert attempts.superseded_by(attempts.load_attempt(older)) is None
    with session() as ledger:
        assert ledger.get_one(Attempt, attempt).ended_at is None
    attempts.resume_attempt(attempt)
    assert state_of(pipeline, hour) is CellState.PINNED
    assert counts_of(pipeline) == {"pinned": 1}
    assert attention_of(pipeline, hour) is None


def test_registered_interval_has_failed_when_it_was_pinned_again_and_its_run_was_rejected(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    pinned = attempts.load_attempt(announced(pipeline, hour)).pinned
    assert pins.replace_ranges(pinned, pinned.ranges, repinned_by="test") is not None
    assert counts_of(pipeline) == {"pinned": 1}
    announced(pipeline, hour, code=3)
    assert state_of(pipeline, hour) is CellState.FAILED
    assert counts_of(pipeline) == {"failed": 1}


def test_exit_code_of_a_verdict_stays_when_a_job_of_the_attempt_fails_later(pipeline: Pipeline) -> None:
    hour = past_hour(3)
    attempts.note_failure(announced(pipeline, hour, code=2), 1)
    told = attention_of(pipeline, hour)
    assert told is not None
    assert told.advice.meaning.startswith("exit code 2")


def commands_of(pipeline: Pipeline) -> list[str]:
    """Return the commands that the calendar tells to run; each is one that the command takes."""
    commands = [each.advice.command for each in calendar_of(pipeline).attention]
    for command in commands:
        words = command.split()
        if words[:2] == ["./tidemark", "interval"]:
            asked_interval(pipeline, parse_time(words[4]), parse_time(words[6]))
    return commands


@pytest.mark.parametrize("duration", ["15m", "6h", "1d"])
def test_pinned_intervals_stay_as_they_are_when_the_schedule_changed(pipeline: Pipeline, duration: str) -> None:
    hours = past_hours(30, 29, 27)
    failed = hours[1]
    for hour in hours:
        announced(pipeline, hour, code=3 if hour == failed else 0)
    changed = replace(pipeline, schedule=every(duration))
    states = [state_of(changed, hour) for hour in hours]
    assert states == [CellState.REGISTERED, CellState.FAILED, CellState.REGISTERED]
    (strip, *_) = calendar_of(changed).strips
    assert (strip.counts["registered"], strip.counts["failed"]) == (2, 1)
    # The hour that nobody pinned, in intervals of the present schedule that fit into it.
    assert strip.counts["missing"] == (4 if duration == "15m" else 1)
    # What was never pinned has no page to link to.
    paged = {each.label: each.is_pinned for each in calendar_of(changed).attention}
    assert {label: read_interval(changed, label) is not None for label in paged} == paged
    assert {cell.label: cell.is_pinned for day in strip.days for cell in day.cells if cell.label in paged} == paged
    assert commands_of(changed)
    page = read_interval(changed, failed.label)
    assert page is not None
    assert page.interval == failed


@pytest.mark.parametrize(("produced", "state"), [(False, CellState.IDLE), (True, CellState.MISSING)])
def test_time_that_was_never_pinned_needs_attention_only_when_records_lie_in_it(
    pipeline: Pipeline, produced: bool, state: CellState
) -> None:
    first, last = past_hours(80, 4)
    begin_pinned(pipeline, first, 0, 100)
    begin_pinned(pipeline, last, 107 if produced else 100, 200)
    told = calendar_of(pipeline)
    (strip, *_) = told.strips
    assert (strip.counts[state], strip.counts.get("missing", 0)) == (75, 75 * produced)
    assert {each.state for each in told.attention} >= ({CellState.MISSING} if produced else set())
    assert (CellState.MISSING in {each.state for each in told.attention}) == bool(missing_intervals(pipeline.name))
    # Nobody knows in which of the 75 hours they lie.
    meanings = {each.advice.meaning for each in told.attention if each.state is CellState.MISSING}
    assert all(meaning.startswith("never pinned: ") for meaning in meanings)
    assert f"75 {state}" in strip.summary


def test_older_intervals_need_attention_when_they_failed_or_were_never_built(pipeline: Pipeline) -> None:
    failed, built, before, after, last = past_hours(80, 79, 78, 70, 2)
    announced(pipeline, failed, code=3)
    announced(pipeline, built)
    begin_pinned(pipeline, before, 0, 100)
    begin_pinned(pipeline, after, 107, 200)
    begin_pinned(pipeline, last, 200, 300)
    told = read_calendar([pipeline], now=datetime.now(UTC), days=2)
    older = {each.label: each for each in told.attention if each.label < format_time(told.since)}
    gap = Interval(before.to_time, before.to_time + HOUR)
    assert [(each.label, each.state, each.is_pinned) for each in older.values()] == [
        (failed.label, CellState.FAILED, True),
        (gap.label, CellState.MISSING, False),
    ]
    assert older[failed.label].advice.meaning.startswith("exit code 3")
    assert older[gap.label].advice.command == run_command(pipeline.name, gap)
    (strip, *_) = told.strips
    assert "failed" not in strip.counts


def test_interval_needs_attention_when_it_was_pinned_again_and_not_run(pipeline: Pipeline) -> None:
    older, hour = past_hours(80, 3)
    for each in (older, hour):
        pinned = attempts.load_attempt(announced(pipeline, each)).pinned
        assert pins.replace_ranges(pinned, pinned.ranges, repinned_by="decide") is not None
    told = read_calendar([pipeline], now=datetime.now(UTC), days=2)
    repinned = {each.label: each for each in told.attention if each.state is CellState.REPINNED}
    assert list(repinned) == [hour.label, older.label]
    for each in (older, hour):
        advice = repinned[each.label].advice
        assert advice.meaning == "pinned again, and not run since: its tables have what was registered before"
        assert advice.command == run_command(pipeline.name, each)
    page = read_interval(pipeline, hour.label)
    assert page is not None
    assert (page.state, page.advice) == (CellState.REPINNED, repinned[hour.label].advice)
    begin_attempt(pipeline.name, hour)
    assert state_of(pipeline, hour) is CellState.PINNED
    announced(pipeline, hour)
    assert state_of(pipeline, hour) is CellState.REGISTERED


def test_older_registered_interval_needs_attention_when_its_rerun_failed(pipeline: Pipeline) -> None:
    rejected, killed, cleared, working = hours = past_hours(80, 79, 78, 77)
    reruns = {}
    for each in hours:
        announced(pipeline, each)
        reruns[each] = begin_attempt(pipeline.name, each)
    attempts.end_attempt(reruns[rejected], 3, {})
    attempts.resume_attempt(reruns[killed])
    begun(reruns[killed], timedelta(hours=25))
    with session() as ledger:
        for first in ledger.scalars(select(Attempt).where(Attempt.id == reruns[killed] - 1)):
            first.ended_at = datetime.now(UTC) - timedelta(hours=26)
    attempts.end_attempt(reruns[cleared], 3, {})
    announced(pipeline, cleared)
    told = read_calendar([pipeline], now=datetime.now(UTC), days=2)
    older = [each for each in told.attention if each.state is CellState.FAILED]
    assert [(each.label, each.is_registered) for each in older] == [(killed.label, True), (rejected.label, True)]
    assert older[0].advice.meaning == "its last attempt ended without a verdict"
    named = [each.what for each in unregistered(pipeline)]
    assert named[1].startswith(f"{pipeline.name}: {rejected} is registered, and its last run failed: exit code 3: ")
    assert len(named) == 2
    attempts.note_failure(reruns[working], 6)
    assert len(list(unregistered(pipeline))) == 3


def test_view_has_no_registered_interval_where_code_built_it_that_did_not_declare_the_view(pipeline: Pipeline) -> None:
    view = pipeline.view_table(pipeline.views[0])
    without, empty, unknown = past_hours(5, 4, 3)
    archive = {pipeline.name: {"a": "string"}}
    for hour, columns in (without, archive), (empty, {**archive, view: {"a": "string"}}), (unknown, None):
        attempt = begin_attempt(pipeline.name, hour)
        register(attempt, note_build(attempt, columns=columns))
        attempts.end_attempt(attempt, 0, {})
    strips = {strip.table: strip for strip in calendar_of(pipeline).strips}
    cells = {cell.label: cell for day in strips[view].days for cell in day.cells}
    assert [(cells[each.label].state, cells[each.label].rows) for each in (without, empty, unknown)] == [
        (CellState.UNDECLARED, None),
        (CellState.REGISTERED, 0),
        (CellState.REGISTERED, 0),
    ]
    assert strips[view].counts["registered"] == 2
    assert strips[pipeline.name].counts["registered"] == 3


@pytest.mark.parametrize("ago", [3, 80])
def test_records_before_the_first_pinned_interval_need_attention_also_when_their_topic_is_gone(
    pipeline: Pipeline, ago: int
) -> None:
    before, first = past_hours(ago + 1, ago)
    with held_lease(pipeline.name) as lease:
        archived, topics = (
            OffsetRange(TopicPartition("hits", 0), 0, 100, "id"),
            {"hits": TopicIdentity("hits", "id", 1)},
        )
        micro_batches.commit(lease, BatchCommit(pipeline.name, ARCHIVE, pipeline.name, 0, (archived,), topics))
    begin_pinned(pipeline, first, 60, 100)
    for topic_id in ("id", "another"):
        with session() as ledger:
            for topic in ledger.scalars(select(Topic).where(Topic.pipeline == pipeline.name)):
                topic.topic_id = topic_id
        assert [each.offsets for each in missing_intervals(pipeline.name)] == [60]
        assert summarize_missing(pipeline).count == 1
        told = read_calendar([pipeline], now=datetime.now(UTC), days=2)
        (missing,) = (each for each in told.attention if each.state is CellState.MISSING)
        assert (missing.label, missing.is_pinned) == (before.label, False)
        assert missing.advice.command == building_commands(pipeline)


def begin_pinned(pipeline: Pipeline, interval: Interval, begin: int, end: int) -> None:
    """Pin an interval to offsets of one topic partition, and begin an attempt of it."""
    tp = TopicPartition("hits", 0)
    ranges, ids = [OffsetRange(tp, begin, end, "id")], {"hits": "id"}
    between = pins.find_neighbours(pipeline.name, interval)
    pinned = pins.write_interval(pipeline.name, interval, ranges, ids, pinned_by="test", between=between)
    assert pinned is not None
    attempts.begin_attempt(pinned, run_by="test", code_version="1a2b3c", source="kafka")


@pytest.mark.parametrize("length", [1, 6, 24])
def test_quarantined_records_of_every_hour_are_in_their_interval_s_point(pipeline: Pipeline, length: int) -> None:
    day = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=3)
    built = [Interval(day + timedelta(hours=n), day + timedelta(hours=n + length)) for n in (0, 48)]
    for interval in built:
        announced(pipeline, interval)
    with session() as ledger:
        for hour in (*range(0, 72, 3), 5):
            count = QuarantineCount(
                pipeline=pipeline.name,
                hour=day + timedelta(hours=hour),
                reason="missing_field",
                records=1,
                last_batch=1,
            )
            ledger.add(count)
    scheduled = replace(pipeline, schedule=every(f"{length}h"))
    page = read_table(scheduled, pipeline.name, now=datetime.now(UTC))
    (trend,) = (each for each in page.trends if each.key == "quarantine")
    within = {1: (1, 1), 6: (3, 2), 24: (9, 8)}
    assert trend.series[0].values == within[length]
    assert f" {25 - sum(within[length])} more came in hours of which no interval is shown." in trend.note


def test_usual_rows_are_those_of_intervals_of_the_same_length_when_the_schedule_was_changed(pipeline: Pipeline) -> None:
    starts = [each.from_time for each in past_hours(*(24 * ago + 2 for ago in range(6, 0, -1)))]
    lengths, rows = (HOUR,) * 3 + (12 * HOUR,) * 3, (190,) * 3 + (2_280,) * 3
    for start, length, registered in zip(starts, lengths, rows, strict=True):
        attempt = build_and_register(pipeline.name, Interval(start, start + length), rows=registered)
        attempts.end_attempt(attempt, 0, {})
    points = read_table(pipeline, pipeline.name, now=datetime.now(UTC)).points
    assert [(each.rows, each.usual) for each in points] == [(each, each) for each in rows]


def test_interval_is_not_unusual_when_it_has_a_row_more_than_all_others_of_its_hour(pipeline: Pipeline) -> None:
    for ago, rows in zip(range(6, 0, -1), (190, 190, 190, 190, 191, 180), strict=True):
        (hour,) = past_hours(24 * ago + 2)
        attempt = build_and_register(pipeline.name, hour, rows=rows)
        attempts.end_attempt(attempt, 0, {})
    points = read_table(pipeline, pipeline.name, now=datetime.now(UTC)).points
    assert [each.rows for each in points if each.is_unusual] == [180]


def test_interval_without_a_row_is_unusual_when_its_hour_of_the_day_has_rows(pipeline: Pipeline) -> None:
    view = pipeline.views[0]
    later_table = f"{pipeline.name}_{view.name}"
    days = past_hours(*(24 * ago + 2 for ago in range(6, 0, -1)))
    for number, hour in enumerate(days):
        if number < 5:
            announced(pipeline, hour)
            continue
        attempt = begin_attempt(pipeline.name, hour)
        note_build(attempt, columns={pipeline.name: {"zipcode": "string"}})
        spec = attempts.load_attempt(attempt)
        judged = Validation(True, pipeline.name, ())
        builds.finish_registration(builds.begin_registration(spec, judged, builds.Changes()))
        attempts.end_attempt(attempt, 0, {})
    page = read_table(pipeline, pipeline.name, now=datetime.now(UTC))
    assert [(each.rows, each.is_unusual) for each in page.points] == [(190, False)] * 5 + [(0, True)]
    assert page.newest == days[-1].to_time
    # A table that was not declared yet when the last one was built.
    points = read_table(pipeline, later_table, now=datetime.now(UTC)).points
    assert [each.rows for each in points] == [0, 0, 0, 0, 0, None]


def test_every_quarantined_record_is_in_the_chart_when_there_are_many_reasons(pipeline: Pipeline) -> None:
    now = datetime.now(UTC)
    hours = past_hours(2, 3)
    with session() as ledger:
        for number in range(9):
            hour = hours[number % 2].from_time
            ledger.add(
                QuarantineCount(
                    pipeline=pipeline.name, hour=hour, reason=f"reason_{number}", records=number + 1, last_batch=1
                )
            )
    page = read_quarantine(pipeline, now=now, reason="", until=None, may_act=False, replay=None, token="")
    assert sum(value or 0 for each in page.trend.series for value in each.values) == 45
    assert [each.name for each in page.trend.series] == [*(f"reason_{n}" for n in (8, 7, 6, 5, 4)), "others"]


def test_table_is_complete_until_its_first_hole_when_later_intervals_are_registered(pipeline: Pipeline) -> None:
    first, hole, last = past_hours(5, 4, 3)
    announced(pipeline, first)
    announced(pipeline, hole, code=2)
    announced(pipeline, last)
    page = read_table(pipeline, pipeline.name, now=datetime.now(UTC))
    assert page.complete.complete_until == first.to_time
    assert page.waits_label == hole.label
    assert page.newest == last.to_time
    announced(pipeline, hole)
    page = read_table(pipeline, pipeline.name, now=datetime.now(UTC))
    assert (page.complete.complete_until, page.waits_label) == (last.to_time, "")
