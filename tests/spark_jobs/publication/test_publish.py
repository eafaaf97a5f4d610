"""Publishing beside other work, and after a kill; the ledger is real, the catalog a dictionary."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from pyspark.errors import AnalysisException, PySparkException

from include import lake
from include.catalog.columns import declared_types
from include.doctor import repair as doctor_repair
from include.doctor.completeness import check_completeness
from include.doctor.tables import check_tables
from include.errors import (
    AnotherWriter,
    LockLost,
    ReconciliationFailed,
    ServiceUnreachable,
    UsageError,
    ValidationFailed,
)
from include.ledger.intervals import attempts, builds, locks, pins, revisions
from include.ledger.intervals.builds import TableColumns
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.lineage import BuiltRevision
from include.offsets import OffsetRange
from include.pipelines import load_pipeline
from spark_jobs.publication import catalog, publish_build
from spark_jobs.publication.publish_build import publish
from spark_jobs.publication.validate import least_rows
from spark_jobs.reconciliation.interval_run import IntervalRun
from tests.conftest import Home
from tests.support.ledger_faults import Killed, end_lock
from tests.support.ledger_seams import put_in_place
from tests.support.ledger_world import TOPIC_ID, MemoryCatalog, Row, World, hour

pytestmark = pytest.mark.services


def test_catalog_that_does_not_answer_is_not_one_without_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> None:
        raise AnalysisException("the metastore's client failed")

    spark: Any = SimpleNamespace(sql=refuse)
    point = BuiltRevision("nest_cameras", "date=2026-11-20/interval=2026-11-20T05", "r", "file:///r", 1, "hash", {})
    hive = catalog.Catalog(spark, load_pipeline("nest_cameras"))
    assert hive.location(point) is None
    monkeypatch.setattr(catalog, "translate", lambda _: ServiceUnreachable("the catalog's database"))
    with pytest.raises(AnalysisException):
        hive.location(point)


class Publications:
    """Publications of a world's first interval, unless another one is pinned."""

    def __init__(self) -> None:
        self.world = World(f"p{uuid.uuid4().hex[:12]}")
        self.at_each_point: Callable[[str], None] = lambda point: None
        """Called at each crash point."""
        # By each version of the code, all of these offsets' rows have the same date.
        self.pinned = self.pin(0, 0, 3)

    def pin(self, number: int, begin: int, end: int) -> PinnedInterval:
        """Return an interval, by the number of its hour, with these offsets of each topic partition."""
        name, topic = self.world.pipeline.name, self.world.partitions[0].topic
        ranges = [OffsetRange(tp, begin, end, TOPIC_ID) for tp in self.world.partitions]
        between = pins.find_neighbours(name, hour(number))
        pinned = pins.write_interval(name, hour(number), ranges, {topic: TOPIC_ID}, pinned_by="test", between=between)
        assert pinned is not None
        return pinned

    def build(
        self,
        dates: Mapping[str, set[Row]] | None = None,
        *,
        code: str = "1",
        decoders: str = "",
        again: int = 0,
        unexplained: int = 0,
        removed: int = 0,
        columns: TableColumns | None = None,
    ) -> int:
        """Return an attempt that the present code has built, or one that gives the rows these dates.

        `again`: an attempt that was built before; `removed`: rows that its code takes out; `columns`: what the files of
        each table have.
        """
        attempt = again or attempts.begin_attempt(self.pinned, run_by="test", code_version=code, source="kafka")
        spec, revision = attempts.load_attempt(attempt), f"r-{attempt}{'-again' if again else ''}"
        if dates is None:
            built = self.world.build(spec, revision, short=False)
        else:
            built = [self.world.write_revision(spec, date, revision, rows) for date, rows in sorted(dates.items())]
        findings = self.world.findings(spec.pinned, unexplained=unexplained)
        changes = {"removed": removed} if removed else {}
        findings = replace(findings, decoder_versions=tuple(decoders.split()), code_changes=changes)
        builds.note_build(spec, built, findings, columns=columns)
        return attempt

    def publish(self, attempt: int) -> None:
        publish(self.run(attempt))

    def run(self, attempt: int) -> IntervalRun:
        return IntervalRun(self.world, self.world.pipeline, attempts.load_attempt(attempt))  # type: ignore[arg-type]


