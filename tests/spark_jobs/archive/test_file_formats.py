"""Files of every format: each value comes back, by any reader, and a rebuild gives the same hash and the same bytes."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyarrow import orc
from pyarrow import parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include import lake
from include.errors import TidemarkError, UsageError
from include.ledger.lineage import BuiltRevision
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Pipeline, Text
from include.pipelines.spec.file_formats import FILE_FORMATS, FileFormat
from include.settings import settings
from include.times import Interval
from spark_jobs.archive import files
from spark_jobs.spark.frames import frame_of
from tests.support.corpora import NAUGHTY

pytestmark = pytest.mark.spark

NOW = datetime(2026, 11, 20, 5, 30, tzinfo=UTC)
START = NOW.replace(minute=0)

FLAT = """
    n INT, text STRING, flag BOOLEAN, tiny TINYINT, small SMALLINT, big BIGINT, single FLOAT, double DOUBLE,
    exact DECIMAL(38, 9), price DECIMAL(5, 2), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ
"""
NESTED = f"""{FLAT}, bytes BINARY, of STRUCT<text: STRING, AT: TIMESTAMP, x: DOUBLE>, texts ARRAY<STRING>,
    counts MAP<STRING, BIGINT>, deep ARRAY<STRUCT<text: STRING, x: DOUBLE, bytes: BINARY>>"""
WITHOUT_MAP = NESTED.replace("counts MAP<STRING, BIGINT>, ", "")
WITHOUT_SMALL = WITHOUT_MAP.replace("tiny TINYINT, small SMALLINT, ", "")
COLUMNS: dict[FileFormat, str] = {
    "parquet": NESTED, "orc": WITHOUT_MAP, "avro": WITHOUT_SMALL, "csv": FLAT, "json": NESTED,
}  # fmt: skip

TEXTS: list[str | None] = [
    None, "", " ", "  a  ", "\t", "null", "NULL", "None", "NaN", "true", "01", "1e5", "\\", "\\\\", "a\\", '\\"', '"',
    '""', '"""', 'a"b', "'", ",", ",,", "\n", "\r", "\r\n", "a\nb", "a\rb", "a\r\nb", '\n"', '",\n', 'a,b\nc"d', "#a",
    "\0", "\0a", "a\0b", " \0 ", "\x1a", "\x1f", "\x7f", "\u0085", "\u2028", "\ufeff", "\ufeffa", "\ufffe", "\uffff",
    "\U0001f600", "=1+1", "{}", "[]", "x" * 100_000,
    *NAUGHTY,
]  # fmt: skip
TIMES = (
    "0001-01-01T00:00:00.000001Z", "1582-10-04T23:59:59.999999Z", "1582-10-15T00:00:00Z", "1899-12-31T23:59:59.5Z",
    "1969-12-31T23:59:58.000001Z", "1970-01-01T00:00:00Z", "2026-11-20T05:06:07.123456Z", "9999-12-31T23:59:59.999999Z",
)  # fmt: skip
DOUBLES = (
    "NaN", "Infinity", "-Infinity", "-0.0", "0.0", "4.9E-324", "1.7976931348623157E308", "0.1", "123456789.12345679",
)  # fmt: skip


def one_of(n: Column, texts: tuple[str, ...], kind: str) -> Column:
    """One of the texts as a value of that type, another for each `n`, and null now and then."""
    value = F.element_at(F.array(*map(F.lit, texts)), (n % len(texts) + 1).cast("int")).cast(kind)
    return F.when(n % 11 != 5, value)


