"""An output's table in a real PostgreSQL and a real MariaDB: each row once, and what does not fit is refused alone."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from pyspark.sql import functions as F

from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError, UsageError
from include.ledger.archive import row_outputs
from include.ledger.archive.row_outputs import Unsent
from include.ledger.database import session
from include.ledger.models import MicroBatch
from include.ledger.outputs import targets
from include.ledger.outputs.targets import Reached
from include.ledger.streams import writers
from include.outputs.connection import database_of
from include.outputs.table import OutputTable
from include.pipelines import load_pipeline
from include.pipelines.spec import IDENTITY, DatabaseTable, Pipeline, Rows
from include.settings import settings
from spark_jobs.outputs.table import TableTarget
from spark_jobs.spark.frames import frame_of
from spark_jobs.streaming import row_outputs as sender
from spark_jobs.streaming.row_outputs import RowOutputs
from tests.conftest import Home, SetSettings
from tests.support import mariadb_server
from tests.support.committed import TP, commit
from tests.support.leases import held_lease

pytestmark = [pytest.mark.spark, pytest.mark.services]

COORDINATES = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT"
COLUMNS = (
    "name STRING, ok BOOLEAN, small TINYINT, n INT, much BIGINT, price DECIMAL(12, 3), at TIMESTAMP, day DATE, "
    "ratio DOUBLE, raw BINARY, tags ARRAY<STRING>, of STRUCT<a: INT, b: TIMESTAMP>"
)
SECRET = mariadb_server.SECRET


@dataclass
class Place:
    """A database that outputs write, and how a client of its own asks it."""

    kind: str
    ask: Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module", params=["postgresql", pytest.param("mariadb", marks=pytest.mark.slow)])
def place(postgres: Home, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A database that the connection `shop` reaches."""
    file = tmp_path_factory.mktemp("connections") / "jdbc.properties"

    def connected(url: str, user: str, password: str) -> None:
        file.write_text(f"shop.url={url}\nshop.user={user}\nshop.password={password}\n")
        file.chmod(0o600)
        settings.cache_clear()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIDEMARK_JDBC_PROPERTIES", str(file))
        # The lease is not renewed here.
        patch.setenv("TIDEMARK_LEASE_SECONDS", "600")
        if request.param == "mariadb":
            with mariadb_server.serving() as server:
                connected(server.url, "writer", SECRET)
                yield Place("mariadb", server.ask)
        else:
            own = settings().database("serving")
            connected(f"jdbc:postgresql://{own.host}:{own.port}/serving", str(own.username), str(own.password))
            uri = own.set(drivername="postgresql").render_as_string(hide_password=False)

            def ask(statement: str) -> list[tuple[Any, ...]]:
                connection = psycopg2.connect(uri, options="-c timezone=UTC")
                with connection, connection.cursor() as cursor:
                    cursor.execute(statement)
                    found = cursor.fetchall() if cursor.description else []
                connection.close()
                return found

            yield Place("postgresql", ask)
    settings.cache_clear()


def declared(name: str, columns: str = COLUMNS, connection: str = "shop") -> Pipeline:
    output = Rows(name, rows="made", columns=columns, to=DatabaseTable(connection))
    return replace(load_pipeline("isp_hits"), name="sold", outputs=(output,))


def target(pipeline: Pipeline, lease: writers.Lease) -> TableTarget:
    (output,) = pipeline.outputs
    assert isinstance(output.to, DatabaseTable)
    return TableTarget(pipeline, output, output.to, lease)


@pytest.fixture
def lease(place: Place) -> Iterator[writers.Lease]:
    with held_lease("sold") as held:
        yield held


def unsent(number: int) -> Unsent:
    return Unsent(number, (), {"log": "id-of-log"}, 1)


MOMENT = datetime(2026, 11, 20, 5, 0, 0, 123456)
GOOD: dict[str, Any] = {
    "name": "a",
    "ok": True,
    "small": 7,
    "n": 7,
    "much": 7,
    "price": Decimal("1.250"),
    "at": MOMENT,
    "day": MOMENT.date(),
    "ratio": 0.5,
    "raw": (b"\x00\xff"),
    "tags": ["x", None],
    "of": {"a": 1, "b": MOMENT},
}


