"""The transaction that begins an erasure, and the files that follow it, on a real PostgreSQL and without Spark."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from include import lake
from include.erasure import steps
from include.erasure.check import remaining, remaining_without_column
from include.erasure.files import rewrite_files
from include.erasure.find import Search, search
from include.erasure.keys import FORGOTTEN, Keys, hashes_of
from include.erasure.names import Names
from include.erasure.run import Wish, account, dry_run, erase, resume
from include.erasure.views import check_built
from include.errors import AnotherWriter, ServiceUnreachable, UsageError
from include.housekeeping.run import holding_files
from include.intervals import approving
from include.intervals.reporting.asking import notify_asked
from include.intervals.steps import announce, report_uri, write_report
from include.ledger import quarantine as ledger_quarantine
from include.ledger.alerts import open_alerts
from include.ledger.archive import landing_files, removal
from include.ledger.database import session
from include.ledger.erasures import intent, kept_rows, named_partitions, unfinished
from include.ledger.erasures.coordinates import (
    being_erased,
    erased_within,
    in_file,
    intervals_with,
    last_erasure,
    lock_erasing,
)
from include.ledger.erasures.intent import Found, Request
from include.ledger.intervals import attempts, builds, evidence, locks, pins
from include.ledger.intervals.findings import (
    BuildFindings,
    DeltaVersion,
    ExpectationResult,
    RecordCounts,
    Validation,
)
from include.ledger.listings import Listed, ListedReport
from include.ledger.models import (
    Attempt,
    Build,
    Erasure,
    ExpectationRow,
    Generation,
    IntervalRange,
    IntervalRow,
    LandingFileRow,
    ListedRow,
    Loss,
    MicroBatchRange,
    OutageRow,
    ProofRow,
    Replay,
    Revision,
    RowOutput,
    StreamLaunch,
    Topic,
    TopicIncarnation,
    Writer,
)
from include.ledger.quarantine import RecordKey, replayed_into
from include.ledger.streams import generations, writers
from include.ledger.validation import approvals
from include.monitor.lag import Lag
from include.offsets import Fate, Fates, OffsetRange
from include.pipelines import Declarations, load_pipeline
from include.pipelines.spec import JdbcTable, KafkaTopics
from include.reconciliation import Difference, DifferenceClass, ReconciliationCounts
from include.settings import settings
from include.spark.submission import SparkSubmission
from include.streams import written_topics
from include.streams.written_topics import check_only_ledger
from include.times import Interval, format_time
from tests.conftest import Home, wait_for
from tests.support import attempts as made
from tests.support.committed import DAY, TP, commit, register, span
from tests.support.leases import held_lease
from tests.support.ledger_faults import Killed
from tests.support.ledger_waits import waiting_query, waits_with

pytestmark = pytest.mark.services

HOUR = timedelta(hours=1)

Step = Callable[[], object]


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> str:
    """A pipeline that has read the topic `events`."""
    name = re.sub(r"\W", "_", request.node.name)[:60]
    with session() as ledger:
        ledger.add(Topic(pipeline=name, topic="events", topic_id="id", topic_partitions=1))
    return name


def at(offset: int, topic_id: str = "id") -> RecordKey:
    return RecordKey("events", topic_id, 0, offset)


def replayed(pipeline: str, offset: int, batch: int, interval: int | None = None, fate: str = "archived") -> Replay:
    """A record of the present topic that a replay has landed with this batch, and that this interval delivers."""
    return Replay(
        pipeline=pipeline, topic="events", topic_id="id", topic_partition=0, record_offset=offset, fate=fate,
        replayed_by="me@here", decoder_version="1", micro_batch_id=batch, interval_id=interval,
    )  # fmt: skip


def begin(pipeline: str, landed: set[RecordKey], quarantined: set[RecordKey], key: str = "cam-1") -> int:
    """Do what the command does after its search."""
    with held_lease(pipeline) as lease:
        request = Request(pipeline, ["device_id"], "asked", "me@here", "00" * 16, hashes_of([key], "00" * 16), False)
        return intent.begin(lease, request, Found(landed, set(), quarantined, len(landed)), Keys([key]))


def write(path: str, offsets: list[int]) -> None:
    """Write a landing file with a row per offset, at the path of one that the ledger lists."""
    columns = {"kafka_topic": ["events"] * len(offsets), "kafka_partition": [0] * len(offsets), "kafka_offset": offsets}
    _, place = lake.filesystem(lake.uri(path))
    pq.write_table(pa.table({**columns, "device_id": [f"cam-{offset}" for offset in offsets]}), place)


def counted(pipeline: str, offsets: OffsetRange) -> Fates:
    (recorded,) = evidence.committed_fates(pipeline, [offsets])
    return recorded.fates


def note_fates(pipeline: str, batch: int, archived: int, quarantined: int) -> None:
    with session() as ledger:
        row = ledger.get_one(MicroBatchRange, (batch, "events", 0))
        row.archived, row.quarantined = archived, quarantined


def test_records_move_from_their_fates_to_erased_in_every_count_when_they_are_erased(pipeline: str) -> None:
    batch = commit(pipeline, 0, 0, 10, archived=7, quarantined=3)
    note_fates(pipeline, batch, 7, 3)
    interval = register(pipeline, 0, 0, 8)
    with session() as ledger:
        row = ledger.get_one(IntervalRange, (interval, "events", 0))
        row.archived, row.empty, row.quarantined, row.gaps = 6, 0, 2, 0
        ledger.add(
            ListedRow(
                interval_id=interval, build_id=1, report="Offline", key='{"device_id": "cam-1"}', row={"name": "porch"}
            )
        )
        ledger.add(
            ListedRow(
                interval_id=interval, build_id=1, report="Offline", key='{"device_id": "cam-10"}', row={"name": "yard"}
            )
        )
    assert [each.from_time for each in intervals_with(pipeline, {at(1)})]
    assert intervals_with(pipeline, {at(9)}) == []
    erasure = begin(pipeline, {at(1), at(2)}, {at(7), at(9)})
    assert counted(pipeline, span(0, 10)) == Fates(5, 0, 1, 4)
    with session() as ledger:
        row = ledger.get_one(IntervalRange, (interval, "events", 0))
        assert (row.archived, row.quarantined, row.erased) == (4, 1, 3)
        assert [each.key for each in ledger.query(ListedRow).where(ListedRow.interval_id == interval)] == [
            '{"device_id": "cam-10"}'
        ]
        noted = ledger.get_one(Erasure, erasure)
        assert "cam-1" not in str(vars(noted))
        assert noted.intervals == [interval]
    assert erased_within(pipeline, [span(2, 8)]) == [at(2).coordinates, at(7).coordinates]
    assert being_erased(pipeline) == {at(1), at(2), at(7), at(9)}
    unfinished.finish(erasure, {})
    assert being_erased(pipeline) == frozenset()
    assert erased_within(pipeline, [OffsetRange(TP, 0, 10, "another id")]) == []


def noted_outage(pipeline: str, device: str, row: dict[str, str], offset: int, **end: Any) -> OutageRow:
    """An outage, without an end one that lasts, of a camera whose record at this offset was down."""
    return OutageRow(
        pipeline=pipeline, report="Offline", key=json.dumps({"device_id": device}), micro_batch=1, topic="events",
        topic_id="id", topic_partition=0, record_offset=offset, element=0, began_at=DAY, row=row, **end,
    )  # fmt: skip


def test_outages_and_listed_rows_of_others_stay_when_they_only_mention_an_erased_key(pipeline: str) -> None:
    commit(pipeline, 0, 0, 10, archived=10)
    interval = register(pipeline, 0, 0, 8)
    rows = {"cam-1": {"name": "porch"}, "cam-2": {"name": "next to cam-1"}, "at cam-1": {"name": "yard"}}
    with session() as ledger:
        for offset, (device, row) in enumerate(rows.items(), 1):
            ledger.add(noted_outage(pipeline, device, row, offset))
            key = json.dumps({"device_id": device})
            ledger.add(ListedRow(interval_id=interval, build_id=1, report="Offline", key=key, row=row))
        # It is up again by a row that mentions the key.
        ended = {"end_micro_batch": 1, "end_topic": "events", "end_topic_id": "id", "end_partition": 0}
        places = {"end_offset": 7, "end_element": 0, "ended_at": DAY, "end_row": {"name": "was cam-1"}}
        ledger.add(noted_outage(pipeline, "cam-3", {"name": "gate"}, 4, **ended, **places))
    erasure = begin(pipeline, {at(1)}, set())
    with session() as ledger:
        of_pipeline = select(OutageRow).where(OutageRow.pipeline == pipeline).order_by(OutageRow.id)
        kept = {
            json.loads(each.key)["device_id"]: (each.record_offset, each.end_offset, each.row, each.end_row)
            for each in ledger.scalars(of_pipeline)
        }
        assert kept == {
            "cam-2": (2, None, {"name": FORGOTTEN}, None),
            "at cam-1": (3, None, {"name": "yard"}, None),
            "cam-3": (4, 7, {"name": "gate"}, {"name": FORGOTTEN}),
        }
        listed = ledger.scalars(select(ListedRow).where(ListedRow.interval_id == interval))
        assert {json.loads(each.key)["device_id"]: each.row["name"] for each in listed} == {
            "cam-2": FORGOTTEN,
            "at cam-1": "yard",
        }
        assert ledger.get_one(Erasure, erasure).counts["ledger_entries"] == 5


def test_nothing_is_left_to_write_when_files_are_written_again_after_a_kill(pipeline: str) -> None:
    first = commit(pipeline, 0, 0, 10, archived=5)
    second = commit(pipeline, 1, 10, 20, archived=5)
    compacted = f"landing/{pipeline}/both/fate=archived/part.parquet"
    with session() as ledger:
        for row in ledger.query(LandingFileRow).where(LandingFileRow.micro_batch_id.in_((first, second))):
            row.path = compacted
    lake.make_parents(lake.uri(compacted))
    write(compacted, [0, 1, 2, 3, 4, 10, 11, 12, 13, 14])
    erasure = begin(pipeline, {at(1), at(11), at(12)}, set())
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    declared = load_pipeline("nest_cameras")
    assert rewrite_files(declared, begun, lambda: None) == 1
    (path,) = landing_files.files_covering(pipeline, [span(0, 20)], Fate.ARCHIVED)
    assert re.fullmatch(rf"landing/.*/part-e{erasure}\.parquet", path)
    assert not lake.exists(lake.uri(compacted))
    place = Path(lake.filesystem(lake.uri(path))[1])
    assert pq.ParquetFile(place).read()["kafka_offset"].to_pylist() == [0, 2, 3, 4, 10, 13, 14]
    assert b"cam-11" not in place.read_bytes()
    with session() as ledger:
        rows = ledger.query(LandingFileRow).where(LandingFileRow.path == path).order_by(LandingFileRow.micro_batch_id)
        assert [(row.rows, row.bytes) for row in rows] == [(4, place.stat().st_size), (3, place.stat().st_size)]
    assert rewrite_files(declared, begun, lambda: None) == 0


def test_no_file_is_put_in_place_when_the_lock_was_lost_or_it_was_merged_meanwhile(pipeline: str) -> None:
    commit(pipeline, 0, 0, 10, archived=5)
    (path,) = landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED)
    write(path, [0, 1, 2, 3, 4])
    begin(pipeline, {at(1)}, set())
    begun = unfinished.unfinished(pipeline)
    assert begun is not None

    def lost() -> None:
        raise ServiceUnreachable("the lock was lost", remedy="")

    with pytest.raises(ServiceUnreachable):
        rewrite_files(load_pipeline("nest_cameras"), begun, lost)
    assert landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED) == [path]

    def merged() -> None:
        removal.move_into(pipeline, landing_files.files_at(pipeline, [path]), f"landing/{pipeline}/merged", 1)

    with pytest.raises(AnotherWriter, match="merged while"):
        rewrite_files(load_pipeline("nest_cameras"), begun, merged)
    assert lake.exists(lake.uri(path))


def test_file_is_not_swapped_when_a_transaction_that_merges_it_ends_before(pipeline: str) -> None:
    commit(pipeline, 0, 0, 10, archived=5)
    [file] = landing_files.files_at(pipeline, landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED))
    merged = update(LandingFileRow).where(LandingFileRow.path == file.path).values(path=f"landing/{pipeline}/merged")

    def swap() -> None:
        unfinished.swap_file(file.path, replace(file, path=f"{file.path}-e1"), [], {})

    with pytest.raises(AnotherWriter, match="merged while"):
        waits_with(swap, lambda ledger: ledger.execute(merged))
    assert landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED) == [f"landing/{pipeline}/merged"]


def test_record_at_the_same_offset_stays_when_its_topic_was_created_again(pipeline: str) -> None:
    """The old incarnation's interval is the first, the new one's the second; the old record 1 is erased."""
    batches = [commit(pipeline, number, 0, 10, archived=5) for number in (0, 1)]
    intervals = [register(pipeline, number, 0, 10) for number in (0, 1)]
    with session() as ledger:
        ledger.get_one(MicroBatchRange, (batches[0], "events", 0)).topic_id = "old"
        ledger.get_one(IntervalRange, (intervals[0], "events", 0)).topic_id = "old"
        ledger.add(
            TopicIncarnation(
                pipeline=pipeline, topic="events", topic_id="old", topic_partitions=1, successor_id="id",
                closed_by="me@here", reason="moved",
            )
        )  # fmt: skip
        paths = [
            ledger.query(LandingFileRow).where(LandingFileRow.micro_batch_id == each).one().path for each in batches
        ]
    for batch, path in zip(batches, paths, strict=True):
        write(path, [0, 1, 2, 3, 4])
        note_fates(pipeline, batch, 5, 0)
    groups = kept_rows.landed_rows(pipeline)
    assert [(each.topic_ids, list(each.paths)) for each in groups] == [
        ({"events": "id"}, [paths[1]]),
        ({"events": "old"}, [paths[0]]),
    ]
    revised = kept_rows.revised_rows(pipeline, {intervals[0]: ["a"], intervals[1]: ["b"]})
    assert [(each.topic_ids["events"], list(each.paths)) for each in revised] == [("id", ["b"]), ("old", ["a"])]

    erasure = begin(pipeline, {at(1, "old")}, set())
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    assert begun.intervals == (intervals[0],)
    assert rewrite_files(load_pipeline("nest_cameras"), begun, lambda: None) == 1
    assert lake.exists(lake.uri(paths[1]))
    assert not lake.exists(lake.uri(paths[0]))
    assert erased_within(pipeline, [span(0, 10)]) == []
    assert erased_within(pipeline, [OffsetRange(TP, 0, 10, "old")]) == [at(1).coordinates]
    assert [unfinished.twins_of(erasure)[at(1).coordinates]] == [[Interval(DAY + HOUR, DAY + 2 * HOUR).label]]
    assert [len(intervals_with(pipeline, {at(1, each)})) for each in ("old", "id", "no such")] == [1, 1, 0]


def test_intervals_are_named_when_their_rows_are_older_than_the_column_that_was_searched(pipeline: str) -> None:
    declared = load_pipeline("nest_cameras")
    archive = replace(declared.archive, renamed={"device_id": ("camera_id",)})
    declared = replace(declared, name=pipeline, archive=archive, views=(), reports=(), declared_as="")
    for number, columns in enumerate((["name"], ["name"], ["camera_id"], ["device_id"])):
        attempt = made.begin_attempt(pipeline, made.hour(number))
        built = made.note_build(attempt, columns={pipeline: dict.fromkeys(columns, "STRING")})
        made.register(attempt, built)
    begin(pipeline, set(), set())
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    [told] = remaining_without_column(declared, begun)
    hours = f"from {format_time(made.hour(0).from_time)} to {format_time(made.hour(1).to_time)}"
    assert told.startswith(f"rows of 2 intervals {hours} that were built before the column device_id was declared")
    assert told.endswith("run these again from Kafka, then erase again")
    assert remaining_without_column(declared, replace(begun, columns=("name",)))[0].startswith("rows of 2 intervals")


def test_rows_of_a_replay_stay_where_they_are_delivered_when_the_record_there_before_is_erased(pipeline: str) -> None:
    """Of the old incarnation's record 1, and the new one's, which was in quarantine and lies in the third interval."""
    batches = [commit(pipeline, number, 0, 10, archived=5) for number in (0, 1)]
    intervals = [register(pipeline, number, *bounds) for number, bounds in enumerate([(0, 10), (0, 1), (10, 20)])]
    with session() as ledger:
        ledger.get_one(MicroBatchRange, (batches[0], "events", 0)).topic_id = "old"
        ledger.get_one(IntervalRange, (intervals[0], "events", 0)).topic_id = "old"
        ledger.add(replayed(pipeline, 1, batches[1], intervals[2]))
    erasure = begin(pipeline, {at(1, "old")}, set())
    delivered = Interval(DAY + 2 * HOUR, DAY + 3 * HOUR).label
    assert unfinished.twins_of(erasure) == {at(1).coordinates: [delivered]}


def test_row_of_a_replay_goes_whichever_replay_is_left_when_its_file_is_written_again(pipeline: str) -> None:
    """The replay of an erased record is deleted at once, so that its file alone does not show the incarnation."""
    assert in_file({at(1, "old")}, {}) == {at(1).coordinates}
    assert in_file({at(1, "old")}, {"events": "old"}) == {at(1).coordinates}
    assert in_file({at(1, "old")}, {"events": "id"}) == frozenset()


def test_second_erasure_waits_and_takes_each_record_once_when_a_first_one_runs(pipeline: str) -> None:
    note_fates(pipeline, commit(pipeline, 0, 0, 10, archived=10), 10, 0)
    erasure = begin(pipeline, {at(1)}, set())
    with pytest.raises(UsageError, match="unfinished"):
        begin(pipeline, {at(2)}, set())
    unfinished.finish(erasure, {})
    begin(pipeline, {at(1), at(2)}, set())
    assert counted(pipeline, span(0, 10)) == Fates(8, 0, 0, 2)


def test_erasure_is_refused_when_the_lease_was_lost(pipeline: str) -> None:
    commit(pipeline, 0, 0, 10, archived=10)
    lease = writers.acquire(pipeline)
    writers.release(lease)
    request = Request(pipeline, ["device_id"], "asked", "me@here", "00" * 16, [], False)
    with pytest.raises(AnotherWriter):
        intent.begin(lease, request, Found({at(1)}, set(), set(), 1), Keys(["cam-1"]))
    assert last_erasure(pipeline) == 0


def test_nothing_is_begun_when_the_disk_of_a_delta_table_has_no_hard_links(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    # It was declared, and is there.
    log = Path(lake.uri("delta", pipeline).removeprefix("file://")) / "_delta_log"
    log.mkdir(parents=True)
    wish = Wish(("cam-1",), ("device_id",), "asked", "me@here")
    with pytest.raises(UsageError, match=r"the disk of file:///.* has no hard links"):
        erase(replace(load_pipeline("nest_cameras"), name=pipeline), wish, print)
    assert last_erasure(pipeline) == 0
    assert list(log.iterdir()) == []


def test_replayed_record_leaves_the_delivering_interval_when_it_is_erased(pipeline: str) -> None:
    landed = commit(pipeline, 0, 0, 10, quarantined=2)
    note_fates(pipeline, landed, 0, 2)
    register(pipeline, 0, 0, 10)
    delivering = register(pipeline, 1, 10, 20)
    with session() as ledger:
        ledger.add_all(replayed(pipeline, offset, landed, delivering) for offset in (0, 1))
    erasure = begin(pipeline, {at(0)}, {at(0)})
    assert replayed_into(delivering).records == 1
    with session() as ledger:
        assert delivering in ledger.get_one(Erasure, erasure).intervals
    assert len(intervals_with(pipeline, {at(1)})) == 2
    assert counted(pipeline, span(0, 10)) == Fates(0, 0, 1, 1)


def test_replayed_record_leaves_the_quarantined_ones_when_only_its_landed_row_shows_the_key(pipeline: str) -> None:
    home = commit(pipeline, 0, 0, 10, archived=8, quarantined=2)
    note_fates(pipeline, home, 8, 2)
    interval = register(pipeline, 0, 0, 10)
    with session() as ledger:
        row = ledger.get_one(IntervalRange, (interval, "events", 0))
        row.archived, row.empty, row.quarantined, row.gaps = 8, 0, 2, 0
        ledger.add(replayed(pipeline, 9, home))
    begin(pipeline, {at(1), at(9)}, set())
    assert counted(pipeline, span(0, 10)) == Fates(7, 0, 1, 2)
    with session() as ledger:
        row = ledger.get_one(IntervalRange, (interval, "events", 0))
        assert (row.archived, row.quarantined, row.erased) == (7, 1, 2)


def test_rows_of_replayed_records_are_searched_when_quarantine_names_a_key(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record 7 was replayed and has rows, 8 had nothing to archive, 9 was not replayed."""
    batch = commit(pipeline, 0, 0, 10, quarantined=3)
    with session() as ledger:
        for offset, fate in ((6, "archived"), (7, "archived"), (8, "empty")):
            ledger.add(replayed(pipeline, offset, batch, fate=fate))
    asked: dict[str, Any] = {}

    def answer(job: SparkSubmission) -> int:
        asked_at, result_at = (job.arguments[job.arguments.index(each) + 1] for each in ("--asked", "--result"))
        asked.update(json.loads(Path(asked_at).read_text()))
        found = {"landing": [], "registered": [], "rows": 0, "rows_of_others": 2}
        Path(result_at).write_text(json.dumps(found))
        return 0

    monkeypatch.setattr("include.erasure.find.run_job", answer)
    monkeypatch.setattr("include.erasure.find.find_quarantined", lambda *_: {at(7), at(8), at(9)})
    found = search(replace(load_pipeline("nest_cameras"), name=pipeline), ["device_id"], Keys(["cam-1"]))
    assert asked["quarantined"] == [["events", "id", 0, 7]]
    assert found.rows_of_others == 2