def columns_of(n: Column, text: Column) -> dict[str, Column]:
    at, double = one_of(n, TIMES, "timestamp"), one_of(n, DOUBLES, "double")
    part = F.struct(F.when(n % 3 > 0, text).alias("text"), at.alias("AT"), F.when(n % 2 > 0, double).alias("x"))
    deep = F.struct(text.alias("text"), double.alias("x"), F.encode(text, "UTF-16").alias("bytes"))
    key = F.substring(F.coalesce(text, F.lit("k")), 1, 49_999)
    return {
        "flag": one_of(n, ("true", "false"), "boolean"),
        "tiny": one_of(n, ("-128", "127"), "tinyint"),
        "small": one_of(n, ("-32768", "32767"), "smallint"),
        "big": one_of(n, ("-9223372036854775808", "9223372036854775807"), "bigint"),
        "single": one_of(n, ("NaN", "Infinity", "-0.0", "0.1", "3.4028235E38", "1.4E-45"), "float"),
        "double": double,
        "exact": one_of(n, ("99999999999999999999999999999.123456789", "-0.000000001", "0"), "decimal(38, 9)"),
        "price": one_of(n, ("999.99", "-0.01", "10"), "decimal(5, 2)"),
        "day": one_of(n, tuple(each[:10] for each in TIMES), "date"),
        "at": at,
        "local": at.cast("timestamp_ntz"),
        "bytes": F.when(n % 3 > 0, F.encode(text, "UTF-16")),
        "of": F.when(n % 4 > 0, part),
        "texts": F.when(n % 4 == 1, F.array().cast("array<string>")).when(n % 4 > 1, F.array(text, F.lit(""), text)),
        "counts": F.when(n % 4 == 1, F.create_map().cast("map<string, bigint>"))
        .when(n % 4 == 2, F.create_map(key, F.lit(None).cast("bigint")))
        .when(n % 4 == 3, F.create_map(F.concat(F.lit("z"), key), n.cast("bigint"), key, n.cast("bigint"))),
        "deep": F.when(n % 3 > 0, F.array(deep, F.lit(None))),
    }


def archive_rows(spark: Any, columns: str) -> DataFrame:
    """Rows of two days with all difficult values, in declared columns and Kafka's."""
    from spark_jobs.spark.schemas import struct_of

    texts = spark.createDataFrame(list(enumerate(TEXTS)), "n INT, text STRING")
    made = texts.withColumns(columns_of(F.col("n"), F.col("text"))).select(*struct_of(columns).names)
    kafka = {
        "kafka_topic": F.lit("topic"), "kafka_partition": F.col("n") % 2, "kafka_offset": F.col("n").cast("bigint"),
        "kafka_timestamp": F.lit(NOW), "kafka_element": F.lit(0),
    }  # fmt: skip
    days = F.when(F.col("n") % 3 > 0, "2026-11-20").otherwise("2026-11-21")
    return made.withColumns({**kafka, "date": days}).repartition(3).persist()


def pipeline_of(file_format: FileFormat) -> Pipeline:
    archive = Archive(rows="rows", columns=COLUMNS[file_format], event_time="at", file_format=file_format)
    return replace(load_pipeline("nest_cameras"), name=f"as_{file_format}", archive=archive, views=(), reports=())


def write(rows: DataFrame, pipeline: Pipeline, attempt: int) -> list[BuiltRevision]:
    from spark_jobs.intervals.write import archive_layout, revision_name, write_revisions

    interval = Interval(START, START + timedelta(hours=1))
    return write_revisions(rows, archive_layout(pipeline), interval, revision_name(attempt, datetime.now(UTC)))


def values(rows: DataFrame) -> dict[int, str]:
    """Each row in full by its `n`, texts by their bytes too."""
    full = {
        "ignoreNullFields": "false",
        **{f"timestamp{ntz}Format": "yyyy-MM-dd HH:mm:ss.SSSSSS" for ntz in ("", "NTZ")},
    }
    names = [name for name in rows.columns if name not in ("date", "interval")]
    text = F.to_json(F.struct(F.hex(F.encode("text", "UTF-8")).alias("hex"), *sorted(names)), full)
    return {row.n: row.text for row in rows.select("n", text.alias("text")).collect()}


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lake without services."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("formats")
        patch.setenv("TIDEMARK_HOME", str(home))
        settings.cache_clear()
        yield home
    settings.cache_clear()


