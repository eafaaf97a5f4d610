"""Text, CSV and decoders of the user's own: strict, every record with one fate."""

from __future__ import annotations

import errno
import json
import struct
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Csv, Json, KafkaDeserializer, Text, UserDefined
from include.spark.compiled_jars import CLASS, DESERIALIZERS, compile_java
from spark_jobs.archive import files, registered
from spark_jobs.archive.erased import without
from spark_jobs.decoding.decoders import decoding_of
from spark_jobs.decoding.user_defined import python_function
from spark_jobs.intervals import pinned_fates
from spark_jobs.spark.failures import translate
from spark_jobs.spark.frames import frame_of
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark

NOW = datetime(2026, 11, 20, 5, 30, tzinfo=UTC)
KAFKA_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
CSV = Csv(schema="device INT, at TIMESTAMP, note STRING")
METER = "device BIGINT, reading DOUBLE, unit STRING"


def fates(spark: Any, decoder: Any, columns: str, values: list[bytes | None], monkeypatch: Any) -> list[Any]:
    """What becomes of each value: the row for an archived one, else the reason."""
    from spark_jobs.decoding import records
    from spark_jobs.spark.schemas import struct_of

    def rows(message: Column) -> Column:
        return F.array(message)

    archive = Archive(rows="rows", columns=columns, event_time=columns.split()[0])
    declared = replace(load_pipeline("nest_cameras"), decoder=decoder, archive=archive, views=(), reports=())
    monkeypatch.setattr(records, "transform", lambda pipeline, name: rows)
    frame = spark.createDataFrame([(None, v, "t", 0, n, NOW, []) for n, v in enumerate(values)], KAFKA_DDL)
    dated = F.lit(NOW)
    monkeypatch.setattr(records, "field_at", lambda row, path: dated)
    names = struct_of(columns).names
    found = sorted(records.decode(declared, frame).collect(), key=lambda row: row.kafka_offset)
    assert [row.kafka_offset for row in found] == list(range(len(values)))
    kept = [row for row in found if row.fate == "quarantined"]
    assert all(row.detail and row.detail.isprintable() for row in kept)
    assert [row.value for row in kept] == [values[row.kafka_offset] for row in kept]
    return [row.reason or tuple(row[name] for name in names) for row in found]


def test_text_is_taken_whole_when_it_is_utf8_and_quarantined_otherwise(spark: Any, monkeypatch: Any) -> None:
    values: list[bytes | None] = [b"", "Ω\n\t\0".encode(), b"\xff", None, b"x" * 11]
    found = fates(spark, Text(max_bytes=10), "text STRING", values, monkeypatch)
    assert found == [("",), ("Ω\n\t\0",), "not_utf8", "null_value", "too_large"]


