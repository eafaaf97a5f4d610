"""Outages that micro-batches note: the same wherever one batch ends and the next begins, and each told once."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from include import lake
from include.errors import UsageError
from include.ledger.archive import micro_batches
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.intervals import attempts
from include.ledger.streams import outages
from include.ledger.streams.outages import StateChange
from include.offsets import Fate, OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Listing, Pipeline
from spark_jobs.sinks.outages import find_changes
from tests.conftest import Home, settings_of
from tests.support.attempts import begin_attempt
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

START = datetime(2026, 11, 20, 5, tzinfo=UTC)
NEST = load_pipeline("nest_cameras")
TITLE = NEST.watched_reports[0].title
NUMBERS = count()

Row = tuple[str, int, bool | None]
"""A camera, its position in the message, and whether it is online."""
Told = tuple[str, tuple[int, int, int], tuple[int, int, int] | None]
"""A camera, where its outage begins and where it ends: topic partition, offset, element."""


@pytest.fixture(scope="module")
def ledger(new_home: Callable[..., Home]) -> Iterator[Home]:
    """A PostgreSQL, and a lake, that this process itself works with."""
    made = new_home()
    made.run("up", "postgres")
    with settings_of(made):
        yield made
    made.end()


@dataclass
class Stream:
    """A pipeline whose micro-batches are landed and committed as the archive query does."""

    pipeline: Pipeline = field(default_factory=lambda: replace(NEST, name=f"p{os.getpid()}_{next(NUMBERS)}"))
    batches: int = 0
    reached: dict[int, int] = field(default_factory=dict)
    device: str = "device_id"
    """What the column of a camera's id is called now."""
    notes_titles: bool = False
    """Whether micro-batches note the titles of what they watch alone, as earlier code did."""

    @property
    def watched_as(self) -> list[str]:
        """What micro-batches may note for the report."""
        return self.pipeline.watched_reports[0].watched_as(self.pipeline.archive.formerly)

    def watch(self, **changes: Any) -> None:
        """Declare the report otherwise."""
        (report,) = self.pipeline.watched_reports
        self.pipeline = replace(self.pipeline, reports=(replace(report, **changes),))

    def watched(self) -> list[tuple[int, int]]:
        """The offsets of topic partition 0 in which the stream looked for the declared report's outages."""
        whole = [OffsetRange(TopicPartition("nest-logs", 0), 0, self.reached[0], "id")]
        found = outages.watched_in(self.pipeline.name, TITLE, self.watched_as, whole)
        return [(each.from_offset, each.until_offset) for each in found.ranges]

    def rename(self, name: str, *before: str) -> None:
        """Declare the column by another name, which was called so before."""
        (report,) = self.pipeline.watched_reports
        archive, columns = self.pipeline.archive, (name, *report.columns[1:])
        self.pipeline = replace(
            self.pipeline,
            archive=replace(
                archive,
                columns=archive.columns.replace(f"{self.device} STRING", f"{name} STRING", 1),
                subject=name,
                rules=(),
                renamed={name: before},
            ),
            reports=(replace(report, columns=columns, key=(name,)),),
        )
        self.device = name

    def land(self, records: Sequence[tuple[int, Sequence[Row]]]) -> list[StateChange]:
        """Commit a micro-batch of records: the topic partition of each, and its rows."""
        begins, rows = dict(self.reached), {}
        for partition, cameras in records:
            offset = self.reached.setdefault(partition, 0)
            rows.setdefault(partition, []).extend(
                {
                    **dict.fromkeys(("name_long", "where_name", "structure_id"), f"{camera}'s"),
                    self.device: camera,
                    "is_online": is_online,
                    "last_is_online_change": START,
                    "kafka_topic": "nest-logs",
                    "kafka_partition": partition,
                    "kafka_offset": offset,
                    "kafka_element": element,
                    "kafka_timestamp": START + timedelta(seconds=offset),
                }
                for camera, element, is_online in cameras
            )
            self.reached[partition] += 1
        files = [self._write(partition, found) for partition, found in rows.items() if found]
        changes = find_changes(self.pipeline, files)
        ranges = [
            OffsetRange(TopicPartition("nest-logs", partition), begins.get(partition, 0), until)
            for partition, until in sorted(self.reached.items())
        ]
        self._commit(ranges, files, changes)
        return changes

    def _write(self, partition: int, rows: list[dict[str, Any]]) -> LandingFile:
        path = f"landing/{self.pipeline.name}/{self.batches}/part-{partition}.parquet"
        lake.make_parents(lake.uri(path))
        kinds = {"kafka_partition": pa.int32(), "kafka_element": pa.int32(), "is_online": pa.bool_()}
        table = pa.Table.from_pylist(rows)
        for name, kind in kinds.items():
            table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
        # Spark writes the rows of a file in no particular order.
        pq.write_table(table.take(list(reversed(range(table.num_rows)))), lake.uri(path).removeprefix("file://"))
        return LandingFile(Fate.ARCHIVED, path, len(rows), 1)

    def _commit(self, ranges: list[OffsetRange], files: list[LandingFile], changes: list[StateChange]) -> None:
        topics = {"nest-logs": TopicIdentity("nest-logs", "id", 2)}
        with held_lease(self.pipeline.name) as lease:
            name = self.pipeline.name
            watched = [TITLE if self.notes_titles else self.watched_as[0]]
            micro_batches.commit(
                lease,
                BatchCommit(
                    name, ARCHIVE, name, self.batches, ranges, topics, files=files, watched=watched, changes=changes
                ),
            )
        self.batches += 1

    def noted(self) -> list[Told]:
        whole = [OffsetRange(TopicPartition("nest-logs", p), 0, until, "id") for p, until in self.reached.items()]
        watched = outages.watched_in(self.pipeline.name, TITLE, self.watched_as, whole)
        assert sorted(watched.ranges) == sorted(r for r in whole if len(r))
        found = outages.outages_within(self.pipeline.name, TITLE, watched)
        return sorted(
            (each.key, *(p and (p.partition, p.offset, p.element) for p in (each.began, each.ended)))  # type: ignore[misc]
            for each in found
        )


