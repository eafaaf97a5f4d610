"""One answer from both layers: real ledger, real PostgreSQL, the stream and the registrations played without Spark."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.doctor.served_views import check_served_views
from include.erasure.check import remaining
from include.errors import LockHeld, ServiceUnreachable, UsageError
from include.ledger.completeness.tables import note_published
from include.ledger.database import session
from include.ledger.models import (
    Attempt,
    Build,
    IntervalRow,
    MicroBatchRange,
    Position,
    Revision,
    Topic,
)
from include.ledger.streams import generations
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Console, JdbcTable, Pipeline, Sink
from include.serving import transaction
from include.serving.answers import Question, ask
from include.serving.follow import follow_ledger
from include.serving.live_rows import check_written_live_tables, merge
from include.serving.relations import ensure
from include.serving.shape import shape_of
from include.settings import settings
from tests.conftest import REPOSITORY, Home, SetSettings
from tests.support.attempts import note_begin
from tests.support.committed import add_batch, add_interval
from tests.support.served import asked

pytestmark = pytest.mark.services

DAY = datetime(2026, 11, 18, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)

Key = tuple[str | None, datetime]
"""A zip code and the start of a window."""


@dataclass
class Row:
    """A record; its offset is its index in the list."""

    zip: str | None
    at: datetime
    arrived: datetime


@dataclass
class World:
    """A topic, a stream that counts it, and intervals that are registered."""

    pipeline: Pipeline
    hours: int = 1
    """Length of a window."""
    rows: list[Row] = field(default_factory=list)
    read: int = 0
    """Offset below which the stream has counted."""
    watermark: datetime = DAY - timedelta(days=1)
    speed: Counter[Key] = field(default_factory=Counter)
    version: int = 0
    intervals: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By hour: offsets."""
    revisions: Counter[int] = field(default_factory=Counter)
    batch: dict[int, Counter[Key]] = field(default_factory=dict)
    """What is registered, by hour."""
    served: Counter[Key] = field(default_factory=Counter)
    """What was registered when PostgreSQL followed last."""

    @property
    def view(self) -> AdditiveView:
        return self.pipeline.views[0]

    @property
    def table(self) -> str:
        return self.pipeline.view_table(self.view)

    def window(self, at: datetime) -> datetime:
        hours = int((at - DAY) / HOUR) // self.hours * self.hours
        return DAY + hours * HOUR

    def produce(self, zip_code: str | None, at: datetime, arrived: datetime) -> None:
        self.rows.append(Row(zip_code, at, arrived))

    def stream(self, until: int | None = None, *, killed: bool = False) -> None:
        """Run a micro-batch up to an offset: rows of windows that the watermark has closed are dropped.

        If it is killed before it is in the ledger, it is run again.
        """
        until = len(self.rows) if until is None else min(until, len(self.rows))
        changed: set[Key] = set()
        new = self.rows[self.read : until]
        for row in new:
            start = self.window(row.at)
            if start + self.hours * HOUR > self.watermark:
                self.speed[(row.zip, start)] += 1
                changed.add((row.zip, start))
        values = [
            (zip_code, start, start + self.hours * HOUR, self.speed[(zip_code, start)]) for zip_code, start in changed
        ]
        if values:
            merge(shape_of(self.pipeline, self.view), values, self.version)
        self.watermark = max([self.watermark, *(row.at - HOUR for row in new)])
        if killed:
            self.follow()
            merge(shape_of(self.pipeline, self.view), values, self.version)
        self._commit(until, len(values))
        self.read, self.version = until, self.version + 1

    def _commit(self, until: int, keys: int) -> None:
        name, view = self.pipeline.name, self.view.name
        with session() as ledger:
            read = OffsetRange(TopicPartition(name, 0), self.read, until)
            batch = add_batch(ledger, name, self.version, read, query=view, rows=keys, committed_at=DAY)
            place = {"topic": name, "topic_partition": 0}
            ledger.merge(Position(pipeline=name, query=view, next_offset=until, micro_batch_id=batch, **place))

    def build(self, hour: int, factor: int = 1) -> Counter[Key]:
        """Pin the hour by arrival if it is not pinned, and count it; `factor` multiplies counts, like other code."""
        if hour not in self.intervals:
            begin = self.intervals[hour - 1][1] if hour else 0
            end = DAY + (hour + 1) * HOUR
            until = next((n for n, row in enumerate(self.rows) if n >= begin and row.arrived >= end), len(self.rows))
            self.intervals[hour] = (begin, until)
            self._pin(hour)
        counted: Counter[Key] = Counter()
        for row in self.rows[slice(*self.intervals[hour])] if factor else ():
            counted[(row.zip, self.window(row.at))] += factor
        return counted

    def _pin(self, hour: int) -> None:
        name = self.pipeline.name
        read = OffsetRange(TopicPartition(name, 0), *self.intervals[hour])
        with session() as ledger:
            add_interval(ledger, name, DAY + hour * HOUR, read, "pinned")

    def register(self, hour: int, factor: int = 1, *, follow: bool = True) -> None:
        """Register a revision of the hour, in place of the one before."""
        counted = self.build(hour, factor)
        self.revisions[hour] += 1
        name, table = self.pipeline.name, self.table
        partition, revision = f"interval={hour:03}", f"r-{self.revisions[hour]}"
        location = lake.uri("tables", table, partition, revision)
        files = write(location, self.view, self.hours, counted) if counted else {}
        with session() as ledger:
            interval = ledger.query(IntervalRow).filter_by(pipeline=name, from_time=DAY + hour * HOUR).one()
            interval.state = "registered"
            for before in ledger.query(Revision).filter_by(table_name=table, table_partition=partition).all():
                before.state = "superseded"
            if counted:
                ledger.add(
                    Revision(
                        id=revision,
                        table_name=table,
                        table_partition=partition,
                        interval_id=interval.id,
                        attempt_id=attempt_of(interval.id),
                        location=location,
                        rows=len(counted),
                        content_hash=revision,
                        code_version="1",
                        state="registered",
                        registered_at=DAY,
                        files=files,
                    )
                )
                note_begin(ledger, name, table, interval.from_time)
        self.batch[hour] = counted
        if follow:
            self.follow()

    def follow(self) -> None:
        follow_ledger(self.pipeline)
        self.served = self.proved()

    def proved(self) -> Counter[Key]:
        total: Counter[Key] = Counter()
        for counted in self.batch.values():
            total.update(counted)
        return total

    def truth(self) -> Counter[Key]:
        return Counter((row.zip, self.window(row.at)) for row in self.rows)

    def answers(self) -> dict[Key, tuple[int, str]]:
        rows = asked(f"SELECT zip_code, window_start, count, state FROM live.{self.table}")
        found = {(row[0], row[1]): (row[2], row[3]) for row in rows}
        assert len(found) == len(rows), "a key is told twice"
        return found