def test_csv_is_read_when_a_column_of_it_is_called_corrupt(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = "device INT, `corrupt` BOOLEAN"
    assert fates(spark, Csv(columns), columns, [b"7,true", b"7,no", b"7"], monkeypatch) == [
        (7, True),
        "malformed_csv",
        "malformed_csv",
    ]


@pytest.mark.parametrize("kind", ["json", "deserializer"])
def test_date_is_refused_when_it_is_a_number_of_days(spark: Any, kind: str) -> None:
    texts = ["2026-11-20", "1", "20261120", "0020261120", "2026-11-20 GMT", "", "-5"]
    messages = [f'{{"day": "{each}"}}' for each in texts]
    read = decoded_dates(spark, kind, messages)
    assert read == [date(2026, 11, 20), None, None, None, date(2026, 11, 20), None, None]


def decoded_dates(spark: Any, kind: str, messages: list[str]) -> list[Any]:
    """Return the day of each message; null when the decoder refuses it."""
    decoder = Json("day DATE") if kind == "json" else KafkaDeserializer(REPOSITORY / "any.jar", "a.Class", "day DATE")
    decoding = decoding_of(decoder)
    frame = spark.createDataFrame([(n, each.encode()) for n, each in enumerate(messages)], "n INT, value BINARY")
    returned = F.struct(F.col("value").cast("string").alias("json"), F.lit(None).cast("string").alias("error"))
    parsable = decoding.parsable(decoder, F.col("value")) if kind == "json" else returned
    parsed = frame.withColumn("parsable", parsable).withColumn("parsed", decoding.parse(decoder, F.col("parsable")))
    day = decoding.message(F.col("parsed"))["day"]
    is_read = decoding.failure(decoder, F.col("value"), F.col("parsed")).isNull()
    return [row.day for row in parsed.select("n", F.when(is_read, day).alias("day")).orderBy("n").collect()]


AMOUNTS = {
    "12.50": Decimal("12.50"),
    "-0.5": Decimal("-0.50"),
    "1E2": Decimal("100.00"),
    "12,50": None,
    "1,250.00": None,
    "12.5.0": None,
    "12345678": None,
}
"""What a text is as DECIMAL(9, 2); None where it is refused."""


def test_decimal_is_refused_when_its_text_has_a_comma(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = "amount DECIMAL(9, 2)"
    lines: list[bytes | None] = [text.encode() for text in AMOUNTS]
    found = fates(spark, Csv(columns, separator=";"), columns, lines, monkeypatch)
    assert found == ["malformed_csv" if amount is None else (amount,) for amount in AMOUNTS.values()]
    columns = "at STRING, sums STRUCT<all: ARRAY<DECIMAL(9, 2)>>"
    values: list[bytes | None] = [f'{{"sums": {{"all": ["{text}"]}}}}'.encode() for text in AMOUNTS]
    found = fates(spark, Json(columns), columns, [*values, b'{"sums": {"all": [12.50, 1e2, 0.07]}}'], monkeypatch)
    assert found[:-1] == ["wrong_type" if amount is None else (None, ([amount],)) for amount in AMOUNTS.values()]
    assert found[-1] == (None, ([Decimal("12.50"), Decimal(100), Decimal("0.07")],))


def test_deserializer_s_decimal_is_refused_when_its_text_has_a_comma(spark: Any) -> None:
    decoder = KafkaDeserializer(REPOSITORY / "any.jar", "a.Class", "amount DECIMAL(9, 2)")
    decoding = decoding_of(decoder)
    json = F.concat(F.lit('{"amount": "'), "text", F.lit('"}'))
    returned = F.struct(json.alias("json"), F.lit(None).cast("string").alias("error"))
    parsed = frame_of(spark, ((text,) for text in AMOUNTS), "text STRING").select(
        decoding.parse(decoder, returned).alias("parsed")
    )
    is_read = decoding.failure(decoder, F.lit(b"value"), F.col("parsed")).isNull()
    rows = parsed.select(F.when(is_read, decoding.message(F.col("parsed"))["amount"]).alias("amount")).collect()
    assert [row.amount for row in rows] == list(AMOUNTS.values())


CSV_LINES: list[tuple[bytes | None, Any]] = [
    (b"1,2026-11-20T05:00:00Z,hot", (1, datetime(2026, 11, 20, 5), "hot")),
    (b'2,2026-11-20T05:00:00Z,"a, ""b"""\r\n', (2, datetime(2026, 11, 20, 5), 'a, "b"')),
    (b",,", (None, None, None)),
    (b"", "empty_value"),
    (b" \n", "empty_value"),
    (b"1,2026-11-20T05:00:00Z", "malformed_csv"),
    (b"1,2026-11-20T05:00:00Z,a,b", "malformed_csv"),
    (b"one,2026-11-20T05:00:00Z,a", "malformed_csv"),
    (b"1,yesterday,a", "malformed_csv"),
    (b"," * 20_480, "malformed_csv"),
    (b"," * 1_048_576, "malformed_csv"),
    (b'3,2026-11-20T05:00:00Z,"' + b"," * 20_480 + b'"', (3, datetime(2026, 11, 20, 5), "," * 20_480)),
    (b"1,2026-11-20T05:00:00Z,a\n2,2026-11-20T05:00:00Z,b", "trailing_content"),
    (b"1,2026-11-20T05:00:00Z,\xff", "not_utf8"),
    (None, "null_value"),
]


def test_csv_line_is_quarantined_when_it_has_not_exactly_its_columns(spark: Any, monkeypatch: Any) -> None:
    found = fates(spark, CSV, CSV.schema, [value for value, _ in CSV_LINES], monkeypatch)
    assert found == [expected for _, expected in CSV_LINES]


def test_csv_line_is_quarantined_when_it_has_more_columns_than_its_parser_takes(spark: Any, monkeypatch: Any) -> None:
    decoder = replace(CSV, max_bytes=2_000_000)
    values: list[bytes | None] = [b"," * 1_500_000, b"4,2026-11-20T05:00:00Z," + b"x" * 1_500_000]
    found = fates(spark, decoder, CSV.schema, values, monkeypatch)
    assert found == ["malformed_csv", (4, datetime(2026, 11, 20, 5), "x" * 1_500_000)]


def meter(device: int, reading: float, unit: bytes = b"kWh") -> bytes:
    return struct.pack(">IdB", device, reading, len(unit)) + unit


@pytest.mark.parametrize("name", ["meter", "meters"])
def test_value_alone_is_quarantined_when_the_user_s_function_raises_on_it(
    spark: Any, monkeypatch: Any, name: str
) -> None:
    decoder = UserDefined(
        f"tests.support.own_decoders:{name}", schema=METER, vectorised=name == "meters", max_bytes=100
    )
    values: list[bytes | None] = [
        meter(1, 1.5), b"short", meter(2, 2.5), None, meter(3, 0.5, b"\xff"), meter(0, 1), b"x" * 101, meter(4, -1.0),
    ]  # fmt: skip
    found = fates(spark, decoder, METER, values, monkeypatch)
    assert found == [
        (1, 1.5, "kWh"), "undecodable", (2, 2.5, "kWh"), "null_value", "undecodable", "undecodable", "too_large",
        (4, -1.0, "kWh"),
    ]  # fmt: skip


def test_no_message_is_lost_when_a_vectorised_function_forgets_one(spark: Any, monkeypatch: Any) -> None:
    decoder = UserDefined("tests.support.own_decoders:too_few", schema=METER, vectorised=True)
    found = fates(spark, decoder, METER, [meter(n, 1.0) for n in range(1, 4)], monkeypatch)
    assert found == ["undecodable"] * 3


@pytest.mark.parametrize("name", ["meter", "meters"])
def test_query_ends_with_a_clear_error_when_a_worker_imports_another_decoder_than_its_driver_knew(
    spark: Any, monkeypatch: Any, name: str
) -> None:
    monkeypatch.setattr(python_function, "code_of", lambda _: (("tests.support.own_decoders", "another"),))
    decoder = UserDefined(f"tests.support.own_decoders:{name}", schema=METER, vectorised=name == "meters")
    with pytest.raises(PySparkException) as failed:
        fates(spark, decoder, METER, [meter(1, 1.5), b"short"], monkeypatch)
    meaning = translate(failed.value)
    assert type(meaning) is TidemarkError
    assert meaning.retryable
    assert str(meaning).startswith("the code of tests.support.own_decoders was changed since this driver started")
    assert str(meaning).endswith("start it again")


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("function", ["tests.support.no_such_module:meter", "tests.support.own_decoders:no_such"])
def test_nothing_is_decoded_when_the_user_s_function_cannot_be_imported(
    spark: Any, monkeypatch: Any, function: str, vectorised: bool
) -> None:
    decoder = UserDefined(function, schema=METER, vectorised=vectorised)
    with pytest.raises(UsageError, match=rf"{function}.*no_such.* — correct"):
        fates(spark, decoder, METER, [meter(1, 1.5)], monkeypatch)


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("function", ["tests.support.no_such_module:meter", "tests.support.own_decoders:no_such"])
def test_no_record_is_blamed_when_a_worker_alone_cannot_import_the_user_s_function(
    spark: Any, monkeypatch: Any, function: str, vectorised: bool
) -> None:
    decoder = UserDefined(function, schema=METER, vectorised=vectorised)
    monkeypatch.setattr(python_function, "prepare", lambda decoder: None)
    with pytest.raises(PySparkException) as failed:
        fates(spark, decoder, METER, [meter(1, 1.5)], monkeypatch)
    # What has a meaning is not looked for in the records.
    meaning = translate(failed.value)
    assert type(meaning) is TidemarkError
    assert str(meaning).startswith(f"a Python worker cannot import {function}: ")


@pytest.mark.parametrize("name", ["asked", "all_asked"])
def test_no_record_is_blamed_when_the_user_s_function_cannot_connect(spark: Any, monkeypatch: Any, name: str) -> None:
    decoder = UserDefined(f"tests.support.own_decoders:{name}", schema=METER, vectorised=name == "all_asked")
    with pytest.raises(PySparkException) as failed:
        fates(spark, decoder, METER, [meter(1, 1.5), b"short"], monkeypatch)
    meaning = translate(failed.value)
    assert type(meaning) is ServiceUnreachable
    assert str(meaning).startswith("the decoder's function cannot connect: LookupError: no schema")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        # Perhaps of a limit for one value: nothing tells.
        (TimeoutError("timed out"), "timed out"),
        (OSError(errno.ETIMEDOUT, "Connection timed out"), "cannot connect"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "cannot connect"),
    ],
)
def test_no_record_is_blamed_when_the_host_of_a_service_is_down(kind: OSError, what: str) -> None:
    failed = LookupError("no schema")
    failed.__cause__ = kind
    with pytest.raises(ServiceUnreachable, match=f"the decoder's function {what}: LookupError: no schema"):
        python_function._blamed(failed)
    assert python_function._blamed(FileNotFoundError(errno.ENOENT, "no table")).startswith("FileNotFoundError")