@pytest.fixture
def publications(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> Publications:
    made = Publications()
    put_in_place(monkeypatch, made.world, lambda point: made.at_each_point(point))
    return made


def test_no_row_is_visible_twice_at_any_point_when_rows_move_to_another_table_partition(
    publications: Publications,
) -> None:
    world = publications.world
    seen: list[tuple[str, list[Row]]] = []
    publications.publish(publications.build())
    [(table, before)] = world.catalog
    rows = sorted(row for _, row in world.visible())
    world.code += 1
    moved = publications.build()
    publications.at_each_point = lambda point: seen.append((point, sorted(row for _, row in world.visible())))
    publications.publish(moved)
    assert (table, before) not in world.catalog
    assert ("partition_dropped", []) in seen
    assert all(visible in ([], rows) for _, visible in seen)
    assert sorted(row for _, row in world.visible()) == rows


def test_nothing_is_registered_when_the_disk_of_a_delta_table_has_no_hard_links(
    publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    run = publications.run(publications.build())
    archive = replace(run.pipeline.archive, delta=True)
    with pytest.raises(UsageError, match=r"the disk of file:///.* has no hard links"):
        publish(replace(run, pipeline=replace(run.pipeline, archive=archive)))
    assert publications.world.visible() == []


A, B, C, D = (0, 1), (0, 2), (1, 1), (1, 2)
"""The rows of the interval."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param({"20": {A, B}, "21": {C, D}}, {"20": {A, C}, "21": {B, D}}, id="both ways"),
        pytest.param({"20": {A}, "21": {B, C, D}}, {"20": {A, B}, "21": {C, D}}, id="to the one before"),
        pytest.param({"20": {A, B, C}, "21": {D}}, {"20": {A, B}, "21": {C, D}}, id="to the one after"),
        pytest.param({"21": {A, B, C, D}}, {"20": {A}, "21": {B, C}, "22": {D}}, id="to new ones"),
        pytest.param({"19": {A}, "20": {B}, "21": {C}, "22": {D}}, {"20": {C}, "21": {A, B}, "22": {D}}, id="of many"),
    ],
)
def test_no_row_is_visible_twice_when_rows_move_between_table_partitions_that_stay_and_publications_are_killed(
    publications: Publications, before: dict[str, set[Row]], after: dict[str, set[Row]]
) -> None:
    world, label = publications.world, publications.pinned.interval.label
    before, after = ({f"2026-11-{day}": rows for day, rows in each.items()} for each in (before, after))
    twice: list[tuple[str, list[Row]]] = []
    points_to_kill = 0

    def reach(point: str) -> None:
        nonlocal points_to_kill
        visible = sorted(row for _, row in world.visible())
        if len(set(visible)) < len(visible):
            twice.append((point, visible))
        points_to_kill -= 1
        if points_to_kill == 0:
            raise Killed

    publications.at_each_point = reach
    is_killed, points = True, 0
    while is_killed:
        publications.publish(publications.build(before))
        attempt, is_killed = publications.build(after), False
        points = points_to_kill = points + 1
        try:
            publications.publish(attempt)
        except Killed:
            is_killed = True
        publications.publish(attempt)
        assert builds.begun_registrations(world.pipeline.name) == []
        found = sorted((partition, row) for partition, row in world.visible())
        assert found == sorted((f"date={date}/interval={label}", row) for date in after for row in after[date])
    assert points > len(after)
    assert twice == []


@pytest.mark.parametrize(
    ("code", "decoders", "stays"),
    [("1", "a", True), ("2", "a", False), ("1", "b", False), ("1", "a b", False), ("1", "", False)],
)
def test_rows_stay_visible_while_others_join_them_unless_other_code_may_have_moved_them(
    publications: Publications, monkeypatch: pytest.MonkeyPatch, code: str, decoders: str, stays: bool
) -> None:
    # Records that come late.
    monkeypatch.setattr(World, "is_complete", lambda *_: True)
    world, seen = publications.world, list[list[Row]]()
    publications.publish(publications.build({"2026-11-20": {A}, "2026-11-21": {C}}, decoders="a"))
    publications.at_each_point = lambda _: seen.append(sorted(row for _, row in world.visible()))
    after = {"2026-11-20": {A, B}, "2026-11-21": {C, D}}
    publications.publish(publications.build(after, code=code, decoders=decoders))
    assert seen[-1] == [A, B, C, D]
    assert all({A, C} <= set(visible) for visible in seen) == stays


@pytest.mark.parametrize(
    ("by", "before"),
    [
        pytest.param("doctor", {"2026-11-20": {A, B}, "2026-11-21": {C}, "2026-11-22": {D}}, id="doctor"),
        # It drops no partition that the ledger does not have.
        pytest.param("publication", {"2026-11-20": {A, B}, "2026-11-21": {C, D}}, id="publication"),
    ],
)
def test_no_row_is_visible_twice_when_a_catalog_that_was_put_back_from_a_copy_is_repaired(
    publications: Publications, by: str, before: dict[str, set[Row]]
) -> None:
    world, seen = publications.world, []
    publications.publish(publications.build(before))
    copy = dict(world.catalog)
    attempt = publications.build({"2026-11-20": {A, C}, "2026-11-21": {B, D}}, code="2")
    publications.publish(attempt)
    world.catalog.clear()
    world.catalog.update(copy)
    point_at = MemoryCatalog.point_at

    def look(catalog: MemoryCatalog, revision: BuiltRevision) -> None:
        point_at(catalog, revision)
        seen.append(sorted(row for _, row in world.visible()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryCatalog, "point_at", look)
        if by == "doctor":
            doctor_repair.repair([*check_tables(world.pipeline, deep=True)], lambda line: None)
        else:
            publications.publish(attempt)
    assert seen == [[A, C], [A, B, C, D]]


def test_all_rows_stay_visible_when_the_table_refuses_a_revision(
    publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(catalog: MemoryCatalog, revision: BuiltRevision) -> None:
        raise UsageError("another format")

    world = publications.world
    publications.publish(publications.build({"2026-11-20": {A, B}, "2026-11-21": {C, D}}))
    before = sorted(world.visible())
    attempt = publications.build({"2026-11-21": {A, C}, "2026-11-22": {B, D}})
    with monkeypatch.context() as patch:
        patch.setattr(MemoryCatalog, "prepare", refuse)
        with pytest.raises(UsageError, match="another format"):
            publications.publish(attempt)
    assert sorted(world.visible()) == before
    publications.publish(attempt)
    assert sorted(row for _, row in world.visible()) == [A, B, C, D]


def test_nothing_is_registered_when_the_interval_was_pinned_again_since_it_was_built(
    publications: Publications,
) -> None:
    attempt = publications.build()
    longer = [replace(each, until_offset=each.until_offset + 1) for each in publications.pinned.ranges]
    assert pins.replace_ranges(publications.pinned, longer, repinned_by="test")
    with pytest.raises(ReconciliationFailed, match="was pinned again since it was built"):
        publications.publish(attempt)
    assert publications.world.catalog == {}


def test_nothing_is_registered_when_the_build_is_not_explained(publications: Publications) -> None:
    attempt = publications.build(unexplained=1)
    with pytest.raises(ReconciliationFailed, match="is not reconciled, nothing was registered"):
        publications.publish(attempt)
    assert publications.world.catalog == {}
    assert builds.begun_registrations(publications.pinned.pipeline) == []


def test_half_of_the_registered_rows_are_expected_only_when_the_code_takes_out_more(
    publications: Publications,
) -> None:
    day = "2026-11-20"
    assert least_rows(publications.run(publications.build({day: {A, B, C, D}}, removed=1))) == 0
    publications.publish(publications.build({day: {A, B, C, D}}))
    assert least_rows(publications.run(publications.build({day: {A}}))) == 0
    # A stricter decoder leaves no rows, and the registration would drop the table partition.
    assert least_rows(publications.run(publications.build({}, removed=4))) == 2
    # The code takes out one, and an erasure the others.
    assert least_rows(publications.run(publications.build({}, removed=1))) == 0


def test_nothing_is_registered_when_the_files_lack_the_new_name_of_a_column(publications: Publications) -> None:
    world = publications.world
    attempt = publications.build(columns={world.pipeline.table: {"camera_id": "STRING"}})
    archive = replace(world.pipeline.archive, renamed={"device_id": "camera_id"})
    world.pipeline = replace(world.pipeline, archive=archive)
    with pytest.raises(AnotherWriter, match=f"was built before device_id of {world.pipeline.table} was declared"):
        publications.publish(attempt)
    assert world.catalog == {}
    publications.publish(publications.build(columns=declared_types(world.pipeline)))
    assert sorted(row for _, row in world.visible()) == [A, B, C, D]


def test_nothing_is_registered_when_the_build_has_columns_of_before_and_unused_tables_are_made_anew(
    publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, made = publications.world, list[str]()
    table, types = world.pipeline.table, declared_types(world.pipeline)
    monkeypatch.setattr(publish_build, "check_storage", lambda _: [table])
    monkeypatch.setattr(publish_build, "make_anew", lambda catalog: made.append(catalog.pipeline.name))
    before = publications.build(columns={table: {**types[table], "gone": "string"}})
    with pytest.raises(AnotherWriter, match=f"was built before {table} was declared as it is"):
        publications.publish(before)
    assert made == []
    # The table has been made anew meanwhile.
    monkeypatch.setattr(publish_build, "check_storage", lambda _: [])
    with pytest.raises(AnotherWriter, match=f"was built before {table} was declared as it is"):
        publications.publish(before)
    assert world.catalog == {}
    monkeypatch.setattr(publish_build, "check_storage", lambda _: [table])
    publications.publish(publications.build(columns=types))
    assert made == [world.pipeline.name]
    assert sorted(row for _, row in world.visible()) == [A, B, C, D]


@pytest.mark.parametrize("moved", [False, True], ids=["same rows", "rows that moved"])
def test_published_attempt_is_one_build_when_it_is_built_and_published_again(
    publications: Publications, moved: bool
) -> None:
    """As a finished run's task is cleared in Airflow."""
    world, interval = publications.world, publications.pinned.id
    attempt = publications.build({"2026-11-20": {A, B}, "2026-11-21": {C, D}})
    publications.publish(attempt)
    before, catalog = revisions.registered_of_interval(interval), dict(world.catalog)
    dates = {"2026-11-20": {A, C}, "2026-11-22": {B, D}} if moved else {"2026-11-20": {A, B}, "2026-11-21": {C, D}}
    first = attempts.load_attempt(attempt).build
    publications.build(dates, again=attempt)
    assert (revisions.registered_of_interval(interval), world.catalog) == (before, catalog)
    for _ in range(2):
        publications.publish(attempt)
        registered = revisions.registered_of_interval(interval)
        assert world.catalog == {(each.table, each.partition): each.location for each in registered}
        assert sorted(row for _, row in world.visible()) == [A, B, C, D]
        assert (registered == before) == (not moved)
    build = attempts.load_attempt(attempt).build
    assert build is not None
    assert build != first
    assert builds.is_published(build)
    # Files of equal content are deleted again.
    assert {lake.exists(each.location) for each in revisions.of_build(build)} <= {moved}
    assert all(lake.exists(each.location) for each in registered)


def alter(file: Path) -> None:
    # As many rows, in as many bytes.
    file.write_bytes(file.read_bytes()[:-1] + b"x")


def add(file: Path) -> None:
    # Readers of the catalog find each row twice.
    file.with_name("copy.parquet").write_bytes(file.read_bytes())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (alter, "changed content: part.parquet"),
        (add, "extra file: copy.parquet"),
        (Path.unlink, "file missing: part.parquet"),
    ],
)
def test_file_is_named_and_nothing_is_registered_when_it_was_changed_between_build_and_publication(
    publications: Publications, change: Callable[[Path], None], named: str
) -> None:
    world, rows = publications.world, {"2026-11-20": {A, B, C, D}}
    attempt = publications.build(rows)
    [built] = revisions.of_build(attempts.load_attempt(attempt).build or 0)
    change(Path(built.location.removeprefix("file://")) / "part.parquet")
    with pytest.raises(ReconciliationFailed, match=named) as refused:
        publications.publish(attempt)
    for fact in (world.pipeline.name, built.partition, "run the interval again"):
        assert fact in str(refused.value)
    assert world.catalog == {}
    publications.publish(publications.build(rows))
    assert sorted(row for _, row in world.visible()) == [A, B, C, D]


