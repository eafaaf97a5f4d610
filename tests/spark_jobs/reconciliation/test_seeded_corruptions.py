"""The reconciliation is itself proved: twelve corruptions seeded into a real home, each found and named.

| corruption                      | where it is seeded                            | found by                          |
|---------------------------------|-----------------------------------------------|-----------------------------------|
| row dropped                     | landing file                                  | archive against Kafka; ledger     |
| row doubled                     | landing file                                  | archive against Kafka; ledger     |
| file doubled                    | landing file copied, ledger row doubled       | archive against Kafka; ledger     |
| file doubled                    | registered location                           | publish, which points elsewhere   |
| payloads swapped                | landing file                                  | archive against Kafka             |
| byte flipped                    | a value of a landing file; the file's bytes   | archive against Kafka; the reader |
| offset shifted                  | landing file                                  | archive against Kafka             |
| aborted record let in           | landing file                                  | archive against Kafka             |
| window off by one               | batch view; both of the batch's sides; topic  | views                             |
| stale revision registered       | catalog                                       | publish, which points elsewhere   |
| missing speed value             | compacted topic                               | views                             |
| hour merged by a time zone      | batch view                                    | views                             |
| late row miscounted             | the ledger's watermark; batch view            | views                             |
| row lost or altered in writing  | the file of a revision, before it is read     | written files against what was    |
|                                 | back                                          | reconciled                        |
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import kafka, lake
from include.errors import ServiceUnreachable, UsageError
from include.intervals.pinning import pin_interval
from include.kafka import fenced_producer
from include.ledger.archive import landing_files
from include.ledger.intervals import attempts
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.streams import written_topics
from include.times import Interval
from include.versions import code_version
from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.transactions import all_offsets, good_messages, transactional_producer, write_transaction

pytestmark = [pytest.mark.services, pytest.mark.spark]

TOPIC, STATS = "nest-logs", "nest-camera-stats"
START = last_hours(3)
PIPELINE = load_pipeline("nest_cameras")
WRITTEN = "written files against reconciled rows"
OWN_COLUMNS = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_element")

Row = dict[str, Any]
Edit = Callable[[list[Row]], None]


@dataclass
class Seeded:
    """A home with aborted transactions and late rows, and its last interval, reconciled in this process."""

    home: Home
    spark: Any
    pinned: PinnedInterval
    aborted: list[tuple[str, int, int]]
    clean: dict[str, Any] = field(default_factory=dict)
    """The verdict while nothing is corrupted."""

    def reconcile(self, source: str = "kafka") -> dict[str, Any]:
        from spark_jobs.intervals.build import build
        from spark_jobs.reconciliation.interval_run import IntervalRun

        self.spark.catalog.clearCache()
        attempt = attempts.begin_attempt(
            self.pinned, run_by="test", code_version=code_version(PIPELINE.name), source=source
        )
        build(IntervalRun(self.spark, PIPELINE, attempts.load_attempt(attempt)))
        return attempts.load_attempt(attempt).findings.as_json()

    def unexplained(self, source: str = "kafka") -> list[dict[str, str]]:
        verdict = self.reconcile(source)
        named = [d for d in verdict["differences"] if d["class"] == "unexplained"]
        assert bool(named) == bool(verdict["reconciliation"]["unexplained"])
        return named

    def is_inside(self, row: Row) -> bool:
        return any(
            r.topic_partition.partition == row["kafka_partition"]
            and r.from_offset <= row["kafka_offset"] < r.until_offset
            for r in self.pinned.ranges
        )

    @property
    def file(self) -> Path:
        """The landing file with most rows of the interval."""
        paths = landing_files.files_covering(PIPELINE.name, self.pinned.ranges, "archived")
        files = [Path(lake.uri(path).removeprefix("file://")) for path in paths]
        return max(files, key=lambda path: sum(map(self.is_inside, pq.ParquetFile(path).read().to_pylist())))

    @contextmanager
    def edited(self, edit: Edit) -> Iterator[None]:
        """The landing file with other rows, as a writer would have written it."""
        path = self.file
        original, table = path.read_bytes(), pq.ParquetFile(path).read()
        checksum = path.with_name(f".{path.name}.crc")
        checked = checksum.read_bytes()
        rows = table.to_pylist()
        edit(rows)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
        checksum.unlink()
        try:
            yield
        finally:
            path.write_bytes(original)
            checksum.write_bytes(checked)

    @contextmanager
    def ledger(self, statement: str, undo: str) -> Iterator[None]:
        self.home.ledger(statement)
        try:
            yield
        finally:
            self.home.ledger(undo)

    def emit(self, key: str, value: bytes | None) -> None:
        producer = self.home.producer()
        # Where the stream's producer put the key, regardless of this producer's partitioner.
        coordinates = next(
            c for c, record in audit.read_topic(self.home.kafka, STATS).items() if record.key == key.encode()
        )
        producer.produce(STATS, value, key.encode(), partition=coordinates[1])
        producer.flush(30)


@pytest.fixture(scope="module")
def seeded(in_process: Home, spark: Any) -> Seeded:
    """Two rounds over the same three hours, the second one late; a third of its transactions aborted."""
    home = in_process
    home.produce("nest_cameras", 1200, START, "3h", bad=0.02)
    home.run("stream", "nest_cameras", "--until-caught-up")
    written = list(good_messages(900, START, timedelta(minutes=179), seed=2))
    producer = transactional_producer(home.kafka, "cameras")
    for number in range(0, 900, 30):
        write_transaction(producer, TOPIC, written[number : number + 30], end="abort" if number % 90 == 0 else "commit")
    home.run("stream", "nest_cameras", "--until-caught-up")
    last = START + timedelta(hours=2)
    pinned = pin_interval(PIPELINE, Interval(last, last + timedelta(hours=1)), pinned_by="test")
    aborted = all_offsets(home.kafka, TOPIC) - audit.read_topic(home.kafka, TOPIC).keys()
    found = Seeded(home, spark, pinned, sorted(aborted))
    found.clean = found.reconcile()
    assert found.clean["reconciliation"]["unexplained"] == 0
    assert found.clean["reconciliation"]["late"] > 0
    assert found.clean["records"]["gaps"] > len(aborted) > 0
    return found


def place(row: Row) -> str:
    return f"{row['kafka_topic']}-{row['kafka_partition']} offset {row['kafka_offset']} row {row['kafka_element']}"


def test_offset_is_named_when_a_landing_file_is_corrupt(seeded: Seeded) -> None:
    """All at once: a row dropped and a row doubled leave the counts as they were."""
    seen: dict[str, list[Row]] = {}
    records = {coordinates[1:] for coordinates in audit.read_topic(seeded.home.kafka, TOPIC)}

    def corrupt(rows: list[Row]) -> None:
        # Records without rows: at an offset without a record, the second reader would be asked.
        free = records - {(row["kafka_partition"], row["kafka_offset"]) for row in rows}
        # The first row of each record: by it the record's fate is counted.
        inside = [row for row in rows if seeded.is_inside(row) and row["kafka_element"] == 0]
        shifted = next(row for row in inside if (row["kafka_partition"], row["kafka_offset"] + 1) in free)
        dropped, doubled, flipped, one, *others = (row for row in inside if row is not shifted)
        other = next(row for row in others if row["device_id"] != one["device_id"])
        let_in = {**doubled, "kafka_element": 0} | dict(
            zip(("kafka_topic", "kafka_partition", "kafka_offset"), seeded.aborted[0], strict=True)
        )
        seen.update(dropped=[dropped], doubled=[doubled], let_in=[let_in], swapped=[dict(one), dict(other)])
        rows.remove(dropped)
        rows += [doubled, let_in]
        flipped["where_id"] = flipped["where_id"][:-1] + chr(ord(flipped["where_id"][-1]) ^ 1)
        for name in one.keys() - set(OWN_COLUMNS):
            one[name], other[name] = other[name], one[name]
        seen.update(flipped=[flipped], shifted=[dict(shifted)])
        shifted["kafka_offset"] += 1
        seen["shifted"].append(shifted)

    with seeded.edited(corrupt):
        found = seeded.unexplained()
        again = seeded.unexplained("archive")
    evidence = {d["where"]: d["evidence"] for d in found}
    places = {kind: [place(row) for row in rows] for kind, rows in seen.items()}
    # The views' keys whose counts these rows change are named, too.
    assert {where for where in evidence if not where.startswith("{")} == {
        each for kind in places.values() for each in kind
    }
    assert evidence[places["dropped"][0]] == "in Kafka once, in the archive 0 times"
    assert evidence[places["doubled"][0]] == "in Kafka once, in the archive 2 times"
    assert "in both, with different values: where_id: Kafka" in evidence[places["flipped"][0]]
    assert evidence[places["shifted"][0]] == "in Kafka once, in the archive 0 times"
    assert evidence[places["shifted"][1]] == "in Kafka 0 times, in the archive once"
    one, other = seen["swapped"]
    for row, foreign in ((one, other), (other, one)):
        assert f"device_id: Kafka '{row['device_id']}', archive '{foreign['device_id']}'" in evidence[place(row)]
    assert "in Kafka 0 times, in the archive once" in evidence[places["let_in"][0]]
    assert "a second reader sees no record there either" in evidence[places["let_in"][0]]
    # Without Kafka the file itself is the evidence.
    assert seeded.file.name in again[0]["where"]
    assert "rows were landed, it holds" in again[0]["evidence"]
    # So are the counts of records, of which the topic partitions together hold one more.
    assert any("the archive holds" in d["evidence"] for d in again)


@pytest.mark.slow
def test_file_doubled_in_landing_and_ledger_doubles_each_of_its_rows(seeded: Seeded) -> None:
    path = seeded.file
    copy = path.with_name(f"copy-{path.name}")
    copy.write_bytes(path.read_bytes())
    rows = sum(map(seeded.is_inside, pq.ParquetFile(path).read().to_pylist()))
    # With its folder: a task that writes into two dates gives both files one name.
    name, twice = (f"{path.parent.name}/{file.name}" for file in (path, copy))
    statement = (
        "INSERT INTO landing_files (micro_batch_id, fate, path, rows, bytes, event_time_min, event_time_max) "
        f"SELECT micro_batch_id, fate, replace(path, '{name}', '{twice}'), rows, bytes, "
        f"event_time_min, event_time_max FROM landing_files WHERE path LIKE '%{name}' AND fate = 'archived'"
    )
    with seeded.ledger(statement, f"DELETE FROM landing_files WHERE path LIKE '%{twice}'"):
        verdict = seeded.reconcile()
        again = seeded.unexplained("archive")
    copy.unlink()
    assert verdict["reconciliation"]["unexplained"] >= rows
    assert verdict["differences"][0]["evidence"] == "in Kafka once, in the archive 2 times"
    assert any("recorded" in d["evidence"] and "the archive holds" in d["evidence"] for d in again)


def _without_first(rows: list[Row]) -> None:
    del rows[0]


def _other_value(rows: list[Row]) -> None:
    rows[0]["where_id"] += "?"


def corrupt_while_writing(monkeypatch: pytest.MonkeyPatch, edit: Edit) -> None:
    """Have rows of the archive's next revision edited between writing its file and reading it back."""
    from spark_jobs.intervals import write

    honest = write.write_files

    def corrupting(writer: Any, file_format: Any, location: str) -> None:
        honest(writer, file_format, location)
        if "/nest_cameras/" in location:
            path = max(Path(location.removeprefix("file://")).rglob("*.parquet"), key=lambda file: file.stat().st_size)
            table = pq.ParquetFile(path).read()
            rows = table.to_pylist()
            edit(rows)
            written = pa.Table.from_pylist(rows, schema=table.schema)
            # As the session of the tests writes times.
            pq.write_table(written, path, use_deprecated_int96_timestamps=True)
            path.with_name(f".{path.name}.crc").unlink()

    monkeypatch.setattr(write, "write_files", corrupting)