def test_record_is_blamed_when_the_user_s_function_leaves_the_failed_connection_out() -> None:
    def decode() -> None:
        try:
            raise ConnectionRefusedError("the cache is away")
        except ConnectionError:
            raise ValueError("bad record") from None

    with pytest.raises(ValueError, match="bad record") as failed:
        decode()
    assert python_function._blamed(failed.value) == "ValueError: bad record"


def test_value_is_blamed_for_the_memory_it_asks_for_and_not_for_a_service_when_a_deserializer_throws(
    spark: Any, tmp_path: Path
) -> None:
    jars = [tmp_path / "meters.jar", tmp_path / "caller.jar"]
    for source, jar in zip((REPOSITORY / "tests/support/MeterDeserializer.java", DESERIALIZERS), jars, strict=True):
        compile_java(source, jar)
    jvm = spark._jvm
    thread = jvm.java.lang.Thread.currentThread()
    before = thread.getContextClassLoader()
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, len(jars))
    for n, jar in enumerate(jars):
        urls[n] = jvm.java.net.URL(jar.as_uri())
    thread.setContextClassLoader(jvm.java.net.URLClassLoader(urls, before))
    try:
        caller = thread.getContextClassLoader().loadClass(CLASS).newInstance()
        call = partial(caller.call, "com.example.MeterDeserializer", '{"meter.topics": "t"}', "", "t")
        assert json.loads(call(meter(1, 1.5)).getString(0))["device"] == 1
        assert call(b"o").getString(1).startswith("java.lang.OutOfMemoryError")
        # No value asks for this memory: the next one would fail, too.
        with pytest.raises(Py4JJavaError, match=r"java\.lang\.OutOfMemoryError: Metaspace"):
            call(b"m")
        with pytest.raises(Py4JJavaError) as failed:
            call(b"c")
    finally:
        thread.setContextClassLoader(before)
    meaning = translate(failed.value)
    assert type(meaning) is ServiceUnreachable
    assert str(meaning).startswith("the deserializer com.example.MeterDeserializer cannot connect: org.apache.kafka.")
    assert str(meaning).endswith("no schema — start that service; nothing was committed")