def frame(spark: Any, rows: Sequence[dict[str, Any]], first: int = 0) -> Any:
    """Return rows of an output like `GOOD` with these changes, at consecutive offsets."""
    values = [(*{**GOOD, **row}.values(), "log", 0, first + n, 0) for n, row in enumerate(rows)]
    return frame_of(spark, values, f"{COLUMNS}, {COORDINATES}")


def test_value_of_every_type_comes_back_when_it_is_written_to_the_table(
    spark: Any, place: Place, lease: writers.Lease
) -> None:
    names = ["a", "Zoë 😀", "", "o'clock \\ %s {} \n", None]
    rows = [{"name": name} for name in names] + [dict.fromkeys(GOOD)]
    assert target(declared("typed"), lease).send(frame(spark, rows), unsent(1)) == (len(rows), [])
    found = place.ask("SELECT * FROM sold_typed ORDER BY kafka_offset")
    assert [row[0] for row in found] == [*names, None]
    assert found[-1][: len(GOOD)] == (None,) * len(GOOD)
    _, is_ok, small, n, much, price, at, day, ratio, raw, tags, of, *key = found[0]
    assert (bool(is_ok), small, n, much, price, day, ratio) == (True, 7, 7, 7, GOOD["price"], GOOD["day"], 0.5)
    assert at.replace(tzinfo=None) == MOMENT
    assert bytes(raw) == b"\x00\xff"
    as_json = [json.loads(each) if isinstance(each, str) else each for each in (tags, of)]
    assert as_json == [["x", None], {"a": 1, "b": "2026-11-20T05:00:00.123456Z"}]
    assert key == ["log", "id-of-log", 0, 0, 0]


def test_row_stays_one_and_takes_newer_values_when_it_is_written_again(
    spark: Any, place: Place, lease: writers.Lease
) -> None:
    pipeline = declared("again")
    to = target(pipeline, lease)
    assert to.send(frame(spark, [{"name": "a"}, {"name": "b"}]), unsent(1)) == (2, [])
    assert to.send(frame(spark, [{"name": "b2"}, {"name": "c"}], first=1), unsent(2)) == (2, [])
    assert place.ask("SELECT kafka_offset, name FROM sold_again ORDER BY 1") == [(0, "a"), (1, "b2"), (2, "c")]
    marker = place.ask("SELECT token, micro_batch, replay FROM tidemark_outputs WHERE output = 'sold.again'")
    assert marker == [(lease.token, 2, -1)]


def test_output_stops_when_two_rows_have_the_same_coordinates(spark: Any, place: Place, lease: writers.Lease) -> None:
    twice = frame(spark, [{"name": "a"}]).unionByName(frame(spark, [{"name": "b"}]))
    with pytest.raises(UsageError, match="more than one row for log-0 offset 0 row 0"):
        target(declared("twice"), lease).send(twice, unsent(1))
    assert place.ask("SELECT count(*) FROM sold_twice") == [(0,)]


def test_value_alone_is_refused_when_it_does_not_fit(spark: Any, place: Place, lease: writers.Lease) -> None:
    pipeline = declared("narrow")
    to = target(pipeline, lease)
    assert to.send(frame(spark, [{}]), unsent(1)) == (1, [])
    narrow = {
        "postgresql": "ALTER TABLE sold_narrow ALTER COLUMN name TYPE varchar(5), ADD CHECK (n < 100)",
        "mariadb": "ALTER TABLE sold_narrow MODIFY COLUMN name varchar(5), ADD CHECK (n < 100)",
    }
    place.ask(narrow[place.kind])
    rows: list[dict[str, Any]] = [{"name": f"ok{number}"} for number in range(40)]
    # A time that Python does not know reaches the database as a text.
    rows[7], rows[23], rows[24] = {"name": "too long"}, {"n": 100}, {"of": {"a": 1, "b": None}}
    far = F.when(F.col("kafka_offset") == 35, F.expr("make_timestamp(290000, 1, 1, 0, 0, 0)")).otherwise(F.col("at"))
    written, refused = to.send(frame(spark, rows, first=1).withColumn("at", far), unsent(2))
    wrong = [8, 24, 35]
    assert sorted(each.offset for each in refused) == wrong
    assert {each.reason for each in refused} == {"does_not_fit"}
    assert written == 40 - len(wrong)
    assert place.ask("SELECT count(*) FROM sold_narrow") == [(written + 1,)]