def write(location: str, view: AdditiveView, hours: int, counted: Counter[Key]) -> dict[str, Any]:
    file = Path(lake.filesystem(location)[1]) / "part-00000.zstd.parquet"
    file.parent.mkdir(parents=True)
    moment = pa.timestamp("us", "UTC")
    starts = [start for _, start in counted]
    window = pa.StructArray.from_arrays(
        [pa.array(starts, moment), pa.array([start + hours * HOUR for start in starts], moment)], ["start", "end"]
    )
    columns = {"zip_code": pa.array([key for key, _ in counted], pa.string()), "window": window}
    for name in view.measures:
        # Another measure than the count is ten for each row.
        columns[name] = pa.array([n if name == "count" else 10 * n for n in counted.values()], pa.int64())
    pq.write_table(pa.table(columns), file)
    return {file.name: {"rows": len(counted), "bytes": file.stat().st_size}}


def attempt_of(interval: int) -> int:
    with session() as ledger:
        row = Attempt(interval_id=interval, run_by="test", code_version="1", source="kafka", verdict={})
        ledger.add(row)
        ledger.flush()
        return row.id


def world_of(name: str, *sinks: Sink) -> World:
    declared = load_pipeline("nest_cameras")
    view = replace(declared.views[0], sinks=sinks or (JdbcTable(),))
    return World(replace(declared, name=name, views=(view,), references={}, reports=(), declared_as=""))


@pytest.fixture
def world(postgres: Home, request: pytest.FixtureRequest) -> World:
    return world_of(f"t{zlib.crc32(request.node.name.encode())}")


def test_window_is_live_then_proved_when_intervals_cover_it_and_both_when_they_cut_it(world: World) -> None:
    world.hours = 2
    world.produce("1", DAY, DAY)
    world.produce("1", DAY + HOUR, DAY + HOUR)
    world.stream()
    assert world.answers() == {("1", DAY): (2, "live")}
    world.register(0)
    (row,) = asked(f"SELECT count, state, proved_count, live_count, intervals, version FROM live.{world.table}")
    assert row == (2, "both", 1, 2, 1, 0)
    world.register(1)
    assert world.answers() == {("1", DAY): (2, "proved")}


def test_other_measures_are_served_when_the_first_one_is_a_null_sum(postgres: Home) -> None:
    pipeline = world_of("t_null_sums").pipeline
    declared = pipeline.views[0]
    view = replace(declared, measures=("weight", "count"), columns=f"{declared.columns}, weight BIGINT")
    shape = shape_of(pipeline, view)
    merge(shape, [("1", DAY, DAY + HOUR, None, 3), ("2", DAY, DAY + HOUR, 5, 3)], 0)
    found = asked(f"SELECT zip_code, weight, count, state FROM live.{shape.table} ORDER BY zip_code")
    assert found == [("1", None, 3, "live"), ("2", 5, 3, "live")]
    told = ask(shape, Question("zip_code", None, HOUR, 10)).rows
    assert [(each["zip_code"], each["weight"]) for each in told] == [("2", 5), ("1", None)]