def test_build_is_registered_when_only_files_that_no_reader_takes_lie_beside_it(publications: Publications) -> None:
    attempt = publications.build({"2026-11-20": {A, B, C, D}})
    [built] = revisions.of_build(attempts.load_attempt(attempt).build or 0)
    for name in ("_SUCCESS", ".part.parquet.crc"):
        (Path(built.location.removeprefix("file://")) / name).touch()
    publications.publish(attempt)
    assert list(publications.world.catalog.values()) == [built.location]


def test_interval_cannot_be_pinned_again_at_any_point_when_it_is_being_published(publications: Publications) -> None:
    refused: list[str] = []

    def pin_again(point: str) -> None:
        with (
            pytest.raises(UsageError, match="an attempt of it is under way"),
            locks.no_attempt_under_way(publications.pinned.pipeline, hour(0)),
        ):
            pass
        refused.append(point)

    publications.at_each_point = pin_again
    publications.publish(publications.build())
    assert "registration_noted" in refused


@pytest.mark.parametrize("dates", [("2026-11-20", "2026-11-21"), ("2026-11-22", "2026-11-23")], ids=["same", "others"])
def test_catalog_has_the_later_build_when_a_publication_lost_its_lock_before_a_pointer(
    postgres: Home, publications: Publications, monkeypatch: pytest.MonkeyPatch, dates: tuple[str, str]
) -> None:
    """Its host was frozen between `check` and the statement."""
    world, point_at = publications.world, MemoryCatalog.point_at
    earlier = publications.build(dict(zip(dates, ({A, B}, {C, D}), strict=True)))
    later = publications.build({"2026-11-20": {A, C}, "2026-11-21": {B, D}}, code="2")

    def freeze(catalog: MemoryCatalog, revision: BuiltRevision) -> None:
        monkeypatch.setattr(MemoryCatalog, "point_at", point_at)
        with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
            end_lock(cursor, f"publish:{world.pipeline.name}:{hour(0).from_time.isoformat()}")
        publications.publish(later)
        point_at(catalog, revision)

    monkeypatch.setattr(MemoryCatalog, "point_at", freeze)
    with pytest.raises(LockLost):
        publications.publish(earlier)
    registered = revisions.registered_of_interval(publications.pinned.id)
    assert {each.revision for each in registered} == {f"r-{later}"}
    assert world.catalog == {(each.table, each.partition): each.location for each in registered}