def test_text_alone_is_refused_when_it_is_too_long_for_an_index_of_the_table(
    spark: Any, place: Place, lease: writers.Lease
) -> None:
    if place.kind != "postgresql":
        pytest.skip("MariaDB has no index of a whole long text")
    to = target(declared("indexed"), lease)
    assert to.send(frame(spark, [{}]), unsent(1)) == (1, [])
    place.ask("CREATE INDEX ON sold_indexed (name)")
    rows = [{"name": "ok"}, {"name": secrets.token_hex(4_000)}, {"name": "also ok"}]
    written, refused = to.send(frame(spark, rows, first=1), unsent(2))
    assert (written, [each.offset for each in refused]) == (2, [2])
    assert refused[0].reason == "does_not_fit"
    assert "exceeds btree" in refused[0].detail


def test_older_driver_writes_nothing_when_a_newer_one_has_written(
    spark: Any, place: Place, lease: writers.Lease
) -> None:
    pipeline = declared("fenced")
    older = replace(lease, token=lease.token - 1)
    target(pipeline, lease).send(frame(spark, [{"name": "newer"}]), unsent(2))
    with pytest.raises(AnotherWriter, match="lease is over"):
        target(pipeline, older).send(frame(spark, [{"name": "older"}]), unsent(1))
    # A lease that is lost while the rows are written: nothing of them is committed.
    (output,) = pipeline.outputs
    assert isinstance(output.to, DatabaseTable)

    def lost() -> None:
        raise AnotherWriter("this driver's lease is over")

    table = OutputTable(pipeline, output, output.to, lease, lost)
    row = [*(None for _ in table.fields), "log", "id-of-log", 0, 9, 0]
    with pytest.raises(AnotherWriter):
        table.merge([row], unsent(3))
    assert place.ask("SELECT name FROM sold_fenced") == [("newer",)]
    # A recreated ledger has smaller tokens: that is reported, and nothing is overwritten.
    place.ask("UPDATE tidemark_outputs SET token = 1000000 WHERE output = 'sold.fenced'")
    with pytest.raises(TidemarkError, match=r"DELETE FROM tidemark_outputs WHERE output = 'sold\.fenced'"):
        target(pipeline, lease).send(frame(spark, [{"name": "new"}]), unsent(4))


def test_table_is_left_alone_when_it_is_somebody_else_s(spark: Any, place: Place, lease: writers.Lease) -> None:
    place.ask("CREATE TABLE sold_other (name varchar(20), kafka_offset bigint)")
    with pytest.raises(TidemarkError, match=r"ALTER TABLE .sold_other. ADD COLUMN .ok. boolean"):
        target(declared("other"), lease).send(frame(spark, [{}]), unsent(1))
    kinds = "name varchar(20), kafka_topic varchar(20), kafka_topic_id varchar(40), kafka_partition int, "
    place.ask(f"CREATE TABLE sold_keyed ({kinds} kafka_offset bigint PRIMARY KEY, kafka_element int)")
    with pytest.raises(TidemarkError, match="another primary key than the coordinates"):
        target(declared("keyed", "name STRING"), lease).send(frame(spark, [{}]).select("name", *IDENTITY), unsent(1))
    assert place.ask("SELECT count(*) FROM sold_keyed") == [(0,)]