def test_error_of_a_driver_keeps_no_key_when_it_named_one(pipeline: str) -> None:
    errors = {"a" * 32: "a rule failed on cam-1", "b" * 32: "a rule failed on cam-10", "c" * 32: ""}
    with session() as ledger:
        for number, error in errors.items():
            ledger.add(StreamLaunch(id=f"{number}{pipeline}", pipeline=pipeline, host="h", log="/log", error=error))
    commit(pipeline, 0, 0, 10, archived=10)
    erasure = begin(pipeline, {at(1)}, set())
    with session() as ledger:
        kept = ledger.scalars(
            select(StreamLaunch.error).where(StreamLaunch.pipeline == pipeline).order_by(StreamLaunch.id)
        )
        assert list(kept) == [FORGOTTEN, "a rule failed on cam-10", ""]
        assert ledger.get_one(Erasure, erasure).counts["ledger_entries"] == 1


def test_reason_of_a_waiting_output_keeps_no_key_when_it_named_one(pipeline: str) -> None:
    reasons = {"first": "the database refuses Key (device_id)=(cam-1)", "second": "Key (device_id)=(cam-10)"}
    with session() as ledger:
        for output, reason in reasons.items():
            ledger.add(RowOutput(pipeline=pipeline, output=output, waits_for=reason))
    begin(pipeline, {at(1)}, set())
    with session() as ledger:
        kept = ledger.scalars(
            select(RowOutput.waits_for).where(RowOutput.pipeline == pipeline).order_by(RowOutput.output)
        )
        assert list(kept) == [FORGOTTEN, "Key (device_id)=(cam-10)"]