@pytest.mark.parametrize("by", ["doctor", "publication"])
def test_catalog_has_the_later_build_when_a_repair_lost_its_lock_before_its_last_pointer(
    postgres: Home, publications: Publications, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    world, point_at = publications.world, MemoryCatalog.point_at
    earlier = publications.build({"2026-11-20": {A, B}, "2026-11-21": {C, D}})
    publications.publish(earlier)
    later = publications.build({"2026-11-20": {A, B, C, D}}, code="2")
    world.catalog.clear()
    found, last = [*check_tables(world.pipeline, deep=True)], iter([False, True])
    repair = {
        "doctor": lambda: doctor_repair.repair(found, lambda line: None),
        "publication": lambda: publications.publish(earlier),
    }[by]

    def freeze(catalog: MemoryCatalog, revision: BuiltRevision) -> None:
        if next(last):
            monkeypatch.setattr(MemoryCatalog, "point_at", point_at)
            with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
                end_lock(cursor, f"publish:{world.pipeline.name}:{hour(0).from_time.isoformat()}")
            publications.publish(later)
        point_at(catalog, revision)

    monkeypatch.setattr(MemoryCatalog, "point_at", freeze)
    with pytest.raises(LockLost):
        repair()
    registered = revisions.registered_of_interval(publications.pinned.id)
    assert {each.revision for each in registered} == {f"r-{later}"}
    assert world.catalog == {(each.table, each.partition): each.location for each in registered}


def test_registration_of_a_killed_publication_is_finished_when_the_next_build_of_its_interval_does_not_pass(
    publications: Publications,
) -> None:
    def die(point: str) -> None:
        raise Killed

    world, killed, later = publications.world, publications.build(), publications.build()
    publications.at_each_point = die
    with pytest.raises(Killed):
        publications.publish(killed)
    assert world.catalog == {}
    publications.at_each_point, world.suite_passes = lambda point: None, False
    with pytest.raises(ValidationFailed):
        publications.publish(later)
    assert [location.rsplit("/", 1)[1] for location in world.catalog.values()] == [f"r-{killed}"]
    assert builds.begun_registrations(world.pipeline.name) == []


@pytest.mark.parametrize("thrown", [PySparkException("value too long"), UsageError("another format")])
def test_interval_is_registered_when_the_begun_registration_of_another_one_cannot_be_finished(
    publications: Publications, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, thrown: Exception
) -> None:
    def die(point: str) -> None:
        raise Killed

    world, attempt, point_at = publications.world, publications.build(), MemoryCatalog.point_at
    publications.at_each_point = die
    with pytest.raises(Killed):
        publications.publish(attempt)
    publications.at_each_point = lambda point: None
    begun = f"interval={publications.pinned.interval.label}"

    def refuse(catalog: MemoryCatalog, revision: BuiltRevision) -> None:
        if revision.partition.endswith(begun):
            raise thrown
        point_at(catalog, revision)

    monkeypatch.setattr(MemoryCatalog, "point_at", refuse)
    with caplog.at_level("WARNING"):
        publications.pinned = publications.pin(1, 3, 6)
        publications.publish(publications.build())
    assert {partition.rsplit("/", 1)[1] for _, partition in world.catalog} == {f"interval={hour(1).label}"}
    assert "its begun registration cannot be finished: " in caplog.text
    assert str(thrown) in caplog.text
    with pytest.raises(type(thrown)):
        publications.publish(attempt)
    monkeypatch.setattr(MemoryCatalog, "point_at", point_at)
    publications.publish(attempt)
    assert builds.begun_registrations(world.pipeline.name) == []


def test_registered_rows_stay_when_a_rerun_is_refused_half_way_until_a_later_build_takes_its_place(
    publications: Publications, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world, point_at = publications.world, MemoryCatalog.point_at
    publications.publish(publications.build({"2026-11-20": {A, B}, "2026-11-21": {C, D}}))
    before = sorted(world.visible())
    refused = publications.build({"2026-11-20": {A, C}, "2026-11-21": {B}, "2026-11-22": {D}}, code="2")

    def refuse(catalog: MemoryCatalog, revision: BuiltRevision) -> None:
        if revision.revision == f"r-{refused}" and revision.partition.startswith("date=2026-11-21"):
            raise PySparkException("value too long")
        point_at(catalog, revision)

    monkeypatch.setattr(MemoryCatalog, "point_at", refuse)
    with pytest.raises(PySparkException, match="value too long"):
        publications.publish(refused)
    assert sorted(world.visible()) == before
    first, publications.pinned = publications.pinned, publications.pin(1, 3, 6)
    publications.publish(publications.build())
    assert [each for each in sorted(world.visible()) if each in before] == before
    # Doctor names the interval, but not while somebody publishes it.
    [found] = check_completeness(world.pipeline)
    assert (found.kind, found.interval) == ("registration not finished", first.interval)
    with locks.publishing(world.pipeline.name, first.interval):
        assert list(check_completeness(world.pipeline)) == []
    with pytest.raises(PySparkException, match="value too long"):
        publications.publish(refused)
    publications.pinned = first
    publications.publish(publications.build({"2026-11-20": {A, B}, "2026-11-22": {C, D}}, code="3"))
    assert "is given up for build" in caplog.text
    # As Airflow may, which tries its publication again.
    publications.publish(refused)
    label = first.interval.label
    rows = [
        (date, sorted(row for place, row in world.visible() if place == f"date={date}/interval={label}"))
        for date in ("2026-11-20", "2026-11-21", "2026-11-22")
    ]
    assert rows == [("2026-11-20", [A, B]), ("2026-11-21", []), ("2026-11-22", [C, D])]
    assert builds.begun_registrations(world.pipeline.name) == []
    assert list(check_completeness(world.pipeline)) == []


def test_nothing_is_begun_when_the_metastore_does_not_keep_the_path_of_a_partition(
    publications: Publications, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish_build, "LONGEST_PATH", 20, raising=False)
    with pytest.raises(UsageError, match="a path of 38 characters, and Hive's metastore keeps 20; nothing was reg"):
        publications.publish(publications.build({"2026-11-20": {A, B, C, D}}))
    assert builds.begun_registrations(publications.world.pipeline.name) == []