def test_rows_of_both_are_kept_when_pipelines_of_different_topics_write_one_table(
    place: Place, lease: writers.Lease
) -> None:
    to = DatabaseTable("shop", table="sold_by_both")

    def written(pipeline: str, topic: str, held: writers.Lease, columns: str, *values: str) -> None:
        output = Rows("any", rows="made", columns=columns, to=to)
        declared = replace(load_pipeline("isp_hits"), name=pipeline, outputs=(output,))
        table = OutputTable(declared, output, to, held, lambda: None)
        rows = [[value, topic, f"id-of-{topic}", 0, number, 0] for number, value in enumerate(values)]
        assert table.merge(rows, unsent(1)) == (len(rows), [])

    with held_lease("bought") as other:
        written("sold", "log", lease, "name STRING", "a", "b")
        place.ask("ALTER TABLE sold_by_both ADD COLUMN buyer varchar(20)")
        written("bought", "purchases", other, "buyer STRING", "x", "y")
        # Written again, as after a kill.
        written("sold", "log", lease, "name STRING", "a", "b")
    found = place.ask("SELECT kafka_topic, kafka_offset, name, buyer FROM sold_by_both ORDER BY 1, 2")
    assert found == [
        ("log", 0, "a", None),
        ("log", 1, "b", None),
        ("purchases", 0, None, "x"),
        ("purchases", 1, None, "y"),
    ]


def test_output_stops_when_most_rows_do_not_fit(spark: Any, place: Place, lease: writers.Lease) -> None:
    pipeline = declared("broken", "name STRING")
    (output,) = pipeline.outputs
    assert isinstance(output.to, DatabaseTable)
    table = OutputTable(pipeline, output, output.to, lease, lambda: None)
    assert table.merge([["a", "log", "id-of-log", 0, 0, 0]], unsent(1)) == (1, [])
    place.ask("ALTER TABLE sold_broken ADD CHECK (kafka_offset < 5)")
    rows = [["a", "log", "id-of-log", 0, number, 0] for number in range(1, 1200)]
    with pytest.raises(TidemarkError, match=r"cannot send 1\d\d\d of"):
        table.merge(rows, unsent(2))
    assert place.ask("SELECT count(*) FROM sold_broken") == [(1,)]


def test_secret_is_not_told_when_the_database_refuses_or_is_away(
    place: Place, lease: writers.Lease, tmp_path: Path, set_settings: SetSettings
) -> None:
    scheme = {"postgresql": "postgresql", "mariadb": "mysql"}[place.kind]
    file = tmp_path / "jdbc.properties"
    for url in (f"jdbc:{scheme}://127.0.0.1:9/hits", settings_url(place)):
        file.write_text(f"shop.url={url}\nshop.user=nobody\nshop.password=told-{SECRET}\n")
        file.chmod(0o600)
        set_settings(TIDEMARK_JDBC_PROPERTIES=str(file))
        pipeline = declared("away", "name STRING")
        (output,) = pipeline.outputs
        assert isinstance(output.to, DatabaseTable)
        with pytest.raises(TidemarkError) as raised:
            OutputTable(pipeline, output, output.to, lease, lambda: None).merge([], unsent(1))
        assert isinstance(raised.value, ServiceUnreachable) == (":9/" in url or place.kind == "postgresql")
        assert SECRET not in str(raised.value)
        assert SECRET not in repr(database_of("shop"))
    file.write_text("shop.url=jdbc:oracle:thin:@db:1521/x\n")
    settings.cache_clear()
    with pytest.raises(UsageError, match="names no database that an output can write"):
        database_of("shop")
    file.write_text("shop.url=jdbc:postgresql://db/x?ssl=true\n")
    settings.cache_clear()
    with pytest.raises(UsageError, match="the parameter 'ssl'"):
        database_of("shop")
    file.write_text("")
    settings.cache_clear()
    with pytest.raises(UsageError, match=r"has no shop\.url"):
        database_of("shop")


def settings_url(place: Place) -> str:
    """The URL of the place."""
    database = database_of("shop")
    return f"jdbc:{database.kind}://{database.host}:{database.port}/{database.name}"