def test_no_row_counts_twice_when_the_key_has_a_column_more_than_registered_values(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("2", DAY, DAY)
    world.stream()
    world.register(0)
    columns = "zip_code STRING, kind STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT"
    note_columns(world, 0, "zip_code", "window", "count")
    by_kind = replace(world.view, key=("zip_code", "kind", "window"), columns=columns)
    later = replace(world.pipeline, views=(by_kind,))
    values = [(zip_code, kind, DAY, DAY + HOUR, 1) for zip_code, kind in (("1", "in"), ("2", "out"))]
    merge(shape_of(later, by_kind), values, 100, replace=True)
    for _ in range(2):
        follow_ledger(later)
        found = asked(f"SELECT zip_code, kind, count, state FROM live.{world.table} ORDER BY zip_code, kind")
        assert found == [("1", "in", 1, "live"), ("2", "out", 1, "live")]
        assert list(check_served_views(later)) == []
    note_columns(world, 0, "zip_code", "kind", "window", "count")
    assert len(follow_ledger(later)) == 1


def declare_people(world: World) -> None:
    """Go on with later code, which declares one measure more."""
    view = replace(world.view, measures=("count", "people"), columns=f"{world.view.columns}, people BIGINT")
    world.pipeline = replace(world.pipeline, views=(view,))


def begin_generation(world: World) -> None:
    """Count what was archived before by the present declaration."""
    values = [(key, at, at + world.hours * HOUR, n, 10 * n) for (key, at), n in world.speed.items()]
    merge(shape_of(world.pipeline, world.view), values, world.version, replace=True)
    world.version += 1


def register_with(world: World, hour: int, *measures: str) -> None:
    world.register(hour, follow=False)
    note_columns(world, hour, "zip_code", "window", *measures)
    world.follow()


def people(world: World) -> list[tuple[Any, ...]]:
    return asked(f"SELECT window_start, count, people, state FROM live.{world.table} ORDER BY 1")


def test_window_waits_when_some_of_its_registered_rows_are_older_than_a_measure(world: World) -> None:
    world.hours = 2
    for hour in (0, 1, 2, 3):
        world.produce("1", DAY + hour * HOUR, DAY + hour * HOUR)
    world.stream()
    register_with(world, 0, "count")
    declare_people(world)
    begin_generation(world)
    register_with(world, 1, "count", "people")
    assert people(world) == [(DAY, 2, 20, "both"), (DAY + 2 * HOUR, 2, 20, "live")]
    # Windows with rows of new intervals alone are proved, and all are once the older interval is run again.
    for hour in (2, 3):
        register_with(world, hour, "count", "people")
    assert people(world) == [(DAY, 2, 20, "both"), (DAY + 2 * HOUR, 2, 20, "proved")]
    register_with(world, 0, "count", "people")
    assert people(world) == [(DAY, 2, 20, "proved"), (DAY + 2 * HOUR, 2, 20, "proved")]


def test_proved_window_waits_again_when_late_rows_with_a_new_measure_are_registered(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("1", DAY, DAY + HOUR)
    world.stream(1)
    register_with(world, 0, "count")
    assert world.answers() == {("1", DAY): (1, "proved")}
    former = world.pipeline
    declare_people(world)
    world.follow()
    assert people(world) == [(DAY, 1, None, "proved")]
    later, world.pipeline = world.pipeline, former
    world.stream()
    world.pipeline = later
    register_with(world, 1, "count", "people")
    # The stream's table has the measure from its next generation on.
    assert people(world) == [(DAY, 2, None, "both")]
    register_with(world, 0, "count", "people")
    assert people(world) == [(DAY, 2, 20, "proved")]


def note_columns(world: World, hour: int, *columns: str) -> None:
    """Note with which columns the registered values of an hour were built."""
    with session() as ledger:
        interval = ledger.query(IntervalRow).filter_by(pipeline=world.pipeline.name, from_time=DAY + hour * HOUR).one()
        kept = ledger.query(Revision).filter_by(interval_id=interval.id, state="registered").one()
        of_table = {world.table: dict.fromkeys(columns, "string")}
        build = Build(attempt_id=kept.attempt_id, interval_id=interval.id, findings={}, columns=of_table)
        ledger.add(build)
        ledger.flush()
        kept.build_id = build.id


def test_window_waits_when_only_the_stream_has_one_of_its_rows(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("1", DAY, DAY + HOUR)
    world.stream()
    world.register(0)
    assert world.answers() == {("1", DAY): (2, "both")}
    world.register(1)
    assert world.answers() == {("1", DAY): (2, "proved")}


def test_row_is_served_until_its_interval_is_registered_when_its_topic_was_recreated(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.produce("1", DAY, DAY + HOUR)
    world.stream()
    with session() as ledger:
        # The second row is the first one of another topic of the same name.
        ledger.add(Topic(pipeline=world.pipeline.name, topic=world.pipeline.name, topic_id="newer", topic_partitions=1))
        read = ledger.query(MicroBatchRange).filter_by(topic=world.pipeline.name, from_offset=1).one()
        read.topic_id, read.from_offset, read.until_offset = "newer", 0, 1
    world.register(0)
    assert world.answers() == {("1", DAY): (2, "both")}


def test_row_is_in_the_answer_from_its_interval_on_when_the_watermark_dropped_it(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("2", DAY + 3 * HOUR, DAY + HOUR)
    world.stream()
    world.produce("1", DAY, DAY + HOUR)
    world.stream()
    world.register(0)
    assert world.answers()[("1", DAY)] == (1, "proved")
    world.register(1)
    assert world.answers()[("1", DAY)] == (2, "proved")


def publish(world: World, hour: int, *tables: str) -> None:
    """Note a published build of the hour by code that declares these tables."""
    with session() as ledger:
        interval = ledger.query(IntervalRow).filter_by(pipeline=world.pipeline.name, from_time=DAY + hour * HOUR).one()
        interval.state = "registered"
        columns = {table: {"device_id": "string"} for table in tables}
        attempt = attempt_of(interval.id)
        build = Build(attempt_id=attempt, interval_id=interval.id, findings={}, columns=columns)
        ledger.add(build)
        ledger.flush()
        note_published(ledger, build, ())


def test_keys_of_hours_before_the_view_was_declared_stay_when_an_older_hour_is_built_again(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("2", DAY + HOUR, DAY + HOUR)
    world.produce("3", DAY + HOUR, DAY + 2 * HOUR)
    world.stream()
    archive = world.pipeline.table
    for hour in (0, 1):
        world.build(hour)
        publish(world, hour, archive)
    world.register(2, follow=False)
    publish(world, 2, archive, world.table)
    world.follow()
    before = world.answers()
    assert set(before) == {("1", DAY), ("2", DAY + HOUR), ("3", DAY + HOUR)}
    world.register(0, follow=False)
    publish(world, 0, archive, world.table)
    world.follow()
    assert world.answers() == {**before, ("1", DAY): (1, "proved")}
    world.register(1, follow=False)
    publish(world, 1, archive, world.table)
    world.follow()
    assert {state for _, state in world.answers().values()} == {"proved"}


def test_proved_window_is_corrected_when_a_revision_counts_less(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("2", DAY, DAY)
    world.stream()
    world.register(0, factor=3)
    assert world.answers() == {("1", DAY): (3, "proved"), ("2", DAY): (3, "proved")}
    world.register(0, factor=2)
    assert world.answers() == {("1", DAY): (2, "proved"), ("2", DAY): (2, "proved")}
    world.register(0, factor=0)
    assert world.answers() == {}


def test_smaller_value_is_served_when_everything_that_the_stream_read_is_registered(
    world: World,
) -> None:
    world.produce("1", DAY, DAY)
    world.produce("1", DAY, DAY)
    world.stream(1)
    world.stream(2)
    world.rows[1].zip = "other code sees this"
    world.register(0)
    assert world.answers()[("1", DAY)] == (1, "proved")


def test_next_publication_serves_it_when_a_kill_stopped_the_one_before(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("1", DAY + HOUR, DAY + HOUR)
    world.stream()
    world.register(0, follow=False)
    assert world.answers()[("1", DAY)] == (1, "live")
    world.register(1)
    assert {state for _, state in world.answers().values()} == {"proved"}
    assert follow_ledger(world.pipeline) == []


def test_rows_and_proved_windows_stay_when_an_interval_is_pinned_again(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    with session() as ledger:
        ledger.query(IntervalRow).filter_by(pipeline=world.pipeline.name).one().state = "pinned"
    world.follow()
    assert world.answers() == {("1", DAY): (1, "proved")}


def test_hours_cover_nothing_when_the_view_was_declared_later(world: World) -> None:
    world.hours = 2
    world.build(0)
    with session() as ledger:
        ledger.query(IntervalRow).filter_by(pipeline=world.pipeline.name).one().state = "registered"
    world.produce("1", DAY + HOUR, DAY + HOUR)
    world.stream()
    world.register(1)
    assert world.answers() == {("1", DAY): (1, "both")}


def test_nothing_is_changed_and_files_are_named_when_they_hold_other_rows_than_were_built(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0, follow=False)
    with session() as ledger:
        ledger.query(Revision).filter_by(table_name=world.table).one().rows = 2
    (line,) = follow_ledger(world.pipeline)
    assert re.search("live.* is left as it is: .* has 1 rows, 2 when it was built; ./tidemark doctor --deep$", line)
    assert world.answers() == {("1", DAY): (1, "live")}


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "is missing"), (b"PAR1 and no more", "cannot be read, it is damaged"), (b"", "cannot be read")],
    ids=["missing", "damaged", "empty"],
)
def test_nothing_is_changed_and_the_file_is_named_when_it_cannot_be_read(
    world: World, content: bytes | None, why: str
) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0, follow=False)
    location = lake.uri("tables", world.table, "interval=000", "r-1", "part-00000.zstd.parquet")
    file = Path(lake.filesystem(location)[1])
    file.unlink() if content is None else file.write_bytes(content)
    (line,) = follow_ledger(world.pipeline)
    assert re.search(f"live.* is left as it is: .*part-00000.zstd.parquet {why}.*; ./tidemark doctor --deep$", line)
    assert world.answers() == {("1", DAY): (1, "live")}


def test_erasure_names_what_is_still_served_when_the_revision_in_its_place_cannot_be_read(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    assert not any("holds other registered values" in each for each in remaining(world.pipeline))
    world.register(0, factor=2, follow=False)
    location = lake.uri("tables", world.table, "interval=000", "r-2", "part-00000.zstd.parquet")
    Path(lake.filesystem(location)[1]).unlink()
    assert len(follow_ledger(world.pipeline)) == 1
    (told,) = (each for each in remaining(world.pipeline) if "holds other registered values" in each)
    assert "./tidemark doctor --deep, run the intervals again that it names" in told


@pytest.mark.parametrize("schemas", ["live", "proved", "proved, live"])
def test_doctor_makes_served_views_again_when_their_schemas_were_dropped(world: World, schemas: str) -> None:
    world.produce("1", DAY, DAY)
    world.produce("2", DAY + HOUR, DAY + HOUR)
    world.stream()
    asked(f"DROP SCHEMA {schemas} CASCADE")
    (found,) = check_served_views(world.pipeline)
    assert (found.repair, found.table) == ("serve what is registered", world.table)
    follow_ledger(world.pipeline, counted=True)
    assert list(check_served_views(world.pipeline)) == []
    before = {("1", DAY): (1, "live"), ("2", DAY + HOUR): (1, "live")}
    assert world.answers() == before
    world.register(0)
    asked(f"DROP SCHEMA {schemas} CASCADE")
    (found,) = check_served_views(world.pipeline)
    follow_ledger(world.pipeline, counted=True)
    assert list(check_served_views(world.pipeline)) == []
    assert world.answers() == {**before, ("1", DAY): (1, "proved")}


@pytest.mark.parametrize("loss", ["table dropped", "marker too", "put back"])
def test_stream_is_refused_and_doctor_names_its_table_when_rows_that_it_wrote_are_lost(world: World, loss: str) -> None:
    generation = generations.current_or_first(world.pipeline.name, "test@host")
    world.produce("1", DAY, DAY)
    world.stream()
    marker = asked("SELECT version FROM tidemark_versions WHERE table_name = %s", [world.table])
    world.produce("2", DAY, DAY)
    world.stream()
    world.stream()
    check_written_live_tables(world.pipeline, generation)
    assert list(check_served_views(world.pipeline)) == []
    if loss == "put back":
        asked(f"DELETE FROM {world.table} WHERE zip_code = '2'")
        asked("UPDATE tidemark_versions SET version = %s WHERE table_name = %s", [*marker[0], world.table])
    else:
        asked(f"DROP TABLE {world.table} CASCADE")
    if loss == "marker too":
        asked("DELETE FROM tidemark_versions WHERE table_name = %s", [world.table])
    for _ in range(2):
        with pytest.raises(UsageError, match=f"the table {world.table} of serving lacks rows") as refused:
            check_written_live_tables(world.pipeline, generation)
        assert f"./tidemark new-generation {world.pipeline.name} --reason" in refused.value.remedy
        assert (refused.value.message, "") in [(each.what, each.repair) for each in check_served_views(world.pipeline)]
        # It holds no value that an erasure would not have reached.
        assert not any("lacks rows" in each for each in remaining(world.pipeline))
        # A repair, and the next publication, leave it at that.
        follow_ledger(world.pipeline, counted=True)
    if loss == "table dropped":
        # Under a stream that runs.
        with pytest.raises(UsageError, match=f"the table {world.table} of serving lacks rows"):
            merge(shape_of(world.pipeline, world.view), [("2", DAY, DAY + HOUR, 2)], world.version)
    with session() as ledger:
        generations.open_in(ledger, world.pipeline.name, "test@host", "as the refusal says")
    again = generations.current_or_first(world.pipeline.name, "test@host")
    check_written_live_tables(world.pipeline, again)
    base = [(zip_code, start, start + HOUR, count) for (zip_code, start), count in world.speed.items()]
    merge(shape_of(world.pipeline, world.view), base, again.version(-1), replace=True)
    assert list(check_served_views(world.pipeline)) == []
    assert world.answers() == {("1", DAY): (1, "live"), ("2", DAY): (1, "live")}


def test_doctor_repairs_served_rows_when_they_differ(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.produce("2", DAY, DAY)
    world.stream()
    assert list(check_served_views(world.pipeline)) == []
    world.register(0)
    assert list(check_served_views(world.pipeline)) == []
    asked(f"DELETE FROM proved.{world.table} WHERE zip_code = '1'")
    world.register(0, follow=False)
    (found,) = check_served_views(world.pipeline)
    assert (found.repair, found.table) == ("serve what is registered", world.table)
    asked("UPDATE proved.tidemark_intervals SET revision = 'r-2' WHERE table_name = %s", [world.table])
    assert len(list(check_served_views(world.pipeline))) == 1
    follow_ledger(world.pipeline, counted=True)
    assert list(check_served_views(world.pipeline)) == []
    assert world.answers() == {("1", DAY): (1, "proved"), ("2", DAY): (1, "proved")}


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "not noted"])
def test_doctor_removes_served_rows_of_an_interval_that_the_ledger_does_not_know(world: World, noted: bool) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    before, unknown = world.answers(), 10**9
    asked(
        f"INSERT INTO proved.{world.table} SELECT zip_code, window_start, window_end, count, %s "
        f"FROM proved.{world.table}",
        [unknown],
    )
    if noted:
        asked(
            "INSERT INTO proved.tidemark_intervals (table_name, interval_id, from_time, to_time, covers, revision, "
            "rows) VALUES (%s, %s, %s, %s, TRUE, 'r-9', 1)",
            [world.table, unknown, DAY, DAY + HOUR],
        )
    assert world.answers() != before
    assert len(list(check_served_views(world.pipeline))) == 1
    follow_ledger(world.pipeline, counted=True)
    assert list(check_served_views(world.pipeline)) == []
    assert world.answers() == before


def test_measure_that_was_declared_later_is_served_with_older_files_and_an_older_table(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    more = replace(world.view, measures=("count", "people"), columns=f"{world.view.columns}, people BIGINT")
    wider = replace(world.pipeline, views=(more,))
    follow_ledger(wider)
    query = f"SELECT zip_code, count, people, state FROM live.{world.table}"
    assert asked(query) == [("1", 1, None, "proved")]
    shape, window = shape_of(wider, more), (DAY + HOUR, DAY + 2 * HOUR)
    merge(shape, [("1", *window, 4, 3)], world.version, replace=True)
    assert asked(f"{query} ORDER BY window_start") == [("1", 1, None, "proved"), ("1", 4, 3, "live")]


def test_view_is_recreated_and_loaded_again_when_its_declaration_differs(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    asked(f"COMMENT ON TABLE proved.{world.table} IS 'of before'")
    world.follow()
    assert world.answers() == {("1", DAY): (1, "proved")}


def test_proved_part_is_served_when_the_stream_has_no_table_and_all_views_are_served(
    postgres: Home, set_settings: SetSettings
) -> None:
    world = world_of("t_console", Console())
    world.hours = 2
    world.produce("1", DAY, DAY)
    world.register(0)
    assert asked("SELECT to_regclass('live.t_console_hourly_counts')") == [(None,)]
    set_settings(TIDEMARK_SERVE="all")
    world.follow()
    assert world.answers() == {("1", DAY): (1, "both")}
    world.register(1)
    assert world.answers() == {("1", DAY): (1, "proved")}


def test_view_stays_followed_when_a_process_without_the_setting_publishes(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of("t_all_once", Console())
    world.produce("1", DAY, DAY)
    with monkeypatch.context() as everywhere:
        everywhere.setenv("TIDEMARK_SERVE", "all")
        settings.cache_clear()
        world.register(0)
    settings.cache_clear()
    world.register(0, factor=0, follow=False)
    assert len(list(check_served_views(world.pipeline))) == 1
    world.follow()
    assert world.answers() == {}
    assert list(check_served_views(world.pipeline)) == []
    asked(f"DROP VIEW live.{world.table}; DROP TABLE proved.{world.table}")
    world.register(0)
    assert asked("SELECT to_regclass(%s)", [f"proved.{world.table}"]) == [(None,)]


def test_only_a_pipeline_that_serves_views_needs_their_database(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may lack it, or refuse the user."""
    monkeypatch.setattr("include.serving.DATABASE", "absent")
    unserved = replace(world.pipeline, views=(replace(world.view, sinks=(Console(),)),))
    assert follow_ledger(unserved) == []
    assert list(check_served_views(unserved)) == []
    with pytest.raises(ServiceUnreachable, match='database "absent" does not exist'):
        follow_ledger(world.pipeline)


def test_erasure_says_that_served_values_may_be_left_when_the_server_refuses_their_database(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's process, with another setting, may have begun to serve a view there."""
    unserved = replace(world.pipeline, views=(replace(world.view, sinks=(Console(),)),))
    monkeypatch.setattr("include.serving.DATABASE", "refusing")
    assert not any("is not known" in each for each in remaining(unserved))
    with closing(psycopg2.connect(settings().database_uri("ledger"))) as connection:
        connection.autocommit = True
        connection.cursor().execute("CREATE DATABASE refusing ALLOW_CONNECTIONS false")
        try:
            (told,) = (each for each in remaining(unserved) if "is not known" in each)
        finally:
            connection.cursor().execute("DROP DATABASE refusing")
    assert "registered values in PostgreSQL: whether they hold a key is not known: PostgreSQL at " in told
    assert 'database "refusing" is not currently accepting connections' in told


def test_view_with_a_table_of_the_stream_is_left_when_code_that_declares_no_table_publishes(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    older = replace(world.pipeline, views=(replace(world.view, sinks=(Console(),)),))
    world.register(0, factor=2, follow=False)
    assert follow_ledger(older) == []
    assert world.answers() == {("1", DAY): (1, "proved")}


def test_reader_sees_each_row_once_when_reruns_go_on(world: World) -> None:
    for number in range(20):
        world.produce(str(number), DAY, DAY)
    world.stream()
    world.register(0)
    done, seen = threading.Event(), set()

    def read() -> None:
        with closing(psycopg2.connect(settings().database_uri("serving"))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                while not done.is_set():
                    cursor.execute(f"SELECT count(*), sum(count), min(state), max(state) FROM live.{world.table}")
                    seen.add(cursor.fetchone())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        world.register(0)
    done.set()
    reader.join(30)
    assert seen == {(20, 20, "proved", "proved")}


def test_both_layers_use_indices_when_a_query_names_a_key(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    fill = "SELECT (n % 2000)::text, s, s + interval '1 hour', 1 FROM generate_series(1, 20000) n, "
    fill += "LATERAL (SELECT timestamptz '2020-01-01' + n / 2000 * interval '1 hour' AS s) at"
    asked(f"INSERT INTO proved.{world.table} SELECT *, 7 FROM ({fill}) f; ANALYZE proved.{world.table}")
    asked(f"INSERT INTO {world.table} SELECT *, 7 FROM ({fill}) f; ANALYZE {world.table}")
    question = f"EXPLAIN (FORMAT JSON) SELECT * FROM live.{world.table} WHERE zip_code = %s"
    for further in ("", f" AND window_start = '{DAY.isoformat()}'"):
        ((plan,),) = asked(question + further, ["77"])
        text = json.dumps(plan)
        assert text.count(f'"Relation Name": "{world.table}"') == 2, text
        scans = [each for each in nodes(plan[0]["Plan"]) if each.get("Relation Name") == world.table]
        assert all("Seq" not in each["Node Type"] for each in scans), scans


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(each for below in plan.get("Plans", ()) for each in nodes(below))]


@pytest.mark.parametrize(
    ("hours", "seed"),
    [(1, 3), *(pytest.param(hours, seed, marks=pytest.mark.slow) for hours in (1, 3) for seed in range(4, 12))],
)
def test_answers_only_grow_and_are_never_above_what_was_sent(world: World, hours: int, seed: int) -> None:
    """Late rows, reruns, killed micro-batches and publications in any order, with a check after each."""
    chance, world.hours, clock = random.Random(seed), hours, 0
    before: dict[Key, tuple[int, str]] = {}
    # Intervals before the view's first row cover nothing: they may be older than the view.
    world.produce("1", DAY, DAY)
    for _ in range(30):
        act = chance.choice(("send", "send", "late", "stream", "part", "killed", "hour", "register", "rerun", "lost"))
        if act in ("send", "late"):
            for _ in range(chance.randrange(1, 6)):
                late = chance.randrange(5) * HOUR if act == "late" else timedelta(0)
                arrived = DAY + clock * HOUR
                world.produce(chance.choice(("1", "2", "3", None)), max(DAY, arrived - late), arrived)
        elif act in ("stream", "killed"):
            world.stream(killed=act == "killed")
        elif act == "part":
            world.stream(world.read + chance.randrange(4))
        elif act == "hour":
            clock += 1
        elif act in ("register", "lost") and len(world.batch) < clock:
            world.register(len(world.batch), follow=act == "register")
        elif act == "rerun" and world.batch:
            world.register(chance.choice(list(world.batch)))
        before = look(world, before)
    world.stream()
    for hour in range(len(world.batch), clock + hours + 2):
        world.register(hour)
        before = look(world, before)
    sent = {key: (count, "proved") for key, count in world.truth().items()}
    assert before == sent, set(before.items()) ^ set(sent.items())


def look(world: World, before: dict[Key, tuple[int, str]]) -> dict[Key, tuple[int, str]]:
    """Read, and compare with the sent rows, the registered rows, and the previous look."""
    if not asked("SELECT to_regclass(%s)", [f"live.{world.table}"])[0][0]:
        return before
    answers, truth = world.answers(), world.truth()
    proved = {start for (_, start), (_, state) in before.items() if state == "proved"}
    for key, (count, state) in answers.items():
        assert count <= truth[key], (key, count, state, truth[key])
        assert state == "proved" or key[1] not in proved, (key, "was proved, and is not any more")
        assert state != "proved" or count == world.served[key], (key, count, world.served[key])
    for key, (count, _) in before.items():
        assert answers.get(key, (0, ""))[0] >= count, (key, count, answers.get(key))
    return answers


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))])
def test_proved_windows_are_what_the_registered_revisions_add_up_to(world: World, seed: int) -> None:
    """Revisions are swapped by ones of other code, while the stream goes on."""
    chance = random.Random(seed)
    for hour in range(4):
        for _ in range(4):
            late = chance.randrange(hour + 1) * HOUR
            world.produce(chance.choice(("1", "2", None)), DAY + hour * HOUR - late, DAY + hour * HOUR)
        world.stream()
        world.register(hour, chance.choice((0, 1, 2)))
        for _ in range(2):
            world.register(chance.randrange(hour + 1), chance.choice((0, 1, 2, 3)))
            for key, (count, state) in world.answers().items():
                assert state != "proved" or count == world.proved()[key]
    for hour in (4, 5):
        world.register(hour)
    told = {key: (count, "proved") for key, count in world.proved().items() if count}
    assert world.answers() == told, set(world.answers().items()) ^ set(told.items())


HOLDER = """
import sys, time
from include.ledger import connection
from include.serving import transaction
connection.IDLE_SECONDS = 2
with transaction("") as asked:
    window = [sys.argv[1], "2026-11-18T06:00Z", "2026-11-18T07:00Z"]
    asked.execute("INSERT INTO proved.tidemark_windows VALUES (%s, %s, %s)", window)
    print("held", flush=True)
    time.sleep(300)
"""


def test_stream_goes_on_when_a_process_that_wrote_the_same_window_was_stopped(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    command = [sys.executable, "-c", HOLDER, world.table]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        world.produce("1", DAY + HOUR, DAY + HOUR)
        began = time.monotonic()
        world.stream()
        assert time.monotonic() - began < 20
    finally:
        holder.kill()
        holder.wait()
    assert world.answers()[("1", DAY + HOUR)] == (1, "live")


@pytest.mark.parametrize("lock", ["SELECT FROM {} FOR UPDATE", "LOCK TABLE {} IN SHARE MODE"], ids=["rows", "table"])
def test_stream_names_another_transaction_when_it_holds_the_table_for_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr("include.serving.STATEMENT_SECONDS", 20)
    monkeypatch.setattr("include.serving.live_rows.LOCK_SECONDS", 0.3)
    world.produce("1", DAY, DAY)
    world.stream()
    world.produce("1", DAY, DAY)
    with transaction("") as other:
        other.execute(lock.format(world.table))
        with pytest.raises(ServiceUnreachable, match="another transaction holds a served table or view — end it"):
            world.stream()
    world.stream()


def test_writers_are_told_to_try_again_when_each_waits_for_the_other(postgres: Home) -> None:
    def lock_both(first: int, second: int, ready: threading.Barrier) -> None:
        with transaction("") as opened:
            opened.execute("SELECT pg_advisory_xact_lock(%s)", [first])
            ready.wait(30)
            opened.execute("SELECT pg_advisory_xact_lock(%s)", [second])

    ready = threading.Barrier(2)
    with ThreadPoolExecutor(2) as others:
        begun = [others.submit(lock_both, *keys, ready) for keys in ((1, 2), (2, 1))]
    [error] = [raised for each in begun if (raised := each.exception()) is not None]
    assert isinstance(error, LockHeld)
    assert "deadlock detected: another command changes the same rows — run this again" in str(error)


def test_streams_and_readers_go_on_while_a_view_is_served_for_the_first_time(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    world.register(0)
    added = world_of(f"{world.pipeline.name}_added")
    with transaction("") as loading:
        ensure(loading, shape_of(added.pipeline, added.view))
        began = time.monotonic()
        world.produce("1", DAY + HOUR, DAY + HOUR)
        world.stream()
        assert world.answers() == {("1", DAY): (1, "proved"), ("1", DAY + HOUR): (1, "live")}
        assert time.monotonic() - began < 5
    assert added.answers() == {}


def test_what_a_table_of_all_views_lacks_is_added_when_an_earlier_version_made_it(world: World) -> None:
    world.produce("1", DAY, DAY)
    world.stream()
    asked("DROP INDEX proved.tidemark_windows_open")
    asked("ALTER TABLE proved.tidemark_positions DROP COLUMN settled_below CASCADE")
    world.register(0)
    assert world.answers() == {("1", DAY): (1, "proved")}
    (made,) = asked(
        "SELECT to_regclass('proved.tidemark_windows_open') IS NOT NULL, EXISTS (SELECT FROM pg_attribute "
        "WHERE attrelid = 'proved.tidemark_positions'::regclass AND attname = 'settled_below')"
    )
    assert made == (True, True)
