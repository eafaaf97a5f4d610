"""Landing files: how their columns are encoded, and that they hold what was decoded."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.lake import row_groups
from include.ledger.archive.landing_files import LandingFile
from include.pipelines import load_line_pipeline, load_pipeline
from include.pipelines.spec import EventTimeWithin, Json
from include.producing.generate import messages
from tests.conftest import SetSettings

pytestmark = pytest.mark.spark

START = datetime(2026, 11, 20, 5, tzinfo=UTC)


@pytest.fixture
def landing(own_lake: Path) -> Path:
    """A folder of a lake without services."""
    return own_lake / "landing"


def write(path: Path, rows: list[tuple[str | None, int, int]], row_group_size: int | None = None) -> Path:
    """A landing file of rows with topic, topic partition and number within their record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {"kafka_topic": pa.string(), "kafka_partition": pa.int32(), "kafka_element": pa.int32()}
    columns = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), names.values(), strict=True)]
    pq.write_table(pa.table(columns, list(names)), path, row_group_size=row_group_size)
    return path


@pytest.mark.parametrize(
    ("rows", "expected", "is_read"),
    [
        ([("gps", 3, 0)] * 5, {("gps", 3): 5}, False),
        ([("gps", 3, 0), ("gps", 3, 1), ("gps", 3, 0)], {("gps", 3): 2}, True),
        ([("gps", 3, 1)] * 2, {}, True),
        ([("gps", 3, 0), ("gps", 3, 0), ("gps", 1, 0), ("gps", 1, 0)], {("gps", 3): 2, ("gps", 1): 2}, True),
        ([("a", 0, 0), ("a", 0, 0), ("b", 0, 0), ("b", 0, 0)], {("a", 0): 2, ("b", 0): 2}, True),
    ],
    ids=["one topic partition", "records of several rows", "later rows alone", "two partitions", "two topics"],
)
def test_records_are_counted_from_the_footer_only_when_it_says_everything(
    landing: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Any], expected: dict[Any, int], is_read: bool
) -> None:
    from spark_jobs.archive.landing_folder import records_of

    reads = []
    read = pq.ParquetFile.read
    monkeypatch.setattr(pq.ParquetFile, "read", lambda self, **options: reads.append(options) or read(self, **options))
    # Row groups of two: each of them may be of one topic partition, and the file of several.
    with lake.open_parquet(write(landing / "part.parquet", rows, row_group_size=2).as_uri()) as parquet:
        found = {(tp.topic, tp.partition): records for tp, records in records_of(parquet)}
    assert found == expected
    assert bool(reads) == is_read


def test_footer_has_no_constant_when_a_value_is_null_or_unknown(landing: Path) -> None:
    with lake.open_parquet(write(landing / "a.parquet", [("gps", 3, 0), (None, 3, 0)]).as_uri()) as parquet:
        assert lake.constant_value(parquet.metadata, "kafka_topic") is None
        assert lake.constant_value(parquet.metadata, "kafka_partition") == 3
        assert lake.constant_value(parquet.metadata, "no such column") is None
    table = pa.table({"kafka_partition": [3, 3]})
    pq.write_table(table, landing / "b.parquet", write_statistics=False)
    with lake.open_parquet((landing / "b.parquet").as_uri()) as parquet:
        assert lake.constant_value(parquet.metadata, "kafka_partition") is None