@pytest.mark.parametrize(
    ("decoder", "shortage"),
    [
        (UserDefined("a.module:f", METER), "MemoryError: "),
        (KafkaDeserializer(Path("j"), "a.Class", METER), "java.lang.OutOfMemoryError: Java heap space"),
    ],
)
def test_undecodable_record_stays_in_quarantine_unless_memory_was_short_when_the_same_code_would_decode_it_now(
    spark: Any, monkeypatch: pytest.MonkeyPatch, decoder: Any, shortage: str
) -> None:
    landed = [(0, "undecodable", shortage), (1, "undecodable", "LookupError: no schema"), (2, "too_large", "9 bytes")]
    # Two that a person has given up.
    landed += [(3, "undecodable", shortage), (4, "too_large", "9 bytes")]

    def read_files(spark: Any, paths: Any, schema: Any) -> Any:
        rows = [("t", 0, offset, reason, detail) for offset, reason, detail in landed]
        return frame_of(spark, rows, f"{files.COORDINATE_COLUMNS}, reason STRING, detail STRING").select(*schema.names)

    monkeypatch.setattr(pinned_fates, "pinned_fates", lambda *_: [])
    monkeypatch.setattr(pinned_fates, "discarded", lambda *_: [("t", 0, 3), ("t", 0, 4)], raising=False)
    monkeypatch.setattr(files.landing_files, "files_covering", lambda *_: [])
    monkeypatch.setattr(files, "read_files", read_files)
    frame = spark.createDataFrame([(None, b"v", "t", 0, n, NOW, []) for n in range(5)], KAFKA_DDL)
    declared = replace(load_pipeline("nest_cameras"), decoder=decoder)
    ranges = [OffsetRange(TopicPartition("t", 0), 0, 5)]
    monkeypatch.setattr(files.landing_files, "files_at", lambda *_: [SimpleNamespace(rows=3)])
    for most in (3, 2, 1):
        # The driver holds what is broadcast: the two that are held, of three by the ledger.
        monkeypatch.setattr(files, "BROADCAST_AT_MOST", most)
        records, withheld = pinned_fates.withhold_quarantined(spark, declared, ranges, {}, [], frame)
        assert withheld is not None
        plan = records._jdf.queryExecution().analyzed().toString()
        assert ("ResolvedHint (strategy=broadcast)" in plan) == (most > 1)
    assert [row.offset for row in records.where(withheld.isNotNull()).collect()] == [1, 3]


