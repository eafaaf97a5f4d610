"""What a publication puts into the Delta table besides its own rows; real ledger, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import psycopg2
import pytest
from delta.exceptions import ConcurrentAppendException
from pyspark.errors import AnalysisException
from sqlalchemy import update

from include import lake
from include.catalog import delta_view
from include.catalog.changes import CatalogChange
from include.doctor import open_tables
from include.errors import FileUnreadable, LockLost, ReconciliationFailed, ServiceUnreachable, TidemarkError
from include.ledger.database import session
from include.ledger.intervals import attempts, locks
from include.ledger.intervals.revisions import left_out_of_delta
from include.ledger.models import Revision
from include.ledger.streams import writers
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.archive import delta as archive_delta
from spark_jobs.erasure import delta as erasure
from spark_jobs.publication import damaged, delta, delta_versions, repair
from tests.conftest import Home, wait_for
from tests.support.attempts import build_and_register, hour, note_build
from tests.support.ledger_faults import end_lock
from tests.support.ledger_world import MemoryCatalog

pytestmark = pytest.mark.services


class Table:
    """A Delta table that notes what is done to it."""

    def __init__(self, pipeline: Pipeline, patch: pytest.MonkeyPatch) -> None:
        self.pipeline, self.done = pipeline, list[Any]()
        self.at_replace: Callable[[], None] = lambda: None
        self.at_pin: Callable[[], None] = lambda: None
        self.damaged: dict[str, list[str]] = {}
        self.hashed: list[str] = []
        self.files_of: dict[str, Sequence[str]] = {}
        for name, value in {
            "ensure_table": lambda *_: None,
            "latest_version": lambda *_: len(self.done),
            "has_foreign_writes": lambda *_: False,
            "pinned_version": lambda *_: 0,
            "_replace": self._replace,
            "pin_view": self._pin_view,
        }.items():
            patch.setattr(delta, name, value)
        patch.setattr(damaged, "damaged_files", self._damaged_files)
        patch.setattr(delta_view, "commit_id", lambda *_: "of the view")

    def _replace(
        self, _spark: Any, _pipeline: Any, condition: str, _delivered: Any, files: Sequence[str], _said: Any
    ) -> int:
        self.done.append(condition)
        self.files_of[condition] = files
        version = len(self.done)
        self.at_replace()
        return version

    def _damaged_files(self, location: str, _noted: Any, *, deep: bool) -> list[str]:
        if deep:
            self.hashed.append(location)
        return self.damaged.get(location, [])

    def _pin_view(self, _spark: Any, _pipeline: Any, version: int) -> None:
        self.at_pin()
        self.done.append(version)

    def register(self, number: int) -> int:
        attempt = build_and_register(self.pipeline.name, hour(number))
        with session() as ledger:
            own = update(Revision).where(Revision.attempt_id == attempt)
            ledger.execute(own.values(location=f"file:///nowhere/{number}"))
        return attempt

    def publish(self, attempt: int) -> None:
        run: Any = SimpleNamespace(spark=None, pipeline=self.pipeline, attempt=attempts.load_attempt(attempt))
        run.pinned = run.attempt.pinned
        delta.publish_delta(run, lambda: None)


@pytest.fixture
def table(postgres: Home, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Table:
    return Table(replace(load_pipeline("gps_positions"), name=request.node.name[:60]), monkeypatch)


def test_rows_of_a_killed_publication_are_put_into_the_table_when_another_interval_is_published(table: Table) -> None:
    for number in (2, 0, 1):
        table.register(number)
    table.publish(table.register(3))
    intervals = [f"interval = '{hour(number).label}'" for number in range(4)]
    assert table.done == [*intervals, 4]
    assert left_out_of_delta(table.pipeline.name) == []
    table.publish(table.register(4))
    assert table.done[5:] == [f"interval = '{hour(4).label}'", 6]


@pytest.mark.parametrize("published", [1, 2])
def test_commit_of_a_killed_publication_is_not_foreign_when_records_are_erased(
    table: Table, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    for _ in range(published):
        table.register(0)
    done: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: done.append(name)

    names = ("restore_rows", "delete_records", "write_checkpoint", "pin_view", "delete_older_files", "forget_values")
    for name in names:
        monkeypatch.setattr(erasure, name, note(name))
    monkeypatch.setattr(erasure, "pinned_version", lambda *_: 0)
    monkeypatch.setattr(erasure, "latest_version", lambda *_: 1)
    # Version 1 has that interval's rows.
    monkeypatch.setattr(erasure, "has_foreign_writes", lambda *arguments: hour(0).label not in arguments[-1])
    lease = writers.acquire(table.pipeline.name)
    spark: Any = None
    try:
        erasure.erase_from_delta(spark, table.pipeline, 0, lease)
    finally:
        writers.release(lease)
    # Of two builds that were not noted, the commit may have the former one's rows.
    assert done == [*names[published == 1 :]]


def test_rows_of_all_intervals_are_put_into_the_table_at_once_when_it_lacks_many(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "ONE_BY_ONE", 2)
    for number in range(2):
        table.register(number)
    table.publish(table.register(2))
    assert table.done == ["interval IS NOT NULL", 1]
    assert left_out_of_delta(table.pipeline.name) == []


def test_doctor_puts_the_rows_into_the_table_when_nothing_else_is_published(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.register(0)
    found = list(open_tables.check_delta_table(table.pipeline))
    assert [(each.repair, each.interval) for each in found] == [("put into Delta", hour(0))]
    changes = [CatalogChange(each.pipeline, each.table, "", "put into Delta") for each in found]
    world: Any = SimpleNamespace(catalog={})
    monkeypatch.setattr(repair, "load_pipeline", lambda _: table.pipeline)
    monkeypatch.setattr(repair, "check_storage", lambda _: None)
    monkeypatch.setattr(repair, "Catalog", MemoryCatalog)
    for _ in range(2):
        repair.repair(world, changes)
        assert table.done == [f"interval = '{hour(0).label}'", 1]
    assert list(open_tables.check_delta_table(table.pipeline)) == []


def test_doctor_pins_the_view_when_it_is_missing_or_shows_an_earlier_version(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, in_catalog = table.pipeline.delta_view, dict[str, dict[str, str]]()
    monkeypatch.setattr(delta_view, "properties", lambda *_: in_catalog)
    assert list(open_tables.check_delta_table(table.pipeline)) == []
    table.publish(table.register(0))
    found: tuple[tuple[dict[str, dict[str, str]], str], ...] = (
        ({}, "is missing"),
        ({view: {}}, "shows version -1, but 1 was published"),
        ({view: {"tidemark.version": "0"}}, "shows version 0, but 1 was published"),
    )
    nothing: Any = None
    for now, lags in found:
        in_catalog = now
        (lag,) = open_tables.check_delta_table(table.pipeline)
        assert (lag.what, lag.repair) == (f"the view lake.{view} {lags}", "put into Delta")
        delta.put_left_out(nothing, table.pipeline)
    in_catalog = {view: {"tidemark.version": "1"}}
    assert list(open_tables.check_delta_table(table.pipeline)) == []
    delta.put_left_out(nothing, table.pipeline)
    # Its own, and one for each repair.
    assert table.done[1:] == [1, 2, 3, 4]


def test_doctor_pins_the_view_when_the_table_was_put_back_from_a_copy_or_its_folder_is_gone(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    view, shown = table.pipeline.delta_view, {"tidemark.version": "1"}
    monkeypatch.setattr(delta_view, "properties", lambda *_: {view: shown})
    table.publish(table.register(0))
    gone = f"the view lake.{view} shows version 1, which is gone, or is another commit by now"
    for noted, now, expected in (
        ("1", "1", []),
        ("1", "2", [gone]),
        ("1", None, [gone]),
        # Earlier code noted none.
        (None, "1", []),
        (None, None, [gone]),
    ):
        shown.pop("tidemark.commit", None)
        shown.update({"tidemark.commit": noted} if noted else {})
        monkeypatch.setattr(delta_view, "commit_id", lambda *_, now=now: now)
        assert [each.what for each in open_tables.check_delta_table(table.pipeline)] == expected


@pytest.mark.parametrize(("noted", "version"), [("a", 1), ("b", None), (None, 1)])
def test_version_is_not_the_view_s_when_the_table_that_was_put_back_has_another_commit(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, noted: str | None, version: int | None
) -> None:
    pipeline = replace(load_pipeline("gps_positions"), name="put_back")
    log = f"{lake.uri('delta', pipeline.name)}/_delta_log"
    commit = '{"commitInfo":{"timestamp":1,"txnId":"a"}}\n{"add":{"stats":"commitInfo"}}\n'
    lake.write_text(f"{log}/{1:020}.json", commit)
    said = {"tidemark.table": "id", "tidemark.version": "1", **({"tidemark.commit": noted} if noted else {})}
    spark: Any = SimpleNamespace(
        catalog=SimpleNamespace(tableExists=lambda _: True),
        sql=lambda _: SimpleNamespace(collect=lambda: [{"key": key, "value": said[key]} for key in said]),
    )
    monkeypatch.setattr(delta_versions, "table_id", lambda *_: "id")
    assert delta_versions.pinned_version(spark, pipeline) == version
    # The copy is older than the view.
    lake.delete(log)
    assert delta_versions.pinned_version(spark, pipeline) is None


@pytest.mark.parametrize(
    ("metadata", "is_put_alone"),
    [
        ("tidemark", True),
        (f'{{"tidemark.interval":"{hour(0).label}"}}', True),
        (f'{{"tidemark.interval":"{hour(1).label}"}}', True),
        (f'{{"tidemark.interval":"{hour(2).label}"}}', False),
        (f'{{"tidemark.interval":"{hour(0).label}","tidemark.restored":"all registered intervals"}}', False),
        ("another's", False),
    ],
)
def test_rows_of_all_intervals_are_put_again_when_a_ledger_that_was_lost_wrote_others_after_the_view_s_version(
    table: Table, monkeypatch: pytest.MonkeyPatch, metadata: str, *, is_put_alone: bool
) -> None:
    """PostgreSQL was restored from a copy. An interval whose publication was killed is put there again."""
    commits = [{"version": 1, "operation": "WRITE", "userMetadata": metadata}]
    frame = SimpleNamespace(select=lambda *_: SimpleNamespace(collect=lambda: commits))
    history = SimpleNamespace(forPath=lambda *_: SimpleNamespace(history=lambda _: frame))
    monkeypatch.setattr(delta_versions, "DeltaTable", history)
    monkeypatch.setattr(delta, "has_foreign_writes", delta_versions.has_foreign_writes)
    table.done.append("of the lost ledger")
    table.register(1)
    table.damaged["file:///nowhere/1"] = ["file missing: a.parquet"]
    commits += [{"version": 2, "operation": "WRITE", "userMetadata": "tidemark"}]
    table.publish(table.register(0))
    assert table.done[1:] == [f"interval = '{hour(0).label}'" if is_put_alone else "interval IS NOT NULL", 2]


@pytest.mark.parametrize("is_built_again", [False, True])
def test_doctor_has_nothing_to_say_of_versions_after_it_pinned_a_table_that_was_made_anew(
    table: Table, monkeypatch: pytest.MonkeyPatch, is_built_again: bool
) -> None:
    shown: dict[str, str] = {}
    monkeypatch.setattr(delta_view, "properties", lambda *_: {table.pipeline.delta_view: shown})
    table.done += ["append"] * 40
    table.publish(attempt := table.register(0))
    if is_built_again:
        # The build is rejected, or waits for a person.
        note_build(attempt)
    table.done.clear()
    nothing: Any = None
    shown["tidemark.version"] = "0"
    delta.put_left_out(nothing, table.pipeline)
    shown["tidemark.version"] = str(table.done[-1])
    assert list(open_tables.check_delta_table(table.pipeline)) == []


def test_doctor_names_many_intervals_at_once_when_the_table_lacks_them(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_tables, "MANY", 1)
    for number in range(2):
        table.register(number)
    (found,) = open_tables.check_delta_table(table.pipeline)
    view = f"lake.{table.pipeline.name}_delta"
    assert found.what == f"{view} lacks the registered rows of 2 intervals, the first of them {hour(0)}"


def test_rows_are_put_again_when_the_lock_is_lost_as_they_are_written(table: Table, postgres: Home) -> None:
    attempt = table.register(0)
    table.publish(attempt)
    table.done.clear()

    def lose_lock() -> None:
        table.at_replace = lambda: None
        end_delta_lock(table, postgres)

    table.at_replace = lose_lock
    with pytest.raises(LockLost):
        table.publish(attempt)
    assert table.done == [f"interval = '{hour(0).label}'", f"interval = '{hour(0).label}'", 2]
    assert left_out_of_delta(table.pipeline.name) == []


def test_view_stays_and_rows_are_still_to_come_when_the_ledger_is_away_after_the_lock_was_lost(
    table: Table, postgres: Home
) -> None:
    attempt = table.register(0)
    table.publish(attempt)
    table.done.clear()

    def lose_ledger() -> None:
        raise ServiceUnreachable("away")

    def lose_lock() -> None:
        table.at_replace = lose_ledger
        end_delta_lock(table, postgres)

    table.at_replace = lose_lock
    with pytest.raises(LockLost):
        table.publish(attempt)
    assert table.done == [f"interval = '{hour(0).label}'"] * 2
    assert [each.interval for each in left_out_of_delta(table.pipeline.name)] == [hour(0)]


def test_view_shows_another_publication_when_the_lock_is_lost_as_the_view_is_pinned(
    table: Table, postgres: Home
) -> None:
    first, second = table.register(0), table.register(1)

    def freeze() -> None:
        table.at_pin = lambda: None
        end_delta_lock(table, postgres)
        table.publish(second)

    table.at_pin = freeze
    with locks.attempt_under_way(table.pipeline.name, hour(1)), pytest.raises(LockLost):
        table.publish(first)
    shown = [each for each in table.done if isinstance(each, int)]
    assert shown[-1] > table.done.index(f"interval = '{hour(1).label}'")
    assert left_out_of_delta(table.pipeline.name) == []


def test_view_shows_the_own_commit_when_another_one_follows_at_once(table: Table) -> None:
    """A publication that lost its lock writes an earlier build's rows."""
    table.at_replace = lambda: table.done.append("late")
    table.publish(table.register(0))
    assert table.done == [f"interval = '{hour(0).label}'", "late", 1]


