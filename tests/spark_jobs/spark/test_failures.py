"""What a failure means is told by types and error classes: a record may hold any words."""

from __future__ import annotations

import importlib
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from include.errors import (
    AnotherWriter,
    CheckpointDamaged,
    DiskFull,
    OffsetsLost,
    ReconciliationFailed,
    ServiceUnreachable,
    TidemarkError,
    UsageError,
)
from include.lake.checkpoints import check_logs
from include.services.process import free_port
from tests.conftest import SetSettings

pytestmark = pytest.mark.spark

WORDS = [
    "Connection refused",
    "org.apache.kafka.common.errors.TimeoutException: Failed to update metadata after 60000 ms.",
    "No resolvable bootstrap urls given in bootstrap.servers",
    "some data may have been lost because they are not available in Kafka any more",
    "[KAFKA_DATA_LOSS.START_OFFSET_RESET] OffsetOutOfRangeException",
    "java.io.IOException: No space left on device",
    "[FAILED_READ_FILE.NO_HINT] Error while reading file file:/lake/tables/t/part-0.parquet. SQLSTATE: KD001",
    "[PATH_NOT_FOUND] Path does not exist: file:/lake/tables/t. SQLSTATE: 42K03",
    "tidemark: a record cannot be decoded: nest-logs-0 offset 7: trailing_bytes, bytes follow the record",
    "tidemark: a schema id is not resolved yet: 7",
    "AWS Error NETWORK_CONNECTION during HeadObject operation",
    "Unable to execute HTTP request: connect timed out",
    "Traceback (most recent call last):\n  File x\ninclude.errors.ServiceUnreachable: PostgreSQL",
    'Traceback (most recent call last):\n  File "/a/pyspark/b.py", line 1, in read_command\nImportError: x',
]


def failure_of(action: Callable[[], object]) -> Exception:
    from spark_jobs.spark.failures import SPARK_FAILURES

    with pytest.raises(SPARK_FAILURES) as raised:
        action()
    return raised.value


def computed(rows: Any) -> Callable[[], object]:
    return lambda: rows.write.format("noop").mode("overwrite").save()


def records(spark: Any, text: str) -> Any:
    from spark_jobs.spark.frames import frame_of

    return frame_of(spark, [(text,)], "text STRING")