@pytest.mark.parametrize("most", [2, 1])
def test_erased_and_replayed_records_are_broadcast_only_when_they_are_few(
    spark: Any, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    rows, coordinates = frame_of(spark, [("t", 0, 0)], files.COORDINATE_COLUMNS), [("t", 0, 0), ("t", 0, 1)]
    monkeypatch.setattr(files, "BROADCAST_AT_MOST", most)
    monkeypatch.setattr(registered, "read_files", lambda *_: rows)
    monkeypatch.setattr(registered, "replayed_within", lambda *_: coordinates)
    ranges = [OffsetRange(TopicPartition("t", 0), 0, 5)]
    read = registered._read_revisions(spark, load_pipeline("nest_cameras"), [], ranges)
    for left in (without(rows, coordinates), read):
        plan = left._jdf.queryExecution().analyzed().toString()
        assert ("ResolvedHint (strategy=broadcast)" in plan) == (most == 2)


def test_function_s_naive_times_are_in_utc_in_both_forms(spark: Any, monkeypatch: Any) -> None:
    for vectorised in (False, True):
        name = "moments" if vectorised else "moment"
        decoder = UserDefined(f"tests.support.own_decoders:{name}", schema="at TIMESTAMP", vectorised=vectorised)
        found = fates(spark, decoder, "at TIMESTAMP", [b"2026-11-20T05:00:00"], monkeypatch)
        assert found == [(datetime(2026, 11, 20, 5),)]


def test_name_is_refused_when_it_is_not_a_path_of_a_function() -> None:
    with pytest.raises(UsageError, match="names no function"):
        UserDefined("os.system('x')", schema=METER)