def test_reasons_of_generations_losses_and_topics_keep_no_key_when_they_named_one(pipeline: str) -> None:
    why = "cam-1 asked for it"
    with session() as ledger:
        ledger.add(Generation(pipeline=pipeline, number=7, fingerprints={}, positions={}, started_by="me", reason=why))
        place = {"topic": "events", "topic_id": "id", "topic_partition": 0, "from_offset": 20, "until_offset": 21}
        ledger.add(Loss(pipeline=pipeline, **place, accepted_by="me", reason=why))
        closed = {"topic": "events", "topic_id": "old", "topic_partitions": 1, "successor_id": "id"}
        ledger.add(TopicIncarnation(pipeline=pipeline, **closed, closed_by="me", reason=why))
        ledger.get_one(Topic, (pipeline, "events")).left_for = why
    begin(pipeline, {at(1)}, set())
    with session() as ledger:
        for column in (Generation.reason, Loss.reason, TopicIncarnation.reason, Topic.left_for):
            owner = column.class_
            said = ledger.scalars(select(column).where(owner.pipeline == pipeline).order_by(column)).all()
            assert FORGOTTEN in said, owner
            assert why not in said, owner


def test_earlier_proofs_remain_when_their_expectations_observed_a_key(pipeline: str) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    attempt = made.begin_attempt(pipeline)
    observed = {"['cam-1', 'cam-7']": "values", "['cam-10']": "values", "2": "rows of cam-1"}
    built = made.note_build(attempt)
    made.register(attempt, built)
    build = attempts.load_attempt(attempt).build
    with session() as ledger:
        for number, (seen, words) in enumerate(observed.items()):
            ledger.add(
                ExpectationRow(
                    build_id=build, number=number, table_name=pipeline, expectation="distinct", column_name="device_id",
                    words=words, success=True, observed=seen, unexpected_count=0,
                )
            )  # fmt: skip
    erase_from(pipeline, attempt)
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    (named,) = (each for each in account(declared, begun)["remains"] if "expectation" in each)
    assert named.startswith("2 results of expectations in earlier proofs")
    of_reasons = replace(begun, counts={"reasons": 1})
    assert any(each.startswith("1 reason of an approval") for each in account(declared, of_reasons)["remains"])
    assert not any("expectation" in each for each in remaining(declared))
    assert any("results of Airflow's tasks and its questions" in each for each in remaining(declared))