def check_written(named: list[dict[str, str]], lost: int) -> None:
    """Assert that these differences name the written files, and so many rows less."""
    assert [d["what"] for d in named] == [WRITTEN]
    assert TOPIC in named[0]["where"]
    counts = re.findall(r"(\d+) rows", named[0]["evidence"])
    assert int(counts[0]) - int(counts[1]) == lost


@pytest.mark.slow
@pytest.mark.parametrize("source", ["kafka", "archive"])
def test_row_altered_while_its_revision_is_written_is_unexplained(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    corrupt_while_writing(monkeypatch, _other_value)
    check_written(seeded.unexplained(source), lost=0)


@pytest.mark.parametrize("source", ["kafka", pytest.param("archive", marks=pytest.mark.slow)])
def test_interval_ends_with_exit_code_3_and_names_the_file_when_a_byte_of_it_is_flipped(
    seeded: Seeded, source: str
) -> None:
    path = seeded.file
    original = path.read_bytes()
    damaged = bytearray(original)
    damaged[len(damaged) // 2] ^= 0x10
    path.write_bytes(damaged)
    try:
        bounds = ["--from", iso(seeded.pinned.interval.from_time), "--to", iso(seeded.pinned.interval.to_time)]
        refused = seeded.home.run("interval", "nest_cameras", *bounds, "--source", source, expect=3)
    finally:
        path.write_bytes(original)
    assert path.name in refused.stderr
    assert "it is damaged; nothing was registered" in refused.stderr
    assert "Traceback" not in refused.stderr


def _shifted(rows: Any, hours: int) -> Any:
    from pyspark.sql import functions as F

    by = F.expr(f"INTERVAL {hours} HOUR")
    window = F.struct((F.col("window.start") + by).alias("start"), (F.col("window.end") + by).alias("end"))
    return rows.withColumn("window", window).select("zip_code", "window", "count")


def test_lost_row_of_a_written_file_and_windows_off_by_one_are_named_when_a_build_has_both(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.intervals import build as interval_build

    honest = interval_build.aggregate_view
    monkeypatch.setattr(interval_build, "aggregate_view", lambda *arguments: _shifted(honest(*arguments), 1))
    corrupt_while_writing(monkeypatch, _without_first)
    every = seeded.unexplained()
    check_written([d for d in every if d["what"] == WRITTEN], lost=1)
    found = [d for d in every if d["what"] != WRITTEN]
    assert {d["what"] for d in found} == {"hourly_counts against the archive"}
    assert all('"window"' in d["where"] and "batch view" in d["evidence"] for d in found)
    held = [re.search(r"batch view (\d+), the archive's rows of the interval (\d+) ", d["evidence"]) for d in found]
    assert held
    assert all(each is not None and each[1] != each[2] for each in held)


@pytest.mark.slow
def test_window_off_by_one_in_the_transform_is_named_although_both_batch_sides_agree(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.transforms import nest_cameras

    honest = nest_cameras.hourly_counts
    monkeypatch.setattr(nest_cameras, "hourly_counts", lambda rows, window: _shifted(honest(rows, window), -1))
    found = seeded.unexplained()
    assert {d["what"] for d in found} == {f"hourly_counts against {STATS}"}
    assert any("speed view 0," in d["evidence"] for d in found)


@pytest.mark.slow
def test_hour_merged_into_the_next_by_a_time_zone_is_named_by_key_and_window(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.intervals import build as interval_build

    honest = interval_build.aggregate_view
    hour = START + timedelta(hours=2)

    def merged(pipeline: Any, view: Any, rows: Any, references: Any) -> Any:
        # As in the night when clocks are set back: two hours have the same name.
        earlier = F.col("event_time") - F.expr("INTERVAL 1 HOUR")
        local = F.when(F.col("event_time") >= F.lit(hour), earlier).otherwise(F.col("event_time"))
        return honest(pipeline, view, rows.withColumn("event_time", local), references)

    monkeypatch.setattr(interval_build, "aggregate_view", merged)
    found = seeded.unexplained()
    assert any(iso(hour) in d["where"] and "batch view 0," in d["evidence"] for d in found)
    assert {d["what"] for d in found} == {"hourly_counts against the archive"}


@pytest.mark.slow
def test_missing_wrong_foreign_and_stray_speed_values_are_named_by_key_and_window(seeded: Seeded) -> None:
    hour = iso(START + timedelta(hours=2))
    values = audit.last_values(seeded.home.kafka, STATS)
    of_hour = {key: value for key, value in sorted(values.items()) if json.loads(key)["window"]["start"] == hour}
    (deleted, _), (wrong, counted), (foreign, _), *_ = of_hour.items()
    stray = json.dumps({**json.loads(deleted), "zip_code": "00000"}, separators=(",", ":"), sort_keys=True)
    seeded.emit(deleted, None)
    seeded.emit(wrong, json.dumps({**counted, "count": counted["count"] + 1}).encode())
    seeded.emit(foreign, b"hello")
    producer = seeded.home.producer()
    producer.produce(STATS, json.dumps(counted).encode(), stray.encode())
    assert producer.flush(30) == 0
    try:
        found = {d["where"]: d["evidence"] for d in seeded.unexplained()}
    finally:
        seeded.emit(stray, None)
        for key in (deleted, wrong, foreign):
            seeded.emit(key, json.dumps(values[key]).encode())
    assert found.keys() == {deleted, wrong, foreign, stray}
    for key, seen in ((deleted, 0), (foreign, 0), (wrong, counted["count"] + 1)):
        assert f"count: speed view {seen}, the archive up to its position {values[key]['count']} " in found[key]
    assert f"speed view {counted['count']}, the archive up to its position 0 " in found[stray]


def test_interval_names_the_topic_of_a_view_and_the_way_on_when_it_was_created_again(seeded: Seeded) -> None:
    """The ledger has another id than Kafka then: every key would be unexplained."""
    topics = "UPDATE generations SET topics = topics || '{\"hourly_counts\": \"%s\"}' WHERE pipeline = 'nest_cameras'"
    now = kafka.describe_topics([STATS])[STATS].topic_id
    with seeded.ledger(topics % "former", topics % now), pytest.raises(UsageError) as refused:
        seeded.reconcile()
    assert f"{STATS} was created again (id former, now {now}), and with it what the speed" in refused.value.message
    assert "./tidemark new-generation nest_cameras --reason" in refused.value.remedy


def test_nothing_is_unexplained_when_the_values_of_a_view_carry_times_before_they_were_written(
    seeded: Seeded, caplog: pytest.LogCaptureFixture
) -> None:
    """As of brokers whose clocks are two hours behind that of PostgreSQL."""
    apart = "UPDATE micro_batches SET committed_at = committed_at %s INTERVAL '2 hours' WHERE query = 'hourly_counts'"
    with seeded.ledger(apart % "+", apart % "-"):
        assert seeded.unexplained() == []
    assert f"{STATS} has values of hourly_counts whose timestamps are more than an hour too early" in caplog.text


def test_open_transaction_in_the_topic_of_a_view_is_named_when_a_key_is_unexplained(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.reconciliation import views

    # The stream's own transactions are waited for.
    assert written_topics._TRANSACTION_SECONDS > fenced_producer.PATIENCE
    monkeypatch.setattr(written_topics, "_TRANSACTION_SECONDS", 0)
    hour = iso(START + timedelta(hours=2))
    values = audit.last_values(seeded.home.kafka, STATS)
    key = min(key for key in values if json.loads(key)["window"]["start"] == hour)
    seeded.emit(key, None)
    at = next(c for c, record in audit.read_topic(seeded.home.kafka, STATS).items() if record.key == key.encode())
    tp = TopicPartition(STATS, at[1])
    stable = kafka.end_offsets([tp], "read_committed")[tp]
    producer = transactional_producer(seeded.home.kafka, "hanging")
    write_transaction(producer, STATS, [(0, b"{}", b"{}")], end="", partition=tp.partition)
    try:
        (found,) = seeded.unexplained()

        def refuse(_: object) -> NoReturn:
            raise ServiceUnreachable("no answer within 10 s", remedy="")

        # Kafka answers no longer: what was found stands without it.
        monkeypatch.setattr(views, "hidden_values", refuse)
        (plain,) = seeded.unexplained()
    finally:
        producer.abort_transaction(30)
        seeded.emit(key, json.dumps(values[key]).encode())
    assert found["where"] == key
    assert f"; a transaction is open at offset {stable} of {tp}: end the producer's transaction" in found["evidence"]
    assert found["evidence"].startswith(plain["evidence"] + "; ")


def test_values_that_the_topic_has_of_former_streams_are_not_named_when_a_key_is_unexplained(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.reconciliation import views

    hour = iso(START + timedelta(hours=2))
    values = audit.last_values(seeded.home.kafka, STATS)
    key = min(key for key in values if json.loads(key)["window"]["start"] == hour)
    honest = views.speed_values

    def with_older(spark: Any, view: Any, last: int, since: Any) -> Any:
        found = honest(spark, view, last, since)
        stray = F.lit(key.replace('"zip_code":"', '"zip_code":"0')).alias("key")
        older = found.limit(1).select(stray, *(name for name in found.columns if name != "key"))
        return found if since else found.unionByName(older)

    monkeypatch.setattr(views, "speed_values", with_older)
    seeded.emit(key, None)
    try:
        assert [each["where"] for each in seeded.unexplained()] == [key]
    finally:
        seeded.emit(key, json.dumps(values[key]).encode())


@pytest.mark.slow
def test_late_rows_are_named_when_the_ledger_forgets_the_watermark_that_dropped_them(seeded: Seeded) -> None:
    late = seeded.clean["reconciliation"]["late"]
    with seeded.ledger(
        "UPDATE micro_batches SET watermark = watermark - INTERVAL '1 hour' WHERE query = 'hourly_counts'",
        "UPDATE micro_batches SET watermark = watermark + INTERVAL '1 hour' WHERE query = 'hourly_counts'",
    ):
        verdict = seeded.reconcile()
    named = [d for d in verdict["differences"] if d["class"] == "unexplained"]
    assert verdict["reconciliation"]["late"] < late
    assert {d["what"] for d in named} == {f"hourly_counts against {STATS}"}


@pytest.mark.slow
def test_late_row_left_out_of_the_batch_view_is_named_by_key_and_window(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.intervals import build as interval_build

    evidence = next(d for d in seeded.clean["differences"] if d["class"] == "late")
    key = json.loads(evidence["where"])
    honest = interval_build.aggregate_view

    def without_one(*arguments: Any) -> Any:
        rows = honest(*arguments)
        here = (F.col("zip_code") == key["zip_code"]) & (
            F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'") == key["window"]["start"]
        )
        return rows.withColumn("count", F.col("count") - F.when(here, 1).otherwise(0))

    monkeypatch.setattr(interval_build, "aggregate_view", without_one)
    found = seeded.unexplained()
    assert [d["where"] for d in found] == [evidence["where"]]
    assert re.search(r"[1-9]\d* late", found[0]["evidence"])


def test_late_rows_carry_their_watermark_when_the_speed_view_lacks_them(seeded: Seeded) -> None:
    late = [d for d in seeded.clean["differences"] if d["class"] == "late"]
    assert all(re.search(r"dropped by the watermark \d{4}-\d\d-\d\dT", d["evidence"]) for d in late)
    lines = PIPELINE.references["device_locations"].path.read_text().splitlines()[1:]
    places = dict(line.split(",") for line in lines)
    rows = audit.expected(audit.read_topic(seeded.home.kafka, TOPIC)).rows.values()
    sightings = sum(row["last_event"]["has_person"] and row["device_id"] in places for row in rows)
    counted = sum(value["count"] for value in audit.last_values(seeded.home.kafka, STATS).values())
    assert seeded.clean["reconciliation"]["late"] == sightings - counted > 0


@pytest.mark.slow
def test_nothing_is_unexplained_once_every_corruption_is_undone(seeded: Seeded) -> None:
    for source in ("kafka", "archive"):
        assert seeded.unexplained(source) == []


@pytest.mark.slow
def test_doubled_file_and_stale_revision_are_named_and_replaced_when_the_interval_runs_again(seeded: Seeded) -> None:
    hour = seeded.pinned.interval.from_time
    before = seeded.home.interval("nest_cameras", hour)
    archive = next(r for r in before["registered"] if r["table"] == "nest_cameras")
    view = next(r for r in before["registered"] if r["table"] == "nest_cameras_hourly_counts")
    folder = Path(archive["location"].removeprefix("file://"))
    file = next(folder.glob("*.parquet"))
    (folder / f"copy-{file.name}").write_bytes(file.read_bytes())
    # An older revision of the view, to which somebody has pointed the catalog back.
    stale = Path(view["location"].removeprefix("file://")).with_name("r20200101T000000-0")
    stale.mkdir()
    pq.write_table(audit.read_parquet([view["location"]]).slice(1), stale / "old.parquet")
    url = seeded.home.database.rsplit("/", 1)[0] + "/catalog"
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(
            """UPDATE "SDS" SET "LOCATION" = %s WHERE "LOCATION" LIKE %s""",
            (stale.as_uri(), f"%/{view['table']}/%/{view['revision']}"),
        )
        assert cursor.rowcount >= 1

    bounds = ["--from", iso(hour), "--to", iso(hour + timedelta(hours=1))]
    run = seeded.home.run("interval", "nest_cameras", *bounds)
    after = json.loads(run.stdout)
    assert f"copy-{file.name}" in run.stderr
    assert stale.name in run.stderr
    locations = [r["location"] for r in after["registered"] if r["table"] == "nest_cameras"]
    assert all(count == 1 for count in audit.identities(audit.read_parquet(locations)).values())
    counted = seeded.home.json("sql", "SELECT sum(count) AS n FROM lake.nest_cameras_hourly_counts", "--json")
    locations = [r["location"] for r in after["registered"] if r["table"] == "nest_cameras_hourly_counts"]
    assert counted == [{"n": sum(audit.read_parquet(locations)["count"].to_pylist())}]