def test_quarantined_records_lie_in_one_file_when_a_batch_has_some(landing: Path) -> None:
    from spark_jobs.archive.landing_folder import move_quarantined

    files = []
    for number in range(3):
        path = f"landing/isp_hits/0a1b2c3d-000000007-1/fate=quarantined/part-{number}.parquet"
        size = write(landing.parent / path, [("hits", number, 0)] * (number + 1)).stat().st_size
        (landing.parent / path).with_name(f".part-{number}.parquet.crc").write_bytes(b"crc")
        files.append(LandingFile("quarantined", path, number + 1, size))
    archived = LandingFile("archived", "landing/isp_hits/0a1b2c3d-000000007-1/fate=archived/part-0.parquet", 9, 99)
    target = landing.parent / "quarantine" / "isp_hits" / "0a1b2c3d-000000007.parquet"
    target.parent.mkdir(parents=True)
    # Leftovers of a driver that was killed before its commit.
    target.write_bytes(b"not a file of Parquet")
    columns = ["kafka_topic", "kafka_partition"]
    found = move_quarantined(
        load_pipeline("isp_hits"), [files[1], archived, files[2], files[0]], "0a1b2c3d-000000007", columns
    )
    below = "quarantine/isp_hits/0a1b2c3d-000000007.parquet"
    assert found == [archived, LandingFile("quarantined", below, 6, target.stat().st_size)]
    kept = pq.ParquetFile(target).read()
    assert kept.column_names == columns
    assert kept["kafka_partition"].to_pylist() == [0, 1, 1, 2, 2, 2]
    assert [path for path in landing.rglob("*") if path.is_file()] == []
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("value", [b"unlike %d " * 100, b"all alike " * 100], ids=["unlike", "alike"])
def test_large_bad_records_are_moved_in_row_groups_of_bounded_bytes(
    landing: Path, monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    """The driver moves them: a topic partition of nothing else may have more of them than it has memory."""
    from spark_jobs.archive.landing_folder import move_quarantined

    rows, bound = 6_000, 1 << 21
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", bound)
    path = landing.parent / "landing/isp_hits/0a1b2c3d-000000007-1/fate=quarantined/part-0.parquet"
    path.parent.mkdir(parents=True)
    values = [value.replace(b"%d", b"%d" % n) for n in range(rows)]
    pq.write_table(pa.table({"rest": [None] * rows, "value": values, "kafka_offset": [*range(rows)]}), path)
    assert pq.ParquetFile(path).num_row_groups == 1
    below = str(path.relative_to(landing.parent))
    columns = ["kafka_offset", "value"]
    file = LandingFile("quarantined", below, rows, path.stat().st_size)
    (moved,) = move_quarantined(load_pipeline("isp_hits"), [file], "0a1b2c3d-000000007", columns)
    found = pq.ParquetFile(landing.parent / moved.path)
    sizes = [found.read_row_group(number).nbytes for number in range(found.num_row_groups)]
    assert max(sizes) < 2 * bound
    assert len(sizes) >= 2
    kept = found.read()
    assert kept.column_names == columns
    assert kept["kafka_offset"].to_pylist() == [*range(rows)]
    assert kept["value"][rows - 1].as_py() == value.replace(b"%d", b"%d" % (rows - 1))


def test_spark_and_python_mean_one_folder_when_its_path_has_blanks_and_signs(
    spark: Any, tmp_path: Path, set_settings: SetSettings
) -> None:
    """Hadoop takes a URI as it is written; what Python looked for elsewhere would be booked as lost."""
    from spark_jobs.archive.landing_folder import read_back, write_landing

    # All that may be in the path of a lake, and means something in a URI or to a shell.
    folder = tmp_path / "my löke @2+(1),&=;:~!$|<>^"
    set_settings(TIDEMARK_LAKE=str(folder))
    rows = spark.range(7).selectExpr("id", "'archived' AS fate", "'2026-11-20' AS date")
    write_landing(load_pipeline("nest_cameras"), rows, lake.uri("landing", "p"))
    found = [file for file, _ in read_back(load_pipeline("nest_cameras"), lake.uri("landing", "p"))]
    assert sum(file.rows for file in found) == 7
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]
    assert {file.path for file in found} == {
        str(each.relative_to(folder)) for each in folder.rglob("part-*.parquet") if each.is_file()
    }