@dataclass
class Sold:
    """A pipeline with an output, and drivers that send what its archive has committed."""

    spark: Any
    lease: writers.Lease
    monkeypatch: pytest.MonkeyPatch
    committed: int = 0

    def __post_init__(self) -> None:
        def read(spark: Any, _: Pipeline, unsent: Unsent) -> Any:
            offsets = [n for each in unsent.ranges for n in range(each.from_offset, each.until_offset)]
            rows = [(f"row {n}", TP.topic, TP.partition, n, 0) for n in offsets]
            return frame_of(spark, rows, f"name STRING, {COORDINATES}")

        self.monkeypatch.setattr(sender, "read_unsent", read)
        self.monkeypatch.setattr(sender, "output_rows", lambda spark, pipeline, output, rows: rows)

    def send(self, name: str, rows: int, table: str = "") -> None:
        """Commit so many rows and let a driver send until nothing is left."""
        number = commit(self.lease.pipeline, self.committed, self.committed, self.committed + rows)
        self.committed += rows
        with session() as ledger:
            ledger.get_one(MicroBatch, number).rows = rows
        output = Rows(name, rows="made", columns="name STRING", to=DatabaseTable("shop", table=table))
        pipeline = replace(load_pipeline("isp_hits"), name=self.lease.pipeline, outputs=(output,))
        driver = RowOutputs(self.spark, pipeline, self.lease)
        driver.start()
        assert driver.end_sent(lambda: False)


@pytest.fixture
def sold(spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sold]:
    with held_lease(f"sold_{secrets.token_hex(3)}") as held:
        yield Sold(spark, held, monkeypatch)


@pytest.mark.parametrize("lost", ["restored", "dropped", "marker", "both"])
def test_no_row_is_missing_when_the_table_is_an_older_copy_or_made_anew(place: Place, sold: Sold, lost: str) -> None:
    table, of = f"{sold.lease.pipeline}_rows", f"output = '{sold.lease.pipeline}.rows'"
    sold.send("rows", 2)
    [(at,)] = place.ask(f"SELECT micro_batch FROM tidemark_outputs WHERE {of}")
    sold.send("rows", 3)
    if lost == "restored":
        place.ask(f"DELETE FROM {table} WHERE kafka_offset >= 2")
        place.ask(f"UPDATE tidemark_outputs SET micro_batch = {at} WHERE {of}")
    if lost in ("dropped", "both"):
        place.ask(f"DROP TABLE {table}")
    if lost in ("marker", "both"):
        place.ask(f"DELETE FROM tidemark_outputs WHERE {of}")
    sold.send("rows", 1)
    assert place.ask(f"SELECT kafka_offset, name FROM {table} ORDER BY 1") == [(n, f"row {n}") for n in range(6)]
    (state,) = row_outputs.states(sold.lease.pipeline, ["rows"])
    assert (state.rows, state.behind, state.waits_for) == (6, 0, "")


def test_rows_since_the_copy_alone_are_sent_again_when_the_ledger_was_restored(place: Place, sold: Sold) -> None:
    pipeline = sold.lease.pipeline
    table, of = f"{pipeline}_rows", f"output = '{pipeline}.rows'"
    sold.send("rows", 2)
    [(at,)] = place.ask(f"SELECT micro_batch FROM tidemark_outputs WHERE {of}")
    sold.send("rows", 3)
    place.ask(f"UPDATE {table} SET name = 'of the copy' WHERE kafka_offset < 2")
    # The ledger's copy is of the first send. Its tokens and micro-batches begin below those that the table has seen.
    targets.set_back(sold.lease, "rows", Reached(at))
    place.ask(f"UPDATE tidemark_outputs SET token = 1000000, micro_batch = micro_batch + 1000 WHERE {of}")
    with pytest.raises(TidemarkError, match="this one's ledger was restored or made anew") as refused:
        sold.send("rows", 1)
    [remedy] = re.findall(r"UPDATE tidemark_outputs .*?'.*?'", str(refused.value))
    place.ask(remedy)
    sold.send("rows", 1)
    again = [(n, f"row {n}") for n in range(2, 7)]
    assert place.ask(f"SELECT kafka_offset, name FROM {table} ORDER BY 1") == [
        (0, "of the copy"), (1, "of the copy"), *again
    ]  # fmt: skip
    assert place.ask(f"SELECT token, micro_batch < {at + 1000} FROM tidemark_outputs WHERE {of}") == [
        (sold.lease.token, True)
    ]
    (state,) = row_outputs.states(pipeline, ["rows"])
    assert (state.rows, state.behind, state.waits_for) == (7, 0, "")