@pytest.fixture(scope="module")
def rows(spark: Any, at_home: Path) -> dict[str, DataFrame]:
    return {columns: archive_rows(spark, columns) for columns in set(COLUMNS.values())}


@pytest.fixture(scope="module")
def written(rows: dict[str, DataFrame]) -> dict[FileFormat, list[BuiltRevision]]:
    """The rows in files of every format."""
    pipelines = {file_format: pipeline_of(file_format) for file_format in FILE_FORMATS}
    return {name: write(rows[pipeline.archive.columns], pipeline, 1) for name, pipeline in pipelines.items()}


@pytest.fixture(scope="module")
def hashes(rows: dict[str, DataFrame], written: dict[FileFormat, list[BuiltRevision]]) -> dict[str, list[str]]:
    """Content hashes of the rows in Parquet."""
    parquet = pipeline_of("parquet")
    found = {parquet.archive.columns: [each.content_hash for each in written["parquet"]]}
    for number, columns in enumerate(rows.keys() - found.keys(), 100):
        archive = replace(parquet.archive, columns=columns)
        found[columns] = [each.content_hash for each in write(rows[columns], replace(parquet, archive=archive), number)]
    return found


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_every_value_comes_back_and_a_rebuild_is_equal_when_files_are_written(
    spark: Any,
    rows: dict[str, DataFrame],
    written: dict[FileFormat, list[BuiltRevision]],
    hashes: dict[str, list[str]],
    file_format: FileFormat,
) -> None:
    from spark_jobs.archive.files import read_files
    from spark_jobs.archive.schema import archive_schema
    from spark_jobs.publication.catalog import Catalog

    pipeline = pipeline_of(file_format)
    mine = rows[pipeline.archive.columns]
    built, again = written[file_format], write(mine, pipeline, 2)
    assert [each.partition for each in built] == [f"date=2026-11-{day}/interval=2026-11-20T05" for day in (20, 21)]
    assert [each.content_hash for each in built] == hashes[pipeline.archive.columns]
    assert [each.content_hash for each in again] == hashes[pipeline.archive.columns]
    assert (digests(built) == digests(again)) == (file_format != "avro")
    paths = [f"{each.location}/{name}" for each in built for name in each.files]
    assert len(paths) == 2
    wanted = values(mine)
    assert values(read_files(spark, paths, archive_schema(pipeline))) == wanted
    catalog = Catalog(spark, pipeline)
    catalog.create_tables()
    for revision in built:
        catalog.point_at(revision)
        assert catalog.location(revision) == revision.location
    assert values(spark.table(f"lake.{pipeline.table}")) == wanted
    counted = spark.sql(f"SELECT date, count(*) AS rows FROM lake.{pipeline.table} GROUP BY date ORDER BY date")
    assert [row["rows"] for row in counted.collect()] == [each.rows for each in built]


def digests(built: list[BuiltRevision]) -> list[str]:
    return [described["sha256"] for each in built for described in each.files.values()]


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_rows_bytes_and_bounds_are_noted_when_a_file_is_written(
    written: dict[FileFormat, list[BuiltRevision]], file_format: FileFormat
) -> None:
    for number, revision in enumerate(written[file_format]):
        ((name, noted),) = revision.files.items()
        offsets = [n for n in range(len(TEXTS)) if (n % 3 == 0) == bool(number)]
        assert noted == {
            "rows": len(offsets),
            "records": len(offsets),
            "bytes": lake.size(f"{revision.location}/{name}"),
            "sha256": lake.sha256(f"{revision.location}/{name}"),
            "kafka_topic": ["topic", "topic"],
            "kafka_partition": [0, 1],
            "kafka_offset": [offsets[0], offsets[-1]],
            "event_time": ["0001-01-01T00:00:00.000001Z", "9999-12-31T23:59:59.999999Z"],
        }
        assert revision.rows == len(offsets)