def test_columns_have_a_dictionary_when_values_repeat_and_bounds_when_these_are_read(spark: Any, landing: Path) -> None:
    from spark_jobs.archive.landing_folder import write_landing
    from spark_jobs.decoding.records import decode
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.spark.kafka_source import KAFKA_COLUMNS

    pipeline = load_pipeline("nest_cameras")
    made = messages(pipeline, events=50, seed=3, bad_fraction=0.1, start=START, span=timedelta(minutes=50))
    # Each so often that Parquet would keep a dictionary of any column.
    rows = [
        (key, value, "nest-logs", 0, n, moment, 0, [])
        for n, (moment, key, value, _) in enumerate(made)
        for _ in range(20)
    ]
    decoded = decode(pipeline, frame_of(spark, rows, KAFKA_COLUMNS)).persist()
    write_landing(pipeline, decoded, landing.as_uri())
    encoded: dict[str, set[bool]] = {}
    bounded: set[str] = set()
    for path in (landing / "fate=archived").rglob("*.parquet"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        for column in (group.column(number) for number in range(group.num_columns)):
            encoded.setdefault(column.path_in_schema, set()).add(column.has_dictionary_page)
            if column.is_stats_set:
                bounded.add(column.path_in_schema)
    unlike = {"kafka_offset", "kafka_timestamp", "last_event.start_time", "last_event.end_time"}
    assert {name: encoded[name] for name in unlike} == {name: {False} for name in unlike}
    alike = {"kafka_topic", "kafka_partition", "device_id", "name_long"}
    assert {name: encoded[name] for name in alike} == {name: {True} for name in alike}
    of_kafka = {f"kafka_{name}" for name in ("topic", "partition", "offset", "timestamp", "element")}
    assert bounded == {*of_kafka, "last_event.start_time", "is_online"}
    written = spark.read.schema(decoded.schema).parquet(landing.as_uri())
    order = ["kafka_offset", "kafka_element"]
    assert written.select(decoded.columns).orderBy(order).collect() == decoded.orderBy(order).collect()
    decoded.unpersist()


def test_lines_have_no_bounds_of_their_places_when_nothing_reads_them(spark: Any, landing: Path) -> None:
    from spark_jobs.archive.landing_folder import write_landing

    pipeline = load_line_pipeline("isp_hits_files")
    assert pipeline
    places = ["'a.jsonl' AS source_name", "id AS source_line", "0 AS source_element"]
    write_landing(
        pipeline, spark.range(7).selectExpr(*places, "'archived' AS fate", "'2026-11-20' AS date"), landing.as_uri()
    )
    (path, *_) = (landing / "fate=archived").rglob("*.parquet")
    group = pq.ParquetFile(path).metadata.row_group(0)
    assert [group.column(number).is_stats_set for number in range(3)] == [False] * 3


@pytest.mark.parametrize(
    ("kind", "times", "expected"),
    [
        (
            "DATE",
            ("2026-11-18", "2026-11-20"),
            (datetime(2026, 11, 18, tzinfo=UTC), datetime(2026, 11, 20, tzinfo=UTC)),
        ),
        ("STRING", ("2026-11-18T05:00:00Z", "2026-11-20T06:00:00Z"), None),
        ("STRING", ("2026-11-18T05:00:00Z", "soon"), None),
        (
            "TIMESTAMP_NTZ",
            ("2026-11-18T05:00:00", "2026-11-20T06:00:00"),
            (datetime(2026, 11, 18, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC)),
        ),
    ],
)
def test_records_are_landed_when_their_event_time_is_a_date_or_a_text(
    spark: Any, landing: Path, kind: str, times: tuple[str, str], expected: tuple[datetime, datetime] | None
) -> None:
    from spark_jobs.archive.landing_folder import read_back, write_landing
    from spark_jobs.decoding.records import decode
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.spark.kafka_source import KAFKA_COLUMNS

    hit = f"zipcode STRING, hittime {kind}, isp STRING, user STRING"
    hits = load_pipeline("isp_hits")
    # A text that is no time breaks no rule, as a missing event time does not.
    rules = (EventTimeWithin(behind="30d", ahead="1h"),)
    archive = replace(hits.archive, columns=hit, rules=rules, partition_by={})
    pipeline = replace(hits, decoder=Json(schema=hit), archive=archive, views=(), reports=(), outputs=())
    too_early = "2026-10-01" + times[0][10:]
    values = [b'{"hittime": "%s"}' % each.encode() for each in (*times, too_early)]
    rows = [(None, value, "hits", 0, n, START, 0, []) for n, value in enumerate(values)]
    decoded = decode(pipeline, frame_of(spark, rows, KAFKA_COLUMNS).coalesce(1))
    write_landing(pipeline, decoded, landing.as_uri())
    found = [file for file, _ in read_back(pipeline, landing.as_uri())]
    assert sorted((file.fate, file.rows) for file in found) == [("archived", 1), ("archived", 1), ("quarantined", 1)]
    bounds = sorted(file.event_times or () for file in found if file.fate == "archived")
    assert bounds == ([(each, each) for each in expected] if expected else [(), ()])
    days = [at[:10] if at[0] == "2" else str(START.date()) for at in times]
    folders = sorted(Path(file.path).parent.name for file in found if file.fate == "archived")
    assert folders == sorted(f"date={day}" for day in days)


@pytest.mark.spark
def test_file_is_read_by_its_recorded_path_when_earlier_code_landed_it(
    spark: Any, tmp_path: Path, own_lake: Path
) -> None:
    from spark_jobs.archive.files import read_files
    from spark_jobs.spark.schemas import struct_of

    folders = {"earlier": "outcome=archived/date=2026-11-20", "now": "fate=archived/date=2026-11-20"}
    for word, folder in folders.items():
        rows = spark.createDataFrame([(word,)], "text STRING").coalesce(1)
        rows.write.parquet(f"{tmp_path.as_uri()}/landing/p/{word}/{folder}")
    paths = [str(each.relative_to(tmp_path)) for each in sorted(tmp_path.rglob("part-*.parquet"))]
    found = read_files(spark, paths, struct_of("text STRING"))
    assert found.columns == ["text"]
    assert sorted(row.text for row in found.collect()) == ["earlier", "now"]