@pytest.mark.parametrize(("most", "is_foreign"), [(20, False), (0, False), (0, True)])
def test_others_are_published_when_a_registered_file_of_an_interval_that_was_left_out_is_damaged(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, most: int, is_foreign: bool
) -> None:
    monkeypatch.setattr(delta, "ONE_BY_ONE", most)
    monkeypatch.setattr(delta, "pinned_version", lambda *_: None if is_foreign else 0)
    table.register(0)
    table.damaged["file:///nowhere/0"] = ["file missing: a.parquet"]
    table.publish(table.register(1))
    # What the table has of it was validated, unless somebody else may have changed it.
    whole = "interval IS NOT NULL" + ("" if is_foreign else f" AND interval NOT IN ('{hour(0).label}')")
    condition = f"interval = '{hour(1).label}'" if most else whole
    assert table.done == [condition, 1]
    assert table.files_of == {condition: ["file:///nowhere/1/a.parquet"]}
    assert [each.interval for each in left_out_of_delta(table.pipeline.name)] == [hour(0)]
    assert f"{hour(0)} stays left out of the Delta table: {table.pipeline.table}" in caplog.text


@pytest.mark.parametrize("path", ["0", "1"])
def test_only_files_that_cannot_be_read_are_hashed_when_the_table_lacks_many_intervals(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    monkeypatch.setattr(delta, "ONE_BY_ONE", 1)
    monkeypatch.setattr(delta, "unread_file", lambda _: f"file:///nowhere/{path}/a.parquet")
    for number in range(2):
        table.register(number)

    def fail() -> None:
        table.damaged["file:///nowhere/0"] = ["changed content: a.parquet"]
        table.at_replace = lambda: None
        raise AnalysisException("damaged")

    own, table.at_replace = table.register(2), fail
    if path == "0":
        table.publish(own)
        assert table.done[1:] == [f"interval IS NOT NULL AND interval NOT IN ('{hour(0).label}')", 2]
        assert [each.interval for each in left_out_of_delta(table.pipeline.name)] == [hour(0)]
        assert f"{hour(0)} stays left out of the Delta table" in caplog.text
    else:
        # Nothing is wrong with the file of the other: the store may not have answered.
        with pytest.raises(AnalysisException):
            table.publish(own)
    assert table.hashed == [f"file:///nowhere/{path}"]


def test_error_says_that_the_interval_is_registered_when_its_file_cannot_be_read(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = ReconciliationFailed("tables/a.parquet is missing; nothing was registered")
    monkeypatch.setattr(delta, "translate", lambda _: refused)

    def fail() -> None:
        raise AnalysisException("no such path")

    attempt, table.at_replace = table.register(0), fail
    lacks = "is registered, but the Delta table lacks its rows: tables/a.parquet is missing"
    with pytest.raises(FileUnreadable) as raised:
        table.publish(attempt)
    assert raised.value.message == f"{hour(0)} {lacks}"
    nothing: Any = None
    with pytest.raises(FileUnreadable) as raised:
        delta.put_left_out(nothing, table.pipeline)
    assert raised.value.message == f"an interval {lacks}"


def test_lost_lock_is_raised_when_a_file_cannot_be_read_as_rows_are_put_again(
    table: Table, postgres: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused = ReconciliationFailed("tables/a.parquet is missing; nothing was registered")
    monkeypatch.setattr(delta, "translate", lambda _: refused)

    def fail() -> None:
        raise AnalysisException("no such path")

    def lose_lock() -> None:
        table.at_replace = fail
        end_delta_lock(table, postgres)

    attempt, table.at_replace = table.register(0), lose_lock
    with pytest.raises(LockLost):
        table.publish(attempt)
    assert "was not written again after a lock was lost: tables/a.parquet is missing" in caplog.text
    assert "nothing was registered" not in caplog.text
    assert [each.interval for each in left_out_of_delta(table.pipeline.name)] == [hour(0)]


def test_nothing_is_written_when_another_has_put_what_was_left_out(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "pinned_version", lambda *_: None)
    found = iter([[None], []])
    monkeypatch.setattr(delta.revisions, "left_out_of_delta", lambda *_: next(found))
    nothing: Any = None
    delta.put_left_out(nothing, table.pipeline)
    assert table.done == []


def test_view_stays_and_its_noted_version_is_an_earlier_one_when_a_kill_comes_as_it_is_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark would replace a view by dropping it."""
    said: list[str] = []

    def execute(statement: str) -> Any:
        if not statement.startswith("SELECT"):
            said.append(statement)
        return SimpleNamespace(columns=["speed", "interval"])

    spark: Any = SimpleNamespace(sql=execute, catalog=SimpleNamespace(tableExists=lambda _: bool(said)))
    monkeypatch.setattr(delta_versions, "table_id", lambda *_: "id")
    monkeypatch.setattr(delta_versions, "archive_schema", lambda _: SimpleNamespace(names=["speed"]))
    monkeypatch.setattr(delta_versions, "commit_id", lambda _, version: f"commit {version}")
    for version in (3, 4):
        delta_versions.pin_view(spark, load_pipeline("gps_positions"), version)
    created, rows, properties = said
    assert created.startswith(
        "CREATE VIEW lake.gps_positions_delta TBLPROPERTIES ('tidemark.table' = 'id', 'tidemark.commit' = 'commit 3', "
    )
    assert rows == f"ALTER VIEW lake.gps_positions_delta AS {created.split(' AS ', 1)[1]}".replace(" OF 3 ", " OF 4 ")
    assert properties.startswith("ALTER VIEW lake.gps_positions_delta SET TBLPROPERTIES (")
    assert properties.endswith("'tidemark.version' = '4')")


def test_view_shows_the_columns_that_the_version_has_when_the_archive_gained_others_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An erasure pins the view of a table that is no longer declared, and gets no column any more."""
    gps = load_pipeline("gps_positions")
    columns = gps.archive.columns.replace("speed", "velocity")
    archive = replace(gps.archive, delta=False, rules=(), columns=f"{columns}, lane INT", renamed={"velocity": "speed"})
    said: list[str] = []

    def execute(statement: str) -> Any:
        said.append(statement)
        return SimpleNamespace(columns=["deviceId", "speed", "somebody_elses", "interval"])

    spark: Any = SimpleNamespace(sql=execute, catalog=SimpleNamespace(tableExists=lambda _: False))
    monkeypatch.setattr(delta_versions, "table_id", lambda *_: "id")
    monkeypatch.setattr(delta_versions, "commit_id", lambda *_: "commit")
    declared = SimpleNamespace(names=["deviceId", "velocity", "lane"])
    monkeypatch.setattr(delta_versions, "archive_schema", lambda _: declared)
    delta_versions.pin_view(spark, replace(gps, archive=archive, views=(), flags=None, reports=()), 3)
    assert " AS SELECT `deviceId`, `speed`, `interval` FROM delta." in said[-1]


def end_delta_lock(table: Table, postgres: Home, kind: str = "delta") -> None:
    with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
        end_lock(cursor, f"{kind}:{table.pipeline.name}")


def replace_after_an_append(table: Table, patch: pytest.MonkeyPatch, again: Callable[[], None]) -> int | None:
    """Replace rows of the table, which an append hinders once; `again` is done in place of the next try."""

    def lose(*_: Any, **__: Any) -> None:
        raise ConcurrentAppendException("an append came first")

    patch.setattr(archive_delta, "_write_once", lose)
    patch.setattr(archive_delta, "_write", lambda *_, **__: again())
    conf = SimpleNamespace(unset=lambda _: None, get=lambda *_: "7")
    rows: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=conf))
    return archive_delta.replace_rows(table.pipeline, "true", rows, {})


def test_stream_waits_with_its_append_when_a_publication_lost_to_one(
    table: Table, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    def append() -> None:
        locks.await_replaced_rows(table.pipeline.name)
        done.append("appended")

    stream = threading.Thread(target=append)

    def replace_rows() -> None:
        stream.start()
        wait_for("the append to wait", lambda: "waiting: rows are being replaced in the Delta table" in caplog.text)
        done.append("replaced")

    assert replace_after_an_append(table, monkeypatch, replace_rows) == 7
    stream.join()
    assert done == ["replaced", "appended"]


def test_lost_lock_is_raised_when_the_ledger_goes_away_while_a_stream_waits(
    table: Table, postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LockLost):
        replace_after_an_append(table, monkeypatch, lambda: end_delta_lock(table, postgres, "delta rows"))


def test_publication_names_the_table_when_others_keep_appending(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose() -> None:
        raise ConcurrentAppendException("an append came first")

    with pytest.raises(TidemarkError, match=f"somebody else keeps changing .*/delta/{table.pipeline.name}: its view"):
        replace_after_an_append(table, monkeypatch, lose)


def test_stream_appends_when_the_ledger_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fail(*what: Any, **_: Any) -> Any:
        asked.append(what)
        raise ServiceUnreachable("away")

    monkeypatch.setattr(locks, "held_lock", fail)
    locks.await_replaced_rows("gps_positions")
    assert len(asked) == 1


def test_rows_of_another_pipeline_are_left_out_when_all_are_put_into_the_table_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A view of it had the archive's table before."""
    asked: list[tuple[str, str | None]] = []

    def registered(table: str, partition: str | None = None, *, pipeline: str | None = None) -> list[Any]:
        assert partition is None
        asked.append((table, pipeline))
        return []

    monkeypatch.setattr(delta.revisions, "registered", registered)
    monkeypatch.setattr(delta, "_replace", lambda *_: None)
    nothing: Any = None
    delta.restore_rows(nothing, load_pipeline("isp_hits"), {})
    assert asked == [("isp_hits", "isp_hits")]