def test_rows_of_all_are_sent_again_when_a_table_of_two_pipelines_is_dropped(
    spark: Any, place: Place, sold: Sold, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"shared_{sold.lease.pipeline}"
    held = writers.acquire(f"other_{secrets.token_hex(3)}")
    other = Sold(spark, held, monkeypatch, committed=100)
    try:
        sold.send("rows", 2, table)
        other.send("rows", 2, table)
        place.ask(f"DROP TABLE {table}")
        sold.send("rows", 1, table)
        other.send("rows", 1, table)
    finally:
        writers.release(held)
    offsets = [offset for (offset,) in place.ask(f"SELECT kafka_offset FROM {table} ORDER BY 1")]
    assert offsets == [0, 1, 2, 100, 101, 102]


def test_running_output_stops_when_its_table_is_replaced_by_an_older_copy(
    spark: Any, place: Place, lease: writers.Lease
) -> None:
    to = target(declared("replaced", "name STRING"), lease)

    def rows(offset: int) -> Any:
        return frame_of(spark, [("a", "log", 0, offset, 0)], f"name STRING, {COORDINATES}")

    assert to.reached() == Reached()
    to.send(rows(0), unsent(1))
    to.send(rows(1), unsent(2))
    place.ask("UPDATE tidemark_outputs SET micro_batch = 1 WHERE output = 'sold.replaced'")
    with pytest.raises(TidemarkError, match="sold_replaced was made anew, or is an older copy of itself"):
        to.send(rows(2), unsent(3))
    assert place.ask("SELECT count(*) FROM sold_replaced") == [(2,)]
    assert to.reached() == Reached(1)
    place.ask("DROP TABLE sold_replaced")
    with pytest.raises(TidemarkError):
        to.send(rows(1), unsent(2))
    assert to.reached() == Reached()


def test_output_waits_when_its_rows_were_sent_to_another_table(place: Place, sold: Sold) -> None:
    first, second = (f"{sold.lease.pipeline}_{name}" for name in ("first", "second"))
    sold.send("rows", 2, first)
    with pytest.raises(
        UsageError, match=f"has sent 2 rows to the table {first} of shop, .* the table {second} of shop"
    ):
        sold.send("rows", 1, second)
    assert "another name" in row_outputs.states(sold.lease.pipeline, ["rows"])[0].waits_for
    sold.send("rows", 1, first)
    assert place.ask(f"SELECT count(*) FROM {first}") == [(4,)]
    assert row_outputs.states(sold.lease.pipeline, ["rows"])[0].waits_for == ""


@pytest.mark.parametrize(
    ("narrow", "wide", "value"),
    [
        ("DECIMAL(10, 2)", "DECIMAL(14, 4)", Decimal("1.2345")),
        ("INT", "BIGINT", 5_000_000_000),
        ("DATE", "TIMESTAMP", MOMENT),
    ],
)
def test_output_waits_when_a_column_would_lose_values_until_it_is_altered(
    spark: Any, place: Place, lease: writers.Lease, narrow: str, wide: str, value: Any
) -> None:
    name = f"widened_{narrow[:3].lower()}"
    empty = frame_of(spark, [(None, "log", 0, 0, 0)], f"n {narrow}, {COORDINATES}")
    assert target(declared(name, f"n {narrow}"), lease).send(empty, unsent(1)) == (1, [])
    to = target(declared(name, f"n {wide}"), lease)
    full = frame_of(spark, [(value, "log", 0, 1, 0)], f"n {wide}, {COORDINATES}")
    with pytest.raises(TidemarkError, match=r"would lose values: the column n is .*, declared is ") as waits:
        to.send(full, unsent(2))
    place.ask(waits.value.remedy)
    assert to.send(full, unsent(2)) == (1, [])
    [(found,)] = place.ask(f"SELECT n FROM sold_{name} WHERE kafka_offset = 1")
    assert (found.replace(tzinfo=None) if isinstance(found, datetime) else found) == value
    # What holds more than is declared stays.
    assert target(declared(name, f"n {narrow}"), lease).send(empty, unsent(3)) == (1, [])