def expected(records: Sequence[tuple[int, Sequence[Row]]]) -> list[Told]:
    """Return the outages in the records, read row by row."""
    offsets: dict[int, int] = {}
    down: dict[str, tuple[int, int, int]] = {}
    told: list[Told] = []
    for partition, cameras in records:
        offset = offsets.setdefault(partition, 0)
        offsets[partition] += 1
        for camera, element, is_online in sorted(cameras, key=lambda row: row[1]):
            place, key = (partition, offset, element), f'{{"device_id": "{camera}"}}'
            if is_online is False:
                down.setdefault(key, place)
            elif is_online and key in down:
                told.append((key, down.pop(key), place))
    return sorted([*told, *((key, place, None) for key, place in down.items())])


@st.composite
def batches(draw: st.DrawFn) -> list[list[tuple[int, list[Row]]]]:
    """Micro-batches of records of five cameras; each camera stays in its topic partition."""
    states = st.lists(st.sampled_from([True, False, None]), min_size=0, max_size=3)
    record = st.tuples(st.integers(0, 1), st.lists(st.tuples(st.integers(0, 4), states), max_size=2))
    made = []
    for batch in draw(st.lists(st.lists(record, min_size=1, max_size=8), min_size=1, max_size=4)):
        records = []
        for partition, cameras in batch:
            rows = [(f"cam-{2 * camera + partition}", state) for camera, found in cameras for state in found]
            records.append((partition, [(camera, element, state) for element, (camera, state) in enumerate(rows)]))
        made.append(records)
    return made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(landed=batches())
def test_outages_are_those_of_the_log_when_micro_batches_end_anywhere(ledger: Home, landed: list[Any]) -> None:
    stream = Stream()
    for records in landed:
        stream.land(records)
    assert stream.noted() == expected([record for records in landed for record in records])