def test_reports_of_other_intervals_keep_no_key_when_a_difference_of_theirs_named_it(pipeline: str) -> None:
    """The key is also the topic's name, which the code has to read: there it stays."""
    key, declared = made.TOPIC, replace(load_pipeline("nest_cameras"), name=pipeline)
    named = Difference(DifferenceClass.PENDING, "cameras", json.dumps({"device_id": key}), f"{key}: 3 instead of 2")
    own, other = (made.begin_attempt(pipeline, made.hour(each)) for each in range(2))
    for attempt in (own, other):
        made.register(attempt, made.note_build(attempt, differences=(named,)))
        spec = attempts.load_attempt(attempt)
        kept = spec.findings.as_json()
        verdict = {name: kept[name] for name in ("records", "reconciliation", "differences")}
        attempts.end_attempt(attempt, 0, {**verdict, "pipeline": pipeline, "ranges": [{"topic": key}]})
        page = lake.uri("reports", pipeline, f"{spec.pinned.interval.label}.html")
        lake.make_parents(page)
        lake.write_text(page, f"<p>{key}: 3 instead of 2")
    with session() as ledger:
        ledger.add(Topic(pipeline=pipeline, topic=key, topic_id="id", topic_partitions=2))
    begin(pipeline, {RecordKey(key, "id", 0, 1)}, set(), key)
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    assert begun.intervals == (attempts.load_attempt(own).pinned.id,)
    for attempt in (own, other):
        spec = attempts.load_attempt(attempt)
        assert spec.findings.build is not None
        assert {each.topic_partition.topic for each in spec.findings.build.ranges} == {key}
        evidence = FORGOTTEN if attempt == other else ""
        assert spec.findings.build.differences == (replace(named, where=FORGOTTEN, evidence=evidence),)
    with session() as ledger:
        verdict = ledger.get_one(IntervalRow, spec.pinned.id).verdict or {}
    assert [each["evidence"] for each in verdict["differences"]] == [FORGOTTEN]
    assert verdict["ranges"] == [{"topic": key}]

    steps.rewrite(declared, begun, lambda line: None, lambda: None)
    pages = [lake.uri("reports", pipeline, f"{made.hour(each).label}.html") for each in range(2)]
    assert not lake.exists(pages[0]), "it is built again"
    assert FORGOTTEN in lake.read_text(pages[1])
    assert "3 instead of 2" not in lake.read_text(pages[1])


@pytest.mark.parametrize("key", ["keys", "values", "34"])
def test_pages_are_drawn_when_their_chart_names_the_key(pipeline: str, key: str) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    own, other = (made.begin_attempt(pipeline, made.hour(each)) for each in range(2))
    for attempt in (own, other):
        made.register(attempt, made.note_build(attempt))
        attempts.end_attempt(attempt, 0, {"pipeline": pipeline})
    series = [{"name": f"{key} in front" if not n else f"cam-{n}", "values": [9 - n]} for n in range(7)]
    shown = {"title": "Views", "unit": "n", "x": ["2026-11-20 06:00"], "series": series}
    with session() as ledger:
        build = ledger.get_one(Build, attempts.load_attempt(other).build)
        report = {"sections": [], "chart": {**shown, "others": {"keys": 34, "values": [34]}}}
        build.findings = {**build.findings, "report": report}
        ledger.add(Topic(pipeline=pipeline, topic=made.TOPIC, topic_id="id", topic_partitions=2))
    begin(pipeline, {RecordKey(made.TOPIC, "id", 0, 1)}, set(), key)
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    steps.rewrite(declared, begun, lambda line: None, lambda: None)
    page = lake.read_text(lake.uri("reports", pipeline, f"{made.hour(1).label}.html"))
    assert FORGOTTEN in page
    assert "cam-1" in page
    assert "34 others" in page
    assert f"{key} in front" not in page