@pytest.mark.parametrize("text", WORDS)
def test_words_of_a_record_are_no_outage_when_an_expression_throws_them(
    spark: Any, text: str, set_settings: SetSettings
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.decoding.poison import thrown_by
    from spark_jobs.spark.failures import translate, unresolved_id

    set_settings(TIDEMARK_LAKE="s3a://bucket/lake")
    throwing = records(spark, text).select(F.raise_error(F.col("text")))
    failed = failure_of(computed(throwing))
    assert translate(failed) is None
    assert unresolved_id(failed) is None
    # What a search for the record does with it: blame the record.
    assert thrown_by(throwing)


def test_words_of_a_record_are_no_outage_when_a_function_of_a_transform_throws_them(spark: Any) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.spark.failures import translate, unresolved_id

    def throw(value: str) -> str:
        raise ValueError(value)

    for text in WORDS:
        failed = failure_of(computed(records(spark, text).select(F.udf(throw)("text"))))
        assert translate(failed) is None, text
        assert unresolved_id(failed) is None


@pytest.mark.parametrize("now", [None, "import no_such_module_either\n", "def decode(:\n", "other = 1\n"])
def test_no_record_is_blamed_when_a_worker_cannot_load_a_function_as_newer_code_lies_there(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: str | None
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.spark.failures import translate

    name = f"known_to_the_driver_{abs(hash(now))}"
    file = tmp_path / f"{name}.py"
    file.write_text("def decode(value):\n    return value\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = F.udf(importlib.import_module(name).decode)
    if now is None:
        file.unlink()
    else:
        file.write_text(now)
    # The worker's path, too: as that of modules which all drivers find.
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", str(tmp_path))
    meaning = translate(failure_of(computed(records(spark, "a").select(function("text")))))
    assert type(meaning) is TidemarkError
    assert meaning.retryable
    assert str(meaning).startswith("a Python worker cannot load what its driver sent: ")


def test_words_of_a_record_are_no_outage_when_a_cast_quotes_them(spark: Any) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.spark.failures import translate

    for text in WORDS:
        failed = failure_of(computed(records(spark, text).select(F.col("text").cast("INT"))))
        assert text.split("\n")[0] in str(failed)
        assert translate(failed) is None


def test_outage_is_reported_when_the_broker_does_not_answer(spark: Any) -> None:
    from spark_jobs.spark.failures import translate

    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "2000"}
    options |= {"kafka.request.timeout.ms": "1000", "subscribe": "t", "fetchOffset.numRetries": "1"}
    topic = spark.read.format("kafka").options(**options).load()
    assert isinstance(translate(failure_of(computed(topic))), ServiceUnreachable)


def test_outage_in_the_thread_of_a_query_is_an_outage_when_the_query_has_ended(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import StreamingQueryException

    from spark_jobs.spark.failures import end_of_query, root_cause, translate

    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.default.api.timeout.ms": "2000"}
    options |= {"kafka.request.timeout.ms": "1000", "subscribe": "t", "fetchOffset.numRetries": "1"}
    writer = spark.readStream.format("kafka").options(**options).load().writeStream.format("noop")
    query = writer.option("checkpointLocation", tmp_path.as_uri()).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination(60)
    failed = end_of_query(query)
    assert failed is not None
    assert isinstance(translate(failed), ServiceUnreachable)
    assert root_cause(failed).startswith("TimeoutException: ")


def test_outage_is_reported_when_the_broker_s_name_is_unknown(spark: Any) -> None:
    from spark_jobs.spark.failures import translate

    options = {"kafka.bootstrap.servers": "broker.invalid:9092", "topic": "t"}
    written = records(spark, "v").selectExpr("text AS value")
    failed = failure_of(lambda: written.write.format("kafka").options(**options).save())
    assert isinstance(translate(failed), ServiceUnreachable)


def test_outage_is_reported_when_the_database_refuses_connections(spark: Any) -> None:
    from spark_jobs.spark.failures import translate

    read = spark.read.format("jdbc").option("url", "jdbc:postgresql://127.0.0.1:1/x").option("dbtable", "t")
    assert isinstance(translate(failure_of(read.option("driver", "org.postgresql.Driver").load)), ServiceUnreachable)


def test_offsets_are_lost_when_kafka_no_longer_holds_them(spark: Any) -> None:
    from py4j.protocol import Py4JJavaError

    from spark_jobs.spark.failures import translate

    jvm = spark._jvm
    gone = jvm.org.apache.kafka.clients.consumer.OffsetOutOfRangeException("gone", jvm.java.util.HashMap())
    failed = Py4JJavaError("reading", jvm.java.lang.RuntimeException("a task failed", gone))
    lost = translate(failed)
    assert isinstance(lost, OffsetsLost)
    assert lost.remedy.endswith("--source archive")


def test_another_writer_is_reported_when_it_writes_the_checkpoint(spark: Any) -> None:
    from py4j.protocol import Py4JJavaError

    from spark_jobs.spark.failures import translate

    conflict = spark._jvm.org.apache.spark.sql.errors.QueryExecutionErrors.concurrentStreamLogUpdate(1)
    meaning = translate(Py4JJavaError("committing", conflict))
    assert isinstance(meaning, AnotherWriter)
    assert meaning.exit_code == 5


def test_no_record_is_blamed_when_the_disk_is_full(spark: Any) -> None:
    from spark_jobs.spark.failures import translate

    def fill() -> None:
        spark._jvm.java.io.FileOutputStream("/dev/full").write(1)

    meaning = translate(failure_of(fill))
    assert isinstance(meaning, DiskFull)
    assert meaning.exit_code == 1


@pytest.mark.parametrize(
    ("kind", "message", "place"),
    [
        ("java.io.FileNotFoundException", "/lake/landing/x (No space left on device)", ""),
        ("java.nio.file.FileSystemException", "/tmp/blockmgr/0f: No space left on device", ""),
        # The kernel's folder has no space at all.
        ("java.io.IOException", "Mkdirs failed to create file:/proc/a/b (exists=false, cwd=file:/work)", "/proc"),
    ],
)
def test_full_disk_is_named_when_java_cannot_make_a_file_or_a_folder(
    spark: Any, kind: str, message: str, place: str
) -> None:
    from py4j.protocol import Py4JJavaError

    from spark_jobs.spark.failures import translate

    thrown = getattr(spark._jvm, kind)(message)
    meaning = translate(Py4JJavaError("writing", spark._jvm.java.lang.RuntimeException(thrown)))
    assert isinstance(meaning, DiskFull)
    assert f"No space left on device: {place}" in str(meaning)


def test_permissions_may_be_to_blame_when_a_folder_cannot_be_made_on_a_disk_with_space(
    spark: Any, tmp_path: Path
) -> None:
    from py4j.protocol import Py4JJavaError

    from spark_jobs.spark.failures import translate

    thrown = spark._jvm.java.io.IOException(f"Mkdirs failed to create file:{tmp_path}/a (exists=false, cwd=file:/)")
    assert translate(Py4JJavaError("writing", thrown)) is None


def answered(spark: Any, state: str, message: str) -> Exception:
    """The failure of what Spark asks PostgreSQL, with the server's answer as its driver reads it."""
    from py4j.protocol import Py4JJavaError

    said = f"SERROR\0C{state}\0M{message}\0HCheck free disk space.\0"
    jvm = spark._jvm
    thrown = jvm.org.postgresql.util.PSQLException(jvm.org.postgresql.util.ServerErrorMessage(said))
    return Py4JJavaError("registering", jvm.java.lang.RuntimeException(thrown))


@pytest.mark.parametrize(
    ("state", "message", "remedy"),
    [
        ("53100", 'could not extend file "base/1/2": No space left on device', "make room on its disk"),
        ("57P01", "terminating connection due to administrator command", "./tidemark status"),
    ],
)
def test_database_is_named_when_it_is_full_or_ends(
    spark: Any, set_settings: SetSettings, state: str, message: str, remedy: str
) -> None:
    from spark_jobs.spark.failures import translate

    set_settings(TIDEMARK_DATABASE_URL="postgresql://u:secret@db:5432")
    meaning = translate(answered(spark, state, message))
    assert isinstance(meaning, ServiceUnreachable)
    assert str(meaning) == f"PostgreSQL at db:5432: ERROR: {message} — {remedy}; ./tidemark up postgres"


def test_statement_is_to_blame_when_the_database_refuses_it(spark: Any) -> None:
    from spark_jobs.spark.failures import translate

    assert translate(answered(spark, "42601", "No space left on device")) is None


def test_file_is_named_when_it_is_missing_or_damaged(spark: Any, tmp_path: Path) -> None:
    from spark_jobs.spark.failures import translate
    from spark_jobs.spark.thrown import unread_file

    damaged = tmp_path / "my löke" / "damaged.parquet"
    damaged.parent.mkdir()
    damaged.write_bytes(b"PAR1 is how it begins, and this is not how it goes on")
    rows = spark.read.schema("text STRING").parquet(f"file://{damaged}")
    failure = failure_of(computed(rows))
    assert unread_file(failure) == f"file://{damaged}"
    meaning = translate(failure)
    assert isinstance(meaning, ReconciliationFailed)
    assert "my löke/damaged.parquet cannot be read" in str(meaning)
    assert "it is damaged" in str(meaning)

    missing = translate(failure_of(lambda: spark.read.parquet((tmp_path / "missing.parquet").as_uri())))
    assert isinstance(missing, ReconciliationFailed)
    assert "missing.parquet is missing" in str(missing)


def test_declaration_is_blamed_when_a_file_has_another_type(spark: Any, tmp_path: Path) -> None:
    """The file is not damaged: no copy of it would help."""
    from spark_jobs.spark.failures import translate

    spark.sql("SELECT 1D AS reading").write.parquet((tmp_path / "landed").as_uri())
    rows = spark.read.schema("reading FLOAT").parquet((tmp_path / "landed").as_uri())
    meaning = translate(failure_of(computed(rows)))
    assert isinstance(meaning, UsageError)
    assert "damaged" not in str(meaning)
    assert ".parquet is as it was written, but its column reading is DOUBLE there, and declared as float" in str(
        meaning
    )
    assert "declare reading by the type that the file has" in str(meaning)
    assert "where files have it by several types, declare it under another name" in str(meaning)


def test_error_is_recognised_by_its_type_when_it_is_the_operating_system_s() -> None:
    from spark_jobs.spark.failures import translate

    assert isinstance(translate(ConnectionRefusedError(111, "Connection refused")), ServiceUnreachable)
    assert "No space left" in str(translate(OSError(28, "No space left on device")))
    assert translate(OSError(2, "No such file or directory", "Connection refused")) is None


def test_jvm_is_named_when_it_has_ended_and_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
    from pyspark import SparkContext

    from spark_jobs.spark.failures import translate

    with socket.create_server(("127.0.0.1", free_port())) as nobody:
        port = nobody.getsockname()[1]
    gone = ClientServer(JavaParameters(port=port), PythonParameters(port=0, eager_load=False))
    monkeypatch.setattr(SparkContext, "_gateway", gone)
    with pytest.raises(OSError, match="refused") as refused:
        gone.jvm.java.lang.System.nanoTime()
    meaning = translate(refused.value)
    assert meaning is not None
    assert (type(meaning), meaning.exit_code) == (TidemarkError, 1)
    assert "Spark's JVM has ended (was memory short?)" in str(meaning)


def test_exit_code_is_kept_when_one_of_tidemark_s_own_sources_raises(spark: Any, tmp_path: Path) -> None:
    from collections.abc import Iterator

    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

    from spark_jobs.spark.failures import translate

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            raise ServiceUnreachable("the lake", remedy="start it")

    class StreamReader(DataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            return iter([])

        def latestOffset(self) -> dict[str, int]:  # noqa: N802
            try:
                raise ValueError("the cause is not the error")
            except ValueError as error:
                raise ServiceUnreachable("the ledger", remedy="start it") from error

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "throwing"

        def schema(self) -> str:
            return "text STRING"

        def reader(self, schema: StructType) -> Reader:
            return Reader()

        def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
            return StreamReader()

    spark.dataSource.register(Source)
    read = translate(failure_of(computed(spark.read.format("throwing").load())))
    assert (type(read), str(read)) == (ServiceUnreachable, "the lake — start it")
    writer = spark.readStream.format("throwing").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", tmp_path.as_uri()).start()
    streamed = translate(failure_of(lambda: query.awaitTermination(60)))
    assert (type(streamed), str(streamed)) == (ServiceUnreachable, "the ledger — start it")


def test_machine_is_too_busy_when_a_python_process_of_spark_starts_too_late(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from spark_jobs.spark.failures import translate

    class Late(DataSource):
        @classmethod
        def name(cls) -> str:
            return "late"

        def schema(self) -> str:
            return "text STRING"

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return DataSourceStreamReader()

    late = tmp_path / "python"
    late.write_text(f'#!/bin/sh\ncase "$*" in *streaming_source*) exec sleep 15;; esac\nexec {sys.executable} "$@"\n')
    late.chmod(0o700)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(late))
    spark.dataSource.register(Late)
    writer = spark.readStream.format("late").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", tmp_path.as_uri()).start()
    meaning = translate(failure_of(lambda: query.awaitTermination(60)))
    assert type(meaning) is TidemarkError
    assert "a Python process of Spark did not start in time" in str(meaning)


def damaged_state(how: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        for file in checkpoint.glob("state/0/*/*.delta"):
            file.with_name(f".{file.name}.crc").unlink()
            how(file)

    return damage


def emptied(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).write_bytes(b"") and None


DAMAGES: dict[str, Callable[[Path], object]] = {
    "plan": emptied("offsets/1"),
    "plan before": lambda checkpoint: (checkpoint / "offsets" / "0").unlink(),
    "commit": emptied("commits/1"),
    "metadata": lambda checkpoint: (checkpoint / "metadata").unlink(),
    "state": lambda checkpoint: shutil.rmtree(checkpoint / "state"),
    "state of a partition": lambda checkpoint: shutil.rmtree(checkpoint / "state" / "0" / "0"),
    "files of the state": damaged_state(Path.unlink),
    "empty state": damaged_state(lambda file: file.write_bytes(b"")),
    "state cut short": damaged_state(lambda file: file.write_bytes(file.read_bytes()[:20])),
}


def run_batch(spark: Any, lines: Path, checkpoint: Path) -> tuple[Exception | None, list[Exception]]:
    """Count what is new in the folder of lines. Returns the query's error, and what its sink was thrown."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import DataFrame

    from spark_jobs.spark.failures import SPARK_FAILURES, end_of_query

    thrown: list[Exception] = []

    def write(batch: DataFrame, _: int) -> None:
        # As a stream's sinks do: Spark passes on only the text.
        try:
            batch.write.format("noop").mode("overwrite").save()
        except SPARK_FAILURES as error:
            thrown.append(error)
            raise

    counted = spark.readStream.text(lines.as_uri()).groupBy("value").count().writeStream.outputMode("update")
    query = counted.option("checkpointLocation", checkpoint.as_uri()).trigger(availableNow=True).foreachBatch(write)
    started = query.start()
    with suppress(StreamingQueryException):
        started.awaitTermination(60)
    return end_of_query(started), thrown


@pytest.fixture(scope="module")
def counted(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoint of two micro-batches, and the lines of these and of another one."""
    folder = tmp_path_factory.mktemp("counted")
    lines = folder / "lines"
    lines.mkdir()
    for number in range(2):
        (lines / f"{number}.txt").write_text(f"{number}\n")
        assert run_batch(spark, lines, folder / "checkpoint") == (None, [])
    check_logs((folder / "checkpoint").as_uri())
    (lines / "2.txt").write_text("2\n")
    return folder


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_new_generation_is_named_when_spark_cannot_read_the_checkpoint(
    spark: Any, tmp_path: Path, counted: Path, damage: Callable[[Path], object]
) -> None:
    from spark_jobs.spark.failures import SPARK_FAILURES, translate
    from spark_jobs.spark.thrown import chain_of

    checkpoint = shutil.copytree(counted / "checkpoint", tmp_path / "checkpoint")
    damage(checkpoint)
    thrown: list[Exception] = []
    try:
        failed, thrown = run_batch(spark, counted / "lines", checkpoint)
    except SPARK_FAILURES as error:
        failed = error
    failed = thrown[0] if thrown else failed
    assert failed is not None
    meaning = translate(failed)
    assert isinstance(meaning, CheckpointDamaged), list(chain_of(failed))
    assert "./tidemark new-generation" in str(meaning)


def test_next_batch_is_counted_when_a_copied_checkpoint_is_whole(spark: Any, tmp_path: Path, counted: Path) -> None:
    """Otherwise a copy alone would be what Spark cannot read."""
    checkpoint = shutil.copytree(counted / "checkpoint", tmp_path / "checkpoint")
    assert run_batch(spark, counted / "lines", checkpoint) == (None, [])
    check_logs(checkpoint.as_uri())
