"""One answer from both layers where there is no window: real ledger, real PostgreSQL, stream and intervals played."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Mapping
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
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.completeness.partials import Partials, registered_partials
from include.ledger.database import session
from include.ledger.models import (
    Attempt,
    Build,
    Erasure,
    IntervalRange,
    IntervalRow,
    Position,
    Revision,
    Topic,
)
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Pipeline
from include.serving.follow import follow_ledger
from include.serving.live_rows import merge
from include.serving.shape import shape_of
from include.settings import settings
from tests.conftest import Home
from tests.support.attempts import note_begin
from tests.support.committed import add_batch, add_interval
from tests.support.served import asked

pytestmark = pytest.mark.services

DAY = datetime(2026, 11, 18, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


@dataclass
class World:
    """A topic of zip codes, of which each hour has five, archived from its beginning or from later on."""

    pipeline: Pipeline
    zips: list[str] = field(default_factory=list)
    read: int = 0
    version: int = 0

    @property
    def view(self) -> AdditiveView:
        return self.pipeline.views[0]

    @property
    def table(self) -> str:
        return self.pipeline.view_table(self.view)

    @property
    def factors(self) -> list[int]:
        """What a record adds to each measure: one hit, and ten to any other."""
        return [1 if name == "hits" else 10 for name in self.view.measures]

    def stream(self, *zips: str) -> None:
        """A micro-batch of both queries over these records."""
        self.zips += zips
        counted, name, until = Counter(self.zips), self.pipeline.name, len(self.zips)
        values = [(each, *(n * counted[each] for n in self.factors)) for each in set(zips)]
        merge(shape_of(self.pipeline, self.view), values, self.version)
        place = {"topic": name, "topic_partition": 0}
        read = OffsetRange(TopicPartition(name, 0), self.read, until)
        with session() as ledger:
            ledger.merge(Topic(pipeline=name, topic=name, topic_id="id", topic_partitions=1))
            for query in (ARCHIVE, self.view.name):
                facts = {"query_id": f"{name}{query}", "committed_at": DAY}
                batch = add_batch(ledger, name, self.version, read, query=query, **facts)
                ledger.merge(Position(pipeline=name, query=query, next_offset=until, micro_batch_id=batch, **place))
        self.read, self.version = until, self.version + 1

    def pin(self, hour: int) -> None:
        name = self.pipeline.name
        read = OffsetRange(TopicPartition(name, 0), hour * 5, hour * 5 + 5)
        with session() as ledger:
            add_interval(ledger, name, DAY + hour * HOUR, read, "pinned")

    def register(
        self, hour: int, *, run: int = 1, factor: int = 1, with_part: bool = True, columns: Collection[str] = ()
    ) -> None:
        """Register the hour; `factor` multiplies counts, like other code; without a part, like code before the view.

        `columns`: those that the build notes; none, like code that noted none.
        """
        partition, revision = f"interval={hour:03}", f"r-{run}"
        location = lake.uri("tables", self.table, partition, revision)
        counted = {each: factor * n for each, n in Counter(self.zips[hour * 5 : hour * 5 + 5]).items()}
        with session() as ledger:
            at = {"pipeline": self.pipeline.name, "from_time": DAY + hour * HOUR}
            interval = ledger.query(IntervalRow).filter_by(**at).one()
            interval.state = "registered"
            ledger.query(IntervalRange).filter_by(interval_id=interval.id).one().archived = 5
            for before in ledger.query(Revision).filter_by(table_name=self.table, table_partition=partition).all():
                before.state = "superseded"
            if with_part:
                attempt = Attempt(interval_id=interval.id, run_by="test", code_version="1", source="kafka", verdict={})
                ledger.add(attempt)
                ledger.flush()
                names = {"table_name": self.table, "table_partition": partition, "interval_id": interval.id}
                facts = {"rows": len(counted), "content_hash": revision, "code_version": "1", "registered_at": DAY}
                files = write(location, counted, dict(zip(self.view.measures, self.factors, strict=True)))
                built = Revision(id=revision, attempt_id=attempt.id, location=location, files=files, **names, **facts)
                built.state = "registered"
                if columns:
                    of_table = {self.table: dict.fromkeys(columns, "string")}
                    build = Build(attempt_id=attempt.id, interval_id=interval.id, findings={}, columns=of_table)
                    ledger.add(build)
                    ledger.flush()
                    built.build_id = build.id
                ledger.add(built)
                ledger.flush()
                note_begin(ledger, self.pipeline.name, self.table, interval.from_time)
        follow_ledger(self.pipeline)

    def answers(self) -> dict[str, tuple[int, str]]:
        with closing(psycopg2.connect(settings().database_uri("serving"))) as connection, connection.cursor() as asked:
            asked.execute(f"SELECT zipcode, hits, state FROM live.{self.table}")
            rows = asked.fetchall()
        found = {key: (hits, state) for key, hits, state in rows}
        assert len(found) == len(rows), "a key is told twice"
        return found


def write(location: str, counted: dict[str, int], factors: Mapping[str, int]) -> dict[str, Any]:
    file = Path(lake.filesystem(location)[1]) / "part-00000.zstd.parquet"
    file.parent.mkdir(parents=True)
    measures = {name: pa.array([n * factor for n in counted.values()], pa.int64()) for name, factor in factors.items()}
    pq.write_table(pa.table({"zipcode": pa.array(list(counted), pa.string()), **measures}), file)
    return {file.name: {"rows": len(counted), "bytes": file.stat().st_size}}


@pytest.fixture
def world(postgres: Home, request: pytest.FixtureRequest) -> World:
    declared = load_pipeline("isp_hits")
    view = next(each for each in declared.views if each.name == "zip_totals")
    name = f"t{zlib.crc32(request.node.name.encode())}"
    return World(replace(declared, name=name, views=(view,), reports=(), declared_as=""))


def test_key_waits_when_some_of_its_registered_rows_are_older_than_a_measure(world: World) -> None:
    world.stream("1", "1", "1", "1", "1")
    world.pin(0)
    world.register(0, columns=("zipcode", "hits"))
    assert world.answers() == {"1": (5, "proved")}
    view = replace(world.view, measures=("hits", "sent"), columns=f"{world.view.columns}, sent BIGINT")
    world.pipeline = replace(world.pipeline, views=(view,))
    merge(shape_of(world.pipeline, view), [("1", 5, 50)], world.version, replace=True)
    world.version += 1
    world.stream("1", "1", "1", "1", "1")
    world.pin(1)
    world.register(1, columns=("zipcode", "hits", "sent"))
    sent = f"SELECT hits, sent, state FROM live.{world.table}"
    assert asked(sent) == [(10, 100, "both")]
    world.register(0, run=2, columns=("zipcode", "hits", "sent"))
    assert asked(sent) == [(10, 100, "proved")]


def test_key_is_proved_and_counted_once_when_intervals_hold_all_of_it(world: World) -> None:
    world.stream("1", "1", "2", "1", "2", "1", "2", "3", "1", "2")
    for hour in (0, 1):
        world.pin(hour)
    # The first hour is missing: nothing is proved, and the stream's number counts.
    world.register(1)
    assert world.answers() == {"1": (5, "both"), "2": (4, "both"), "3": (1, "both")}
    world.register(0)
    assert world.answers() == {"1": (5, "proved"), "2": (4, "proved"), "3": (1, "proved")}
    world.stream("1", "1", "4", "1", "1")
    assert world.answers() == {"1": (9, "both"), "2": (4, "proved"), "3": (1, "proved"), "4": (1, "live")}
    world.pin(2)
    world.register(2)
    proved = {"1": (9, "proved"), "2": (4, "proved"), "3": (1, "proved"), "4": (1, "proved")}
    assert world.answers() == proved
    # A rerun with the same result, then one by code that counts differently, whose result counts.
    world.register(1, run=2)
    assert world.answers() == proved
    world.register(1, run=3, factor=2)
    assert world.answers() == {"1": (11, "proved"), "2": (6, "proved"), "3": (2, "proved"), "4": (1, "proved")}
    assert follow_ledger(world.pipeline) == []
    assert not list(check_served_views(world.pipeline))


def test_part_is_not_summed_up_when_it_was_built_before_an_erasure(world: World) -> None:
    world.stream(*"1111122222")
    for hour in (0, 1):
        world.pin(hour)
        world.register(hour)
    name = world.pipeline.name

    def partials(*but: int, until: int = 10, closed: Collection[str] = ()) -> Partials:
        read = {TopicPartition(name, 0): until}
        return registered_partials(name, world.table, but, read=read, closed=closed)

    first, second = partials().parts
    whole = OffsetRange(TopicPartition(name, 0), 0, 10, "id")
    assert partials().ranges == (whole,), "ranges that meet are one"
    # Of the second interval the speed view has not read all.
    assert partials(until=9) == Partials((first,), (replace(whole, until_offset=5),))
    assert partials(until=9, closed=("id",)) == partials()
    with session() as ledger:
        facts = {"columns": [], "key_hashes": [], "counts": {}, "reason": "asked", "begun_by": "test", "salt": ""}
        ledger.add(Erasure(pipeline=name, intervals=[first.interval_id], last_build=7, **facts))
    assert partials() == Partials((second,), (replace(whole, from_offset=5),))
    assert partials(second.interval_id) == Partials((), ())


def test_nothing_is_proved_when_the_archive_begins_before_the_first_interval(world: World) -> None:
    world.stream(*"1111122222")
    world.pin(1)
    world.register(1)
    assert world.answers() == {"1": (5, "live"), "2": (5, "both")}


def test_nothing_is_proved_when_an_interval_was_built_before_the_view_was_declared(world: World) -> None:
    world.stream(*"1111122222")
    for hour in (0, 1):
        world.pin(hour)
    world.register(0, with_part=False)
    world.register(1)
    assert world.answers() == {"1": (5, "live"), "2": (5, "both")}
    world.register(0, run=2)
    assert world.answers() == {"1": (5, "proved"), "2": (5, "proved")}