def test_page_is_written_again_when_its_interval_was_never_registered(pipeline: str) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    registered, failed = (made.begin_attempt(pipeline, made.hour(each)) for each in range(2))
    pages = [lake.uri("reports", pipeline, f"{made.hour(each).label}.html") for each in range(2)]
    for attempt, page in zip((registered, failed), pages, strict=True):
        built = made.note_build(attempt)
        if attempt == registered:
            made.register(attempt, built)
        spec = attempts.load_attempt(attempt)
        with session() as ledger:
            build = ledger.get_one(Build, spec.build)
            section = {"title": "Offline", "columns": ["name"], "rows": [["Nursery (Anna)"]]}
            build.findings = {**build.findings, "report": {"sections": [section]}}
        verdict = {"pipeline": pipeline, "records": {"in_ranges": 200, "archived": 190}}
        attempts.end_attempt(attempt, 2, {**verdict, "expectations": [{"examples": [{"name": "Nursery (Anna)"}]}]})
        lake.make_parents(page)
        lake.write_text(page, "Nursery (Anna)")
    with session() as ledger:
        ledger.add(Topic(pipeline=pipeline, topic=made.TOPIC, topic_id="id", topic_partitions=2))
    begin(pipeline, {RecordKey(made.TOPIC, "id", 0, offset) for offset in (1, 101)}, set())
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    assert len(begun.intervals) == 2
    for _ in ("first", "after a kill"):
        steps.rewrite(declared, begun, lambda line: None, lambda: None)
        assert not lake.exists(pages[0]), "it is built again"
        page = lake.read_text(pages[1])
        assert "Not published" in page
        assert "Nursery" not in page