def of_parquet(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.ParquetFile(path).read(columns=["n", "text"]).to_pylist()
    return found


def of_orc(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = orc.ORCFile(path).read(columns=["n", "text"]).to_pylist()
    return found


def of_avro(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return [dict(row) for row in fastavro.reader(file) if isinstance(row, dict)]


def of_csv(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    return [{"n": int(row["n"]), "text": None if row["text"] == "\\N" else row["text"]} for row in found]


def of_json(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rb") as file:
        return [json.loads(line) for line in file.read().decode().removesuffix("\n").split("\n")]


READERS: dict[FileFormat, Callable[[Path], list[dict[str, Any]]]] = {
    "parquet": of_parquet, "orc": of_orc, "avro": of_avro, "csv": of_csv, "json": of_json,
}  # fmt: skip


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_texts_are_the_same_when_another_reader_reads_them(
    written: dict[FileFormat, list[BuiltRevision]], file_format: FileFormat
) -> None:
    csv.field_size_limit(1_000_000)
    found: dict[int, str | None] = {}
    for revision in written[file_format]:
        for path in Path(revision.location.removeprefix("file://")).glob("part-*"):
            found |= {row["n"]: row.get("text") for row in READERS[file_format](path)}
    assert found == dict(enumerate(TEXTS))


def test_columns_are_named_when_a_write_loses_something(
    rows: dict[str, DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.archive import formats

    seconds = {**formats._OPTIONS["csv"], "timestampFormat": "yyyy-MM-dd'T'HH:mm:ssXXX"}
    monkeypatch.setitem(formats._OPTIONS, "csv", seconds)
    with pytest.raises(TidemarkError, match=r"written as csv, .* in the columns at; nothing was registered"):
        write(rows[FLAT], pipeline_of("csv"), 5)


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_nothing_is_built_when_there_are_no_rows(rows: dict[str, DataFrame], file_format: FileFormat) -> None:
    pipeline = pipeline_of(file_format)
    assert write(rows[pipeline.archive.columns].where("n < 0"), pipeline, 6) == []


def test_files_are_not_registered_when_they_have_another_format(spark: Any, rows: dict[str, DataFrame]) -> None:
    from spark_jobs.publication.catalog import Catalog

    pipeline = pipeline_of("orc")
    (revision, _) = write(rows[NESTED], replace(pipeline, archive=replace(pipeline.archive, file_format="parquet")), 7)
    catalog = Catalog(spark, pipeline)
    catalog.create_tables()
    with pytest.raises(
        UsageError, match='has registered parquet files, declared is orc — declare file_format="parquet"'
    ):
        catalog.point_at(revision)


FAR = ("-290308-12-21T19:59:05.224193Z", "0000-12-31T23:59:59.999999Z", "+10000-01-01T00:00:00Z")
LONG = "x" * 50_001
SECOND = ("1969-12-31T23:59:59.000001Z", "1969-12-31T23:59:59.999999Z")


@pytest.mark.parametrize(
    ("file_format", "expected"),
    [
        ("parquet", []),
        ("avro", []),
        ("orc", [*FAR, *SECOND, "in a struct", "in a list"]),
        ("json", [*FAR, "in a struct", "in a list", "in a map", LONG]),
    ],
)
def test_record_is_quarantined_when_files_would_change_its_value(
    spark: Any, monkeypatch: pytest.MonkeyPatch, file_format: FileFormat, expected: list[str]
) -> None:
    # Event times have bounds of their own.
    columns = "a STRING, at TIMESTAMP, of STRUCT<day: DATE>, days ARRAY<DATE>, seen TIMESTAMP"
    has_map = file_format in ("parquet", "json")
    columns += ", map MAP<STRING, STRUCT<t: TIMESTAMP>>" if has_map else ""
    far, good = F.lit("+10000-01-01").cast("date"), F.lit("2026-11-20").cast("date")

    def lines(message: Column) -> Column:
        text = message["text"]
        t = F.struct(F.when(text == "in a map", far).cast("timestamp").alias("t"))
        of_map = F.when(text != "null", F.create_map(text, t)).alias("map")
        return F.array(
            F.struct(
                text.alias("a"),
                F.coalesce(text.try_cast("timestamp"), F.lit(NOW)).alias("at"),
                F.when(text != "null", F.struct(F.when(text == "in a struct", far).alias("day"))).alias("of"),
                F.when(text != "null", F.array(good, F.when(text == "in a list", far))).alias("days"),
                F.lit(NOW).alias("seen"),
                *([of_map] if has_map else []),
            )
        )

    sent = [
        *FAR,
        *SECOND,
        "1969-12-31T23:59:59Z",
        "1970-01-01T00:00:00Z",
        "in a struct",
        "in a list",
        "in a map",
        LONG,
        "null",
    ]
    values = [text.encode() for text in sent]
    found = quarantined(spark, monkeypatch, file_format, columns, lines, values, event_time="seen")
    assert [text for text, detail in zip(sent, found, strict=True) if detail] == expected
    place = {"in a struct": "of", "in a list": "days", "in a map": "map", LONG: "map"}
    for text, detail in zip(sent, found, strict=True):
        words = f"{place.get(text, 'at')} has a value that a file of the format {file_format} does not hold"
        assert detail in (None, words)


def test_text_is_quarantined_when_csv_or_json_would_change_it(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(message: Column) -> Column:
        raw = F.when(message["text"] == "raw", F.lit(b"a\xff").cast("string")).otherwise(message["text"])
        return F.array(F.struct(raw.alias("a"), F.lit(NOW).alias("at")))

    sent, columns = [b"raw", b"\\N", b"\\n", b"", b"N"], "a STRING, at TIMESTAMP"
    changed: dict[FileFormat, list[int]] = {"parquet": [], "orc": [], "avro": [], "csv": [0, 1], "json": [0]}
    for file_format, expected in changed.items():
        found = quarantined(spark, monkeypatch, file_format, columns, lines, sent)
        assert [n for n, detail in enumerate(found) if detail] == expected, file_format


def quarantined(
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    file_format: FileFormat,
    columns: str,
    rows: Any,
    sent: list[bytes],
    event_time: str = "at",
) -> list[str | None]:
    """Return for each value why its record is quarantined as `value_does_not_fit`; None if archived."""
    from spark_jobs.decoding import records

    archive = Archive(rows="rows", columns=columns, event_time=event_time, file_format=file_format)
    declared = replace(load_pipeline("nest_cameras"), decoder=Text(), archive=archive, views=(), reports=())
    monkeypatch.setattr(records, "transform", lambda pipeline, name: rows)
    ddl = (
        "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
        "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
    )
    frame = spark.createDataFrame([(None, value, "t", 0, n, NOW, []) for n, value in enumerate(sent)], ddl)
    decoded = records.decode(declared, frame).select("kafka_offset", "fate", "reason", "detail", "value")
    found = sorted(decoded.collect(), key=lambda row: row.kafka_offset)
    assert [row.reason for row in found] == [row.detail and "value_does_not_fit" for row in found]
    assert [row.value for row in found if row.detail] == [sent[row.kafka_offset] for row in found if row.detail]
    return [row.detail for row in found]


def test_rows_are_found_when_they_are_sought_in_hundreds_of_topic_partitions(spark: Any) -> None:
    """Spark's stack overflows at 500 conditions, each inside of the next."""
    ranges = [OffsetRange(TopicPartition("t", number), 3, 5) for number in range(1000)]
    rows = [("t", 0, 2), ("t", 0, 3), ("t", 999, 4), ("t", 999, 5), ("t", 1000, 4), ("other", 1, 4)]
    found = frame_of(spark, rows, files.COORDINATE_COLUMNS).where(files.within(ranges)).collect()
    assert [tuple(row) for row in found] == [("t", 0, 3), ("t", 999, 4)]