def test_message_has_the_report_s_columns_and_the_record_s_time_when_a_row_reports_down(ledger: Home) -> None:
    stream = Stream()
    assert stream.land([(0, [("a", 0, True), ("b", 1, False)])])[0].row == {
        "device_id": "b",
        "name_long": "b's",
        "where_name": "b's",
        "structure_id": "b's",
        "last_is_online_change": "2026-11-20T05:00:00Z",
    }
    (change,) = stream.land([(0, [("a", 0, True)]), (0, [("b", 0, True)])])
    assert (change.is_up, change.key, change.at) == (True, '{"device_id": "b"}', START + timedelta(seconds=2))


def test_columns_of_the_report_are_read_only_when_a_state_changes(
    ledger: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, read = Stream(), []
    reading = pq.ParquetFile.read

    def noted(file: pq.ParquetFile, columns: list[str]) -> pa.Table:
        read.append("name_long" in columns)
        return reading(file, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read", noted)
    stream.land([(0, [("a", 0, False)])])
    assert read == [False, True]
    read.clear()
    stream.land([(0, [("a", 0, False), ("b", 1, True)])])
    assert read == [False]


@pytest.mark.parametrize(
    ("when", "shown"),
    [(1_763_615_107_000, "1763615107000000 ms"), (-62_200_000_000, "-62200000000000 ms"), (None, "")],
    ids=["milliseconds taken for seconds", "year -1", "null"],
)
@pytest.mark.parametrize("is_online", [True, False])
def test_outage_is_noted_when_a_column_holds_a_time_that_python_cannot(
    ledger: Home, when: int | None, shown: str, is_online: bool
) -> None:
    stream = Stream()
    rows = {
        "device_id": ["a", "b"],
        "is_online": [is_online, False],
        "last_is_online_change": pc.multiply(pa.array([when, 1_763_615_107], pa.int64()), 1_000_000),
        # The first is of a producer that counts microseconds.
        "kafka_timestamp": pa.array([1_763_615_107_000_000_000, 1_763_615_107_000_000]),
    }
    changes = find_changes(stream.pipeline, [in_file(stream, "nest-logs", rows)])
    told = [(each.key[-3], each.row["last_is_online_change"], each.at.year) for each in changes]
    assert told == [*([] if is_online else [("a", shown, 9999)]), ("b", "2025-11-20T05:05:07Z", 2025)]


def test_outage_is_noted_when_a_time_that_python_cannot_hold_is_nested(ledger: Home) -> None:
    stream = Stream()
    (report,) = stream.pipeline.watched_reports
    nested = (replace(report, columns=(*report.columns, "last_event")),)
    stream.pipeline = replace(stream.pipeline, reports=nested)
    far = pa.array([1_763_615_107_000_000_000], pa.timestamp("us", "UTC"))
    rows = {
        "device_id": ["a"],
        "is_online": [False],
        "last_event": pa.StructArray.from_arrays([far], ["start_time"]),
        **{name: pa.array([0]) for name in ("last_is_online_change", "kafka_timestamp")},
    }
    (change,) = find_changes(stream.pipeline, [in_file(stream, "nest-logs", rows)])
    assert change.row["last_event"] == "{'start_time': '1763615107000000 ms'}"


@pytest.mark.parametrize("was_down", [True, False])
def test_states_follow_the_names_of_their_topics_when_a_thing_reports_in_several(ledger: Home, was_down: bool) -> None:
    stream = Stream()
    stream.land([(0, [("a", 0, not was_down)])])
    times = {name: pa.array([0]) for name in ("last_is_online_change", "kafka_timestamp")}
    # The later topic's file comes first.
    states = {"b-logs": was_down, "a-logs": not was_down}
    files = [in_file(stream, topic, {"device_id": ["a"], "is_online": [up], **times}) for topic, up in states.items()]
    changes = find_changes(stream.pipeline, files)
    assert [(each.place.topic, each.is_up) for each in changes] == [("b-logs", was_down)]


def in_file(stream: Stream, topic: str, rows: dict[str, Any]) -> LandingFile:
    """A landing file with these columns of rows; times are in microseconds."""
    count = len(rows["device_id"])
    kinds = {"kafka_partition": pa.int32(), "kafka_element": pa.int32()}
    kinds |= dict.fromkeys(("last_is_online_change", "kafka_timestamp"), pa.timestamp("us", "UTC"))
    texts = {name: ["x"] * count for name in ("name_long", "where_name", "structure_id")}
    place = {"kafka_topic": [topic] * count, "kafka_partition": [0] * count, "kafka_element": [0] * count}
    table = pa.table({**texts, **place, "kafka_offset": list(range(count)), **rows})
    for name, kind in kinds.items():
        table = table.set_column(table.column_names.index(name), name, table[name].cast(kind))
    path = f"landing/{stream.pipeline.name}/{topic}.parquet"
    lake.make_parents(lake.uri(path))
    pq.write_table(table, lake.uri(path).removeprefix("file://"))
    return LandingFile(Fate.ARCHIVED, path, count, 1)


@pytest.mark.parametrize("begins", ["first name", "second name"])
def test_outage_ends_and_is_told_once_when_the_key_s_column_is_renamed_and_renamed_back(
    ledger: Home, begins: str
) -> None:
    stream = Stream()
    down, up = (0, [("a", 0, False)]), (0, [("a", 0, True)])
    if begins == "first name":
        stream.land([down])
        stream.rename("camera_id", "device_id")
    else:
        stream.rename("camera_id", "device_id")
        stream.land([down])
        stream.rename("device_id", "camera_id")
    assert stream.land([down]) == [], "still down"
    # In the micro-batch that ends it, another one begins and ends.
    found = stream.land([down, up, down, up, up])
    assert [each.is_up for each in found] == [True, False, True]
    assert [(began, ended) for _, began, ended in stream.noted()] == [((0, 0, 0), (0, 3, 0)), ((0, 4, 0), (0, 5, 0))]
    assert outages.open_keys(stream.pipeline.name, TITLE) == frozenset()
    # A reader of the topic finds the end by the key of the beginning.
    with outages.sending_new(stream.pipeline.name) as untold:
        assert [each.change.is_up for each in untold] == [False, True, False, True]
        assert len({each.change.key for each in untold if each.outage == untold[0].outage}) == 1


def test_interval_agrees_with_the_stream_when_the_key_s_column_is_renamed(ledger: Home, spark: Any) -> None:
    from spark_jobs.reconciliation.interval_run import IntervalRun
    from spark_jobs.reconciliation.outages import reconcile_outages

    stream = Stream(NEST)
    stream.land([(0, [("a", 0, False)])])
    stream.rename("camera_id", "device_id")
    stream.land([(0, [("a", 0, True)])])
    columns = "camera_id STRING, is_online BOOLEAN, kafka_topic STRING, kafka_partition INT, kafka_offset LONG"
    rows = [("a", bool(offset), "nest-logs", 0, offset, 0) for offset in (0, 1)]
    archived = spark.createDataFrame(rows, f"{columns}, kafka_element INT")
    run = IntervalRun(spark, stream.pipeline, attempts.load_attempt(begin_attempt(NEST.name)))
    found = reconcile_outages(run, stream.pipeline.watched_reports[0], archived)
    assert (found.differences, found.counts.matched) == ((), 2)


@pytest.mark.parametrize("change", [{"key": ("device_id", "name_long")}, {"up": "is_streaming"}])
def test_rows_are_left_out_when_the_stream_looked_for_other_outages_in_them(
    ledger: Home, change: dict[str, Any]
) -> None:
    stream = Stream()
    (report,) = stream.pipeline.watched_reports
    stream.watch(columns=("device_id", "name_long"))
    stream.land([(0, [("a", 0, True)]), (0, [("a", 0, True)])])
    assert stream.watched() == [(0, 2)]
    stream.watch(**change)
    assert stream.watched() == []
    stream._commit([OffsetRange(TopicPartition("nest-logs", 0), 2, 5)], [], [])
    stream.reached[0] = 5
    assert stream.watched() == [(2, 5)]
    stream.watch(key=report.key, up=report.up)
    assert stream.watched() == [(0, 2)]


def test_rows_are_compared_as_before_when_only_the_report_s_title_was_noted(ledger: Home) -> None:
    stream = Stream(notes_titles=True)
    stream.land([(0, [("a", 0, True)])])
    stream.notes_titles = False
    stream.land([(0, [("a", 0, True)])])
    assert stream.watched() == [(0, 2)]


def test_next_outage_begins_when_the_micro_batch_that_ends_the_last_one_has_more_rows(ledger: Home) -> None:
    stream = Stream()
    stream.land([(0, [("a", 0, False)])])
    stream.land([(0, [("a", 0, True)]), (0, [("a", 0, False)]), (0, [("a", 0, True)]), (0, [("a", 0, False)])])
    a = '{"device_id": "a"}'
    assert stream.noted() == [(a, (0, 0, 0), (0, 1, 0)), (a, (0, 2, 0), (0, 3, 0)), (a, (0, 4, 0), None)]


def test_each_change_is_told_once_and_again_when_telling_failed(ledger: Home) -> None:
    stream = Stream()
    name = stream.pipeline.name

    def told() -> list[tuple[str, bool]]:
        with outages.sending_new(name) as untold:
            return [(each.change.key[-3], each.change.is_up) for each in untold]

    stream.land([(0, [("a", 0, False)]), (0, [("b", 0, False)]), (0, [("a", 0, True)])])
    with pytest.raises(ZeroDivisionError), outages.sending_new(name) as untold:
        assert 1 / (len(untold) - 3), "the broker is away"
    with outages.sending_new(name) as untold:
        assert len(untold) == 3
        assert told() == [], "another process tells what this one is telling"
    assert told() == []
    stream.land([(0, [("b", 0, False)]), (0, [("b", 0, True)]), (0, [("a", 0, False)])])
    # In the order of the outages: b was the second one.
    assert told() == [("b", True), ("a", False)]
    assert told() == []


def test_nothing_of_a_micro_batch_is_noted_when_it_is_not_committed(ledger: Home) -> None:
    stream = Stream()
    stream.land([(0, [("a", 0, True)])])
    behind = replace(stream, reached={0: 0})
    with pytest.raises(Exception, match="the last commit ended at 1"):
        behind.land([(0, [("a", 0, False)])])
    assert outages.open_keys(stream.pipeline.name, TITLE) == frozenset()


def test_outage_has_one_row_when_several_drivers_write_it(ledger: Home) -> None:
    stream = Stream()
    stream.land([(0, [("a", 0, False)])])
    with psycopg2.connect(ledger.database) as connection, connection.cursor() as cursor:
        copy = "INSERT INTO outages SELECT (jsonb_populate_record(o, '{\"id\": 99999999}')).* FROM outages o"
        with pytest.raises(psycopg2.errors.UniqueViolation):
            cursor.execute(f"{copy} WHERE pipeline = %s", [stream.pipeline.name])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"notify": ""}, "for nobody"),
        ({"up": "name_long"}, "cannot watch 'name_long'"),
        ({"up": "nothing"}, "cannot watch 'nothing'"),
        ({"columns": ("device_id", "nothing")}, "cannot watch 'is_online'"),
        ({"columns": ("device_id", "is_online"), "key": ("is_online",)}, "cannot watch 'is_online'"),
    ],
)
def test_watched_report_is_refused_when_rows_cannot_tell(change: dict[str, Any], words: str) -> None:
    report: Listing = NEST.watched_reports[0]
    with pytest.raises(UsageError, match=words):
        replace(NEST, reports=(replace(report, **change),))


def test_outage_begins_and_ends_when_its_key_is_longer_than_an_index_takes(ledger: Home) -> None:
    stream, cameras = Stream(), [secrets.token_hex(4_000) for _ in range(2)]
    begun = stream.land([(0, [(cameras[0], 0, False), (cameras[1], 1, False)])])
    assert [change.row["device_id"] for change in begun] == cameras
    (ended,) = stream.land([(0, [(cameras[1], 0, True)])])
    assert (ended.is_up, ended.key) == (True, begun[1].key)
    assert [end for *_, end in stream.noted()].count(None) == 1