def test_what_was_taken_out_of_the_declaration_is_erased_or_named_when_it_may_hold_a_key(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current generation has the state of a view that is not declared any more."""
    declared = replace(load_pipeline("nest_cameras"), name=pipeline, views=(), reports=(), outputs=())
    commit(pipeline, 0, 0, 10, archived=5)
    (path,) = landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED)
    write(path, [0, 1, 2])
    gone = {"speed topic": "stats-of-before", "table in serving": "kept"}
    with session() as ledger:
        begun = {"pipeline": pipeline, "number": 3, "started_by": "me@here", "reason": "first start"}
        started = {"archive": {}, "flags": {}, "stats": gone}
        ledger.add(Generation(**begun, fingerprints=started, positions={"archive": '{"events": {"0": 0}}'}))
        ledger.add(RowOutput(pipeline=pipeline, output="feed"))
    monkeypatch.setattr("include.erasure.run.search", lambda *_: Search(Found({at(1)}, set(), set(), 1), 0))
    told = erase(declared, Wish(("cam-1",), ("device_id",), "asked", "me@here"), lambda line: None)
    opened = generations.current(pipeline)
    assert opened is not None
    assert opened.number == 4
    for named in ("the topic stats-of-before", "that the view stats wrote", "the output feed", "topic of flags"):
        assert any(named in each for each in told["remains"]), named
    assert sum("another installation writes" in each for each in told["remains"]) == 2
    # Declared again, where the stream of another ledger has written the topics meanwhile.
    monkeypatch.setattr(written_topics, "owners_of", lambda *_: {"2026-11-20T05:00:00Z db:5432"})
    again = replace(load_pipeline("nest_cameras"), name=pipeline)
    with pytest.raises(UsageError, match="the stream of another ledger"):
        check_only_ledger(again, [])
    with session() as ledger:
        generations.open_in(ledger, pipeline, "me@here", "it takes the topics over")
    check_only_ledger(again, [])


def test_rows_of_others_in_the_same_messages_stay_when_nobody_asked_to_erase_them(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline, views=(), reports=())
    commit(pipeline, 0, 0, 10, archived=5)
    (path,) = landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED)
    write(path, [0, 1, 1, 1, 2])
    found = Search(Found({at(1)}, set(), set(), 1), rows_of_others=2)
    monkeypatch.setattr("include.erasure.run.search", lambda *_: found)
    wish = Wish(("cam-1",), ("device_id",), "asked", "me@here")
    with pytest.raises(UsageError, match="the same messages hold 2 rows of others") as refused:
        erase(declared, wish, lambda line: None)
    assert "--whole-records" in refused.value.remedy
    assert unfinished.unfinished(pipeline) is None
    assert landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED) == [path]
    # Somebody who has read this asks for it.
    assert erase(declared, replace(wish, whole_records=True), lambda line: None)["records"] == 1
    assert landing_files.files_covering(pipeline, [span(0, 10)], Fate.ARCHIVED) != [path]


def test_erasure_says_that_it_is_to_be_repeated_when_its_lease_ran_out_while_it_searched(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)

    def search_for_long(*_: Any) -> Search:
        with session() as ledger:
            ledger.execute(update(Writer).where(Writer.pipeline == pipeline).values(expires_at=DAY))
        return Search(Found({at(1)}, set(), set(), 1), 0)

    monkeypatch.setattr("include.erasure.run.search", search_for_long)
    with pytest.raises(AnotherWriter, match="while the keys were searched: nothing was changed") as lost:
        erase(declared, Wish(("cam-1",), ("device_id",), "asked", "me@here"), lambda line: None)
    assert lost.value.remedy == "repeat this command"
    assert unfinished.unfinished(pipeline) is None


def test_account_says_what_was_not_archived_when_it_searched_and_not_what_other_queries_lack(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 4 archives what waits in Kafka then, which the search has not seen."""
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    lags = [Lag(pipeline, query, TP.topic, TP.partition, 10, 15) for query in ("archive", "cameras")]
    monkeypatch.setattr("include.monitor.lag.lag_of", lambda _: lags)
    monkeypatch.setattr("include.erasure.run.search", lambda *_: Search(Found(set(), set(), set(), 0), 0))
    monkeypatch.setattr(steps, "build_views", lambda *_: lags.clear())
    told = erase(declared, Wish(("cam-1",), ("device_id",), "asked", "me@here"), lambda line: None)
    assert (lags, told["not_archived_yet"]) == ([], 5)


def test_erasure_is_refused_when_its_reason_names_a_key(pipeline: str) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    wish = Wish(("cam-1",), ("device_id",), "cam-1 asked for it", "me@here")
    for refused in (partial(erase, declared, wish, lambda line: None), partial(dry_run, declared, wish)):
        with pytest.raises(UsageError, match="the reason names a key"):
            refused()
    assert unfinished.erasures(pipeline) == []


def test_erasure_neither_begins_nor_goes_on_when_proofs_are_signed_and_no_key_is_set(pipeline: str) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    attempt = made.begin_attempt(pipeline)
    made.note_build(attempt)
    build = attempts.load_attempt(attempt).build
    with session() as ledger:
        # Its place is in no lake.
        ledger.query(Revision).where(Revision.attempt_id == attempt).delete()
        proof = {"path": f"proofs/{pipeline}/1.json", "sha256": "00" * 32, "signed_by": "00" * 32}
        ledger.add(ProofRow(pipeline=pipeline, build_id=build, tables=[declared.table], **proof))
    wish = Wish(("cam-1",), ("device_id",), "asked", "me@here")
    with pytest.raises(UsageError, match=r"no key is set to sign.*; nothing was changed"):
        erase(declared, wish, lambda line: None)
    assert unfinished.erasures(pipeline) == []
    begin(pipeline, set(), set())
    with pytest.raises(UsageError, match=r"no key is set to sign.*; the erasure is unfinished") as refused:
        resume(declared, lambda line: pytest.fail(line))
    assert refused.value.remedy == f"set TIDEMARK_PROOF_KEY, then: ./tidemark erase {pipeline} --resume"


def test_unfinished_erasure_is_not_taken_for_one_of_other_columns_when_the_keys_are_the_same(pipeline: str) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    erasure = begin(pipeline, set(), set())
    with pytest.raises(UsageError, match=f"erasure {erasure}, of the column device_id, is unfinished") as refused:
        erase(declared, Wish(("cam-1",), ("device_id", "name"), "asked", "me@here"), lambda line: None)
    assert "--resume" in refused.value.remedy
    assert unfinished.unfinished(pipeline) is not None


def test_dry_run_counts_nothing_and_says_that_an_erasure_is_unfinished_when_one_is(pipeline: str) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    erasure = begin(pipeline, set(), set())
    for key, said in ("cam-2", "of other keys, is unfinished"), ("cam-1", "of these keys is unfinished"):
        with pytest.raises(UsageError, match=f"erasure {erasure},? {said}") as refused:
            dry_run(declared, Wish((key,), ("device_id",), "asked", "me@here"))
        assert refused.value.remedy.endswith(f"./tidemark erase {pipeline} --resume")


def test_folder_of_a_killed_replay_goes_when_another_replay_runs_as_files_are_deleted(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline, views=(), reports=(), outputs=())
    left = lake.uri("landing", pipeline, "replay-0a1b2c3d", "fate=archived", "part.parquet")
    lake.make_parents(left)
    lake.write_bytes(left, b"cam-1")
    begin(pipeline, set(), set())
    waiting: list[str] = []

    def tell(line: str) -> None:
        if "waiting" in line:
            waiting.append(line)
            # Who waits for a replay keeps no housekeeping from its work.
            with holding_files(pipeline):
                pass

    with ExitStack() as replay, monkeypatch.context() as patched:
        patched.setattr(locks, "PATIENCE", locks.NO_WAIT)
        patched.setattr(steps, "build_intervals", lambda *_: replay.enter_context(ledger_quarantine.deciding(pipeline)))
        with pytest.raises(AnotherWriter, match=r"a replay or discard .*: the erasure is unfinished"):
            resume(declared, tell)
    assert len(waiting) == 1
    assert unfinished.unfinished(pipeline) is not None
    resume(declared, lambda line: None)
    assert not lake.exists(left)


def test_pipelines_that_keep_the_same_records_are_named_when_something_is_erased(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    written = declared.views[0].speed.topic
    same, following = (
        replace(load_pipeline("isp_hits"), name=name, source=KafkaTopics(subscribe=(topic,)))
        for name, topic in (("same_topic", "nest-logs"), ("following", written))
    )
    every = Declarations((load_pipeline("isp_hits"), declared, same, following), {})
    monkeypatch.setattr("include.erasure.check.declarations", lambda: every, raising=False)
    (named,) = (each for each in remaining(declared) if "same_topic" in each)
    assert "(same_topic, following)" in named


def test_references_that_name_a_key_are_told_when_the_command_is_repeated_after_a_kill(
    pipeline: str,
) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    kept = lake.uri("references", pipeline, "device_locations", "0a.csv")
    lake.make_parents(kept)
    lake.write_bytes(kept, b"device_id,zip_code\ncam-1,94103\n")
    erasure = begin(pipeline, set(), set())
    finished = erase(declared, Wish(("cam-1",), ("device_id",), "asked", "me@here"), lambda line: None)
    assert (finished["erasure"], finished["references"]) == (erasure, ["device_locations"])


def test_erasure_is_told_when_serving_is_away(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    view = replace(load_pipeline("nest_cameras").views[0], sinks=(JdbcTable(),))
    declared = replace(load_pipeline("nest_cameras"), name=pipeline, views=(view,), declared_as="")
    monkeypatch.setattr("include.serving.DATABASE", "nowhere")
    begin(pipeline, set(), set())
    finished = erase(declared, Wish(("cam-1",), ("device_id",), "asked", "me@here"), lambda line: None)
    (named,) = (each for each in finished["remains"] if "is not known" in each)
    assert named.startswith("registered values in PostgreSQL: whether they hold a key is not known: PostgreSQL at ")
    assert finished["references"] == []
    assert any("consumers of Airflow's asset events" in each for each in finished["remains"])


def test_refused_events_of_a_followed_stream_are_named_when_there_are_any(postgres: Home) -> None:
    declared = load_pipeline("wiki_changes")
    streams = settings().home / "streams"
    assert not any("Kafka refused" in each for each in remaining(declared))
    streams.mkdir(exist_ok=True)
    own, other = (streams / f"{name}-0a1b2c3d4e5f.refused.jsonl" for name in ("wiki_changes", "other_wiki_changes"))
    for file in (own, other):
        file.write_text("{}")
    (named,) = (each for each in remaining(declared) if "Kafka refused" in each)
    assert f"look through {own} " in named
    for file in (own, other):
        file.unlink()


def erase_from(pipeline: str, attempt: int) -> None:
    """Erase a record of the attempt's interval."""
    pinned = attempts.load_attempt(attempt).pinned
    with session() as ledger:
        ledger.add(Topic(pipeline=pipeline, topic=made.TOPIC, topic_id="id", topic_partitions=2))
    begin(pipeline, {RecordKey(made.TOPIC, "id", 0, pinned.ranges[0].from_offset)}, set())


def test_build_is_refused_when_records_were_erased_while_it_read(pipeline: str) -> None:
    attempt = made.begin_attempt(pipeline)
    known = last_erasure(pipeline)
    erase_from(pipeline, attempt)
    spec = attempts.load_attempt(attempt)
    with pytest.raises(AnotherWriter, match="erased"):
        builds.note_build(spec, [], BuildFindings((), {}, RecordCounts(), ReconciliationCounts()), known=known)
    assert attempts.load_attempt(attempt).build is None


def test_listed_rows_of_a_person_do_not_come_back_when_they_were_erased_while_a_build_read(pipeline: str) -> None:
    attempt = made.begin_attempt(pipeline)
    listed = ListedReport("Offline", (Listed('{"device_id": "cam-1"}', {"name": "porch"}),))
    made.note_build(attempt, listed=(listed,))
    known = last_erasure(pipeline)
    erase_from(pipeline, attempt)
    spec, findings = attempts.load_attempt(attempt), BuildFindings((), {}, RecordCounts(), ReconciliationCounts())
    with pytest.raises(AnotherWriter, match="an erasure of"):
        builds.note_build(spec, [], findings, known=known, listed=(listed,))
    with session() as ledger:
        assert ledger.scalars(select(ListedRow.key).where(ListedRow.interval_id == spec.pinned.id)).all() == []


def test_build_of_another_interval_is_refused_when_records_were_erased_while_it_read(pipeline: str) -> None:
    """Its windows hold rows of the erased interval, which the speed view counted and the archive did not show."""
    own, other = (made.begin_attempt(pipeline, made.hour(each)) for each in range(2))
    known = last_erasure(pipeline)
    erase_from(pipeline, own)
    named = Difference(DifferenceClass.UNEXPLAINED, "counts", json.dumps({"user": "cam-1"}), "1 instead of 2")
    findings = BuildFindings((), {}, RecordCounts(), ReconciliationCounts(unexplained=1), (named,))
    with pytest.raises(AnotherWriter, match=f"erasure of {pipeline} began while .* was built"):
        builds.note_build(attempts.load_attempt(other), [], findings, known=known)
    assert attempts.load_attempt(other).build is None
    made.note_build(other)
    assert attempts.load_attempt(other).build is not None


def test_verdict_keeps_no_key_when_an_erasure_begins_while_its_announcement_waits(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    monkeypatch.setattr("include.intervals.steps.load_pipeline", lambda name: declared)
    attempt = made.begin_attempt(pipeline)
    named = Difference(DifferenceClass.UNEXPLAINED, "cameras", json.dumps({"device_id": "cam-1"}), "3 instead of 2")
    made.note_build(attempt, differences=(named,), unexplained=1)
    pinned = attempts.load_attempt(attempt).pinned
    with ThreadPoolExecutor(1) as others:
        with locks.announcing(pipeline, pinned.interval):
            announced = others.submit(announce, attempt)
            wait_for("the announcement to wait", lambda: announced.done() or "being announced" in caplog.text)
            erase_from(pipeline, attempt)
        verdict = announced.result(30)
    assert "cam-1" not in json.dumps(verdict.as_json())
    with session() as ledger:
        assert "cam-1" not in json.dumps(ledger.get_one(IntervalRow, pinned.id).verdict)


def test_verdict_and_report_keep_no_key_when_an_erasure_begins_while_they_are_written(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interval is not registered, so the erasure does not build it again."""
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    monkeypatch.setattr("include.intervals.steps.load_pipeline", lambda name: declared)
    attempt = made.begin_attempt(pipeline)
    named = Difference(DifferenceClass.UNEXPLAINED, "cameras", json.dumps({"device_id": "cam-1"}), "3 instead of 2")
    made.note_build(attempt, differences=(named,), unexplained=1)
    pinned = attempts.load_attempt(attempt).pinned

    def write_late(uri: str, *content: Any) -> None:
        if not last_erasure(pipeline):
            erase_from(pipeline, attempt)
        write_report(uri, *content)

    monkeypatch.setattr("include.intervals.steps.write_report", write_late)
    verdict = announce(attempt)
    assert verdict.exit_code
    assert "cam-1" not in json.dumps(verdict.as_json())
    assert "cam-1" not in lake.read_text(report_uri(pipeline, pinned.interval.label))
    with session() as ledger:
        noted = json.dumps(ledger.get_one(IntervalRow, pinned.id).verdict)
        assert ledger.get_one(Attempt, attempt).exit_code == verdict.exit_code
    assert FORGOTTEN in noted
    assert "cam-1" not in noted


def test_report_keeps_no_key_when_its_announcement_is_killed_while_an_erasure_deletes_reports(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has read the ledger before the erasure, and nobody announces the interval again."""
    declared = replace(load_pipeline("nest_cameras"), name=pipeline)
    monkeypatch.setattr("include.intervals.steps.load_pipeline", lambda name: declared)
    attempt = made.begin_attempt(pipeline)
    named = Difference(DifferenceClass.UNEXPLAINED, "cameras", json.dumps({"device_id": "cam-1"}), "3 instead of 2")
    made.note_build(attempt, differences=(named,), unexplained=1)
    has_begun, has_deleted = Event(), Event()

    def write_late(uri: str, *content: Any) -> None:
        erase_from(pipeline, attempt)
        has_begun.set()
        wait_for("the erasure to delete, or to wait", lambda: has_deleted.is_set() or "being announced" in caplog.text)
        write_report(uri, *content)
        assert "cam-1" in lake.read_text(uri)
        raise Killed

    monkeypatch.setattr("include.intervals.steps.write_report", write_late)
    with ThreadPoolExecutor(1) as others:
        announced = others.submit(announce, attempt)
        assert has_begun.wait(30)
        begun = unfinished.unfinished(pipeline)
        assert begun is not None
        steps.rewrite(declared, begun, lambda line: None, lambda: None)
        has_deleted.set()
        with pytest.raises(Killed):
            announced.result(30)
    assert not lake.exists(report_uri(pipeline, made.hour().label))


def test_build_does_not_know_an_erasure_when_it_begins_after_the_views_were_asked_for(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The views that were asked for still counted its records."""
    declared, attempt = replace(load_pipeline("nest_cameras"), name=pipeline), made.begin_attempt(pipeline)

    def asked(name: str) -> None:
        erase_from(name, attempt)

    monkeypatch.setattr("include.erasure.views.unfinished.unfinished", asked)
    assert check_built(declared) < last_erasure(pipeline)


def test_interval_is_among_those_of_the_erasure_when_it_is_pinned_while_the_erasure_begins(pipeline: str) -> None:
    commit(pipeline, 0, 0, 10, archived=10)
    with ThreadPoolExecutor(1) as others:
        with session() as ledger:
            pins.lock_pinning(ledger, pipeline)
            pinned = pins.write(
                ledger, pipeline, Interval(DAY, DAY + HOUR), [span(0, 10)], {"events": "id"}, pinned_by="test"
            )
            begun = others.submit(begin, pipeline, {at(1)}, set())
            wait_for("the erasure", lambda: begun.done() or waiting_query())
        erasure = begun.result()
    with session() as ledger:
        assert ledger.get_one(Erasure, erasure).intervals == [pinned.id]


def erasing_a_record(attempt: int) -> Step:
    pipeline = attempts.load_attempt(attempt).pinned.pipeline
    return partial(erase_from, pipeline, attempt)


def noting_a_build(attempt: int) -> Step:
    return partial(made.note_build, attempt)


def noting(note: Callable[[attempts.AttemptSpec, Validation], object]) -> Callable[[int], Step]:
    def prepared(attempt: int) -> Step:
        spec = attempts.load_attempt(attempt)
        return partial(note, spec, Validation(False, spec.pinned.pipeline))

    return prepared


def noting_delta(attempt: int) -> Step:
    return partial(builds.note_delta, attempts.load_attempt(attempt), DeltaVersion("lake.view", 1))


def noting_iceberg(attempt: int) -> Step:
    return partial(attempts.note_iceberg, attempts.load_attempt(attempt).build or 0, ())


def beginning_a_registration(attempt: int) -> Step:
    spec = attempts.load_attempt(attempt)
    return partial(builds.begin_registration, spec, Validation(True, spec.pinned.pipeline), builds.Changes())


def finishing_a_registration(attempt: int) -> Step:
    spec = attempts.load_attempt(attempt)
    begun = builds.begin_registration(spec, Validation(True, spec.pinned.pipeline), builds.Changes())
    return partial(builds.finish_registration, begun)


def forgetting_names(attempt: int) -> Step:
    pinned = attempts.load_attempt(attempt).pinned
    begun = unfinished.Begun(1, pinned.pipeline, ("zip",), "r", "me", DAY, None, "00", (), {}, (pinned.id,), 1, None)
    return partial(named_partitions.forget_names, begun, pinned.pipeline, Names({"zip=zq7-10001"}))


def test_verdict_is_cleaned_and_kept_when_it_is_noted_while_names_are_removed(pipeline: str) -> None:
    attempt = made.begin_attempt(pipeline)
    interval = attempts.load_attempt(attempt).pinned.id

    def note(ledger: Session, word: str) -> None:
        for row in (ledger.get_one(Attempt, attempt), ledger.get_one(IntervalRow, interval)):
            row.verdict = {word: "all of zip=zq7-10001"}

    with session() as ledger:
        note(ledger, "earlier")
    assert "FOR" in waits_with(forgetting_names(attempt), lambda ledger: (note(ledger, "later"), ledger.flush()))
    with session() as ledger:
        kept = [ledger.get_one(Attempt, attempt).verdict, ledger.get_one(IntervalRow, interval).verdict]
    assert [list(each or ()) for each in kept] == [["later"]] * 2
    assert "zq7" not in str(kept)


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(noting_a_build, id="build"),
        pytest.param(noting(builds.hold), id="hold"),
        pytest.param(noting(builds.reject), id="reject"),
        pytest.param(noting(builds.note_replaced), id="older"),
        pytest.param(noting_delta, id="delta"),
        pytest.param(noting_iceberg, id="iceberg"),
        pytest.param(beginning_a_registration, id="begin"),
        pytest.param(finishing_a_registration, id="finish"),
        pytest.param(erasing_a_record, id="erasure"),
        pytest.param(forgetting_names, id="names"),
    ],
)
def test_step_waits_with_no_row_when_an_erasure_begins(pipeline: str, prepare: Callable[[int], Step]) -> None:
    attempt = made.begin_attempt(pipeline)
    made.note_build(attempt)
    step = prepare(attempt)
    interval = attempts.load_attempt(attempt).pinned.id
    with ThreadPoolExecutor(1) as others:
        with session() as ledger:
            lock_erasing(ledger, pipeline)
            begun = others.submit(step)
            wait_for("the step to wait or end", lambda: begun.done() or waiting_query(), 30, every=0.02)
            assert "pg_advisory_xact_lock" in waiting_query()
            # The erasure changes these rows: it must not wait for a step that waits for it.
            ledger.execute(text("SET LOCAL lock_timeout = '1ms'"))
            ledger.execute(select(IntervalRow).where(IntervalRow.id == interval).with_for_update())
            for of_interval in (
                IntervalRange.interval_id,
                Build.interval_id,
                Attempt.interval_id,
                Revision.interval_id,
            ):
                ledger.execute(select(of_interval).where(of_interval == interval).with_for_update())
        begun.result(30)


def test_registration_names_the_erasure_and_is_finished_later_when_that_takes_too_long_to_begin(pipeline: str) -> None:
    """The catalog is switched then: PostgreSQL is not away, and nothing is to be started."""
    attempt = made.begin_attempt(pipeline)
    built, spec = made.note_build(attempt), attempts.load_attempt(attempt)
    begun = builds.begin_registration(spec, Validation(True, pipeline), builds.Changes(points=(built,)))
    with session() as erasing, session() as ledger:
        lock_erasing(erasing, pipeline)
        ledger.execute(text("SET LOCAL lock_timeout = '10ms'"))
        with pytest.raises(AnotherWriter, match=f"an erasure of {pipeline} has been beginning, or removing names, for"):
            builds.finish(ledger, begun)
    builds.finish_registration(begun)
    assert builds.is_published(begun.build)


def test_build_is_registered_only_when_it_was_made_after_the_erasure(pipeline: str) -> None:
    attempt = made.begin_attempt(pipeline)
    built = made.note_build(attempt)
    erase_from(pipeline, attempt)
    with pytest.raises(AnotherWriter, match="erased"):
        made.register(attempt, built, Validation(True, pipeline))
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    assert len(unfinished.retire(begun)) == 1
    again = made.build_and_register(pipeline)
    assert unfinished.intervals_to_build(begun) == []
    assert unfinished.attempts_to_announce(begun) == [again]


NAMING = ExpectationResult(
    "cameras", "expect_set", "kind", "kind is a", False, '["cam-1"]', 1, severity="warn",
    examples=({"device_id": "cam-1"},),
)  # fmt: skip
"""What a checkpoint found in a row of the camera that is erased."""


def ask_about_build(pipeline: str) -> approvals.Question:
    """Build an attempt, which then waits for the person who is asked about it."""
    attempt = made.begin_attempt(pipeline)
    made.note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    asked = approvals.ask(spec.build, "suite-1", (NAMING,))
    builds.hold(spec, Validation(False, pipeline, (NAMING,), question=asked.id))
    return asked


def judged(attempt: int) -> str:
    """What the ledger holds of the judgement of the attempt's latest build."""
    with session() as ledger:
        build = ledger.scalars(select(Build).where(Build.attempt_id == attempt).order_by(Build.id.desc())).first()
        assert build is not None
        observed = ledger.scalars(select(ExpectationRow.observed).where(ExpectationRow.build_id == build.id)).all()
        return json.dumps([build.findings, ledger.get_one(Attempt, attempt).verdict, list(observed)])


@pytest.mark.parametrize("note", [builds.reject, builds.hold, builds.note_replaced])
def test_no_key_comes_back_when_an_erased_build_is_judged(
    pipeline: str, note: Callable[[attempts.AttemptSpec, Validation], None]
) -> None:
    attempt = made.begin_attempt(pipeline)
    made.note_build(attempt)
    spec = attempts.load_attempt(attempt)
    erase_from(pipeline, attempt)
    with pytest.raises(AnotherWriter, match="was built before records of it were erased") as refused:
        note(spec, Validation(False, pipeline, (NAMING,)))
    assert refused.value.remedy == "run the interval again"
    assert "cam-1" not in judged(attempt)


def test_nobody_is_asked_about_rows_of_a_person_when_they_were_erased_while_a_build_was_judged(pipeline: str) -> None:
    attempt = made.begin_attempt(pipeline)
    made.note_build(attempt)
    build = attempts.load_attempt(attempt).build
    assert build is not None
    erase_from(pipeline, attempt)
    with pytest.raises(AnotherWriter, match="was built before records of it were erased"):
        approvals.ask(build, "suite-1", (NAMING,))
    assert approvals.last_of_build(build) is None


def test_alert_about_a_question_is_over_when_the_erasure_that_discarded_its_build_has_ended(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.alerts.configured_channels", dict)
    declared = replace(load_pipeline("nest_cameras"), name=pipeline, views=(), reports=())
    asked = ask_about_build(pipeline)
    notify_asked(attempts.load_attempt(asked.attempt))
    assert len(open_alerts(f"approval/{pipeline}/")) == 1
    with session() as ledger:
        ledger.execute(update(Revision).where(Revision.build_id == asked.build).values(location=lake.uri("tables/x")))
    erase_from(pipeline, asked.attempt)
    resume(declared, lambda line: None)
    assert open_alerts(f"approval/{pipeline}/") == []


def test_refusal_brings_no_key_back_when_an_erasure_begins_while_a_person_refuses(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask_about_build(pipeline)
    attempt = asked.attempt
    assert "cam-1" in judged(attempt)
    load = attempts.load_attempt

    def load_early(number: int) -> attempts.AttemptSpec:
        loaded = load(number)
        monkeypatch.setattr(attempts, "load_attempt", load)
        erase_from(pipeline, attempt)
        return loaded

    monkeypatch.setattr(attempts, "load_attempt", load_early)
    monkeypatch.setattr(approving, "notify_decided", lambda _: None)
    monkeypatch.setattr(approving.steps, "announce", lambda _: None)
    approving.refuse(asked, by="me@here", reason="rows are missing")
    assert "cam-1" not in judged(attempt)
    findings = load(attempt).findings.validation
    assert findings is not None
    assert (findings.question, findings.decision["decision"]) == (asked.id, "refused")


def test_interval_stays_to_be_built_when_no_later_build_is_registered(pipeline: str) -> None:
    attempt = made.begin_attempt(pipeline)
    built = made.note_build(attempt)
    made.register(attempt, built)
    erase_from(pipeline, attempt)
    begun = unfinished.unfinished(pipeline)
    assert begun is not None
    assert [each.id for each in unfinished.intervals_to_build(begun)] == [attempts.load_attempt(attempt).pinned.id]
    made.build_and_register(pipeline)
    assert unfinished.intervals_to_build(begun) == []
    assert [each.location for each in unfinished.retire(begun)] == ["file:///nowhere"]
    with session() as ledger:
        # As revisions are of which an earlier version of the code did not note the build.
        ledger.execute(update(Revision).where(Revision.id == built.revision).values(build_id=None))
    assert [each.revision for each in unfinished.retire(begun)] == [built.revision]
