"""What a query's batch function failed with keeps its types: Spark itself hands back nothing but the text."""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import ServiceUnreachable
from include.ledger.streams.generations import StreamGeneration
from tests.conftest import SetSettings, wait_for

pytestmark = pytest.mark.spark

NUMBERS = count()


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, set_settings: SetSettings) -> None:
    set_settings(TIDEMARK_LAKE=f"{tmp_path.as_uri()}/lake")


def query_in_a_micro_batch(fails_with: Exception | None = None, name: str = "archive") -> Any:
    """A query whose micro-batch ends when it is waited for: with the error, where there is one."""

    def end(_: float) -> None:
        query.isActive = False
        if fails_with:
            query.note()
            raise fails_with

    def stop() -> None:
        query.isActive, query.is_stopped = False, True

    query = SimpleNamespace(
        name=f"p.{name}",
        isActive=True,
        is_stopped=False,
        lastProgress=None,
        status={"isTriggerActive": True, "message": "Processing new data"},
        # What its batch function does before it fails.
        note=lambda: None,
        awaitTermination=end,
        exception=lambda: fails_with,
        stop=stop,
        _jsq=SimpleNamespace(exception=lambda: SimpleNamespace(get=lambda: None)),
    )
    return query


def stopping(archive: Any, view: Any, *, of_lines: bool = False) -> Any:
    """The queries of a stream, two of them."""
    from spark_jobs.lines.line_stream import _LineQueries
    from spark_jobs.streaming.queries import StreamQueries

    base: Any = _LineQueries if of_lines else StreamQueries

    class Queries(base):
        __init__ = StreamQueries.__init__

        def running(self) -> bool:
            return True

    views = [SimpleNamespace(name="v")]
    pipeline: Any = SimpleNamespace(name="p", archive=SimpleNamespace(delta=False), views=views)
    nothing: Any = None
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda name, value: None, unset=lambda name: None))
    queries = Queries(spark, pipeline, nothing, nothing, until_caught_up=False)
    queries._queries = [archive, view]
    return queries


def test_error_of_the_last_micro_batch_keeps_its_type_when_the_stream_is_being_stopped() -> None:
    from pyspark.errors import StreamingQueryException

    away = ServiceUnreachable("PostgreSQL does not answer")
    archive, view = query_in_a_micro_batch(StreamingQueryException("only the text")), query_in_a_micro_batch()
    queries = stopping(archive, view)
    archive.note = lambda: queries._errors.append(away)
    with pytest.raises(ServiceUnreachable, match="PostgreSQL"):
        queries.stop_at_batch_boundary()
    assert (archive.is_stopped, view.is_stopped) == (True, True)


def test_full_disk_is_named_when_the_last_micro_batch_of_the_archive_meets_it() -> None:
    from pyspark.errors import StreamingQueryException

    full = OSError(errno.ENOSPC, "No space left on device")
    archive, view = query_in_a_micro_batch(StreamingQueryException("only the text")), query_in_a_micro_batch()
    queries = stopping(archive, view)
    archive.note = lambda: queries._thrown.update(archive=full)
    with pytest.raises(OSError, match="No space left") as raised:
        queries.stop_at_batch_boundary()
    assert (raised.value, view.is_stopped) == (full, True)


def test_full_disk_is_named_when_the_last_micro_batch_of_a_view_meets_it() -> None:
    from pyspark.errors import StreamingQueryException

    full = OSError(errno.ENOSPC, "No space left on device")
    archive, view = query_in_a_micro_batch(), query_in_a_micro_batch(StreamingQueryException("only the text"), "view")
    queries = stopping(archive, view)
    view.note = lambda: queries._thrown.update(view=full)
    with pytest.raises(OSError, match="No space left") as raised:
        queries.stop_at_batch_boundary()
    assert (raised.value, archive.is_stopped) == (full, True)


def test_stream_is_stopped_without_an_error_when_only_the_stop_makes_a_view_fail() -> None:
    archive, view = query_in_a_micro_batch(), query_in_a_micro_batch(name="view")
    queries = stopping(archive, view)
    view.stop = lambda: queries._thrown.update(view=OSError(errno.ENOSPC, "No space left on device"))
    queries.stop_at_batch_boundary()
    assert "view" in queries._thrown


def test_stream_is_stopped_without_an_error_when_a_record_makes_a_view_throw_meanwhile() -> None:
    from pyspark.errors import StreamingQueryException

    # The next start withholds it.
    archive, view = query_in_a_micro_batch(), query_in_a_micro_batch(StreamingQueryException("a record throws"))
    stopping(archive, view).stop_at_batch_boundary()
    assert (archive.is_stopped, view.is_stopped) == (True, True)


def test_stream_of_lines_ends_with_the_error_when_a_record_makes_a_view_throw_while_it_is_stopped() -> None:
    from pyspark.errors import StreamingQueryException

    # The next start meets it again.
    archive, view = query_in_a_micro_batch(), query_in_a_micro_batch(StreamingQueryException("a record throws"))
    with pytest.raises(StreamingQueryException, match="a record throws"):
        stopping(archive, view, of_lines=True).stop_at_batch_boundary()
    assert (archive.is_stopped, view.is_stopped) == (True, True)


def failure_of(spark: Any, folder: Path, text: str, *, raised: Exception | None = None) -> Exception:
    """Return the error of a query whose sink computes an expression that throws the text of a record, or raises."""
    from pyspark.errors import StreamingQueryException
    from pyspark.sql import functions as F

    from spark_jobs.streaming.queries import StreamQueries

    class Queries(StreamQueries):
        def running(self) -> bool:
            return False

    files = Path(mkdtemp(dir=folder))
    (files / "record.txt").write_text(text)
    pipeline: Any = SimpleNamespace(name="p", archive=SimpleNamespace(delta=False))
    generation = StreamGeneration("p", next(NUMBERS), {}, {})
    queries = Queries(spark, pipeline, None, generation, until_caught_up=True)  # type: ignore[arg-type]

    def land(batch: Any, batch_id: int) -> None:
        if raised is not None:
            raise raised
        batch.select(F.raise_error(F.col("value"))).write.format("noop").mode("overwrite").save()

    lines = spark.readStream.text(files.as_uri())
    query = queries._start(lines.writeStream, "archive", lambda query_id, checkpoint: land)
    with suppress(StreamingQueryException):
        query.awaitTermination(60)
    failed = queries._failure("archive", query)
    assert failed is not None
    return failed


@pytest.mark.parametrize("how", ["at the boundary", "now"])
def test_stream_ends_when_a_sink_waits_for_longer_than_it_is_given(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    from spark_jobs.streaming import queries as streaming

    class Queries(streaming.StreamQueries):
        def running(self) -> bool:
            return True

    monkeypatch.setattr(streaming, "_STOP_SECONDS", 1)
    pipeline: Any = SimpleNamespace(name="p", archive=SimpleNamespace(delta=False))
    generation = StreamGeneration("p", next(NUMBERS), {}, {})
    queries = Queries(spark, pipeline, None, generation, until_caught_up=True)  # type: ignore[arg-type]
    waits, is_free = Event(), Event()

    def land(batch: Any, batch_id: int) -> None:
        waits.set()
        is_free.wait(20)

    files = Path(mkdtemp(dir=tmp_path))
    (files / "record.txt").write_text("a record")
    query = queries._start(spark.readStream.text(files.as_uri()).writeStream, "archive", lambda *_: land)
    queries._queries = [query]
    assert waits.wait(60)
    began = time.monotonic()
    try:
        if how == "now":
            queries.stop_now()
        else:
            queries.stop_at_batch_boundary(patience=1)
        assert time.monotonic() - began < 15
        assert "p.archive waits in its micro-batch, and does not stop within 1 s" in caplog.text
        assert queries.is_one_left
        # Others that stop a query in this session wait for its end.
        assert spark.conf.get("spark.sql.streaming.stopTimeout", None) is None
    finally:
        is_free.set()
        wait_for("the query to end", lambda: query.id not in {each.id for each in spark.streams.active}, 30)
    # One that is stopped again, as that of flags, and has ended meanwhile.
    queries._stop(query)
    assert not queries.is_one_left


@pytest.mark.parametrize("text", ["Connection refused", "some data may have been lost", "No space left on device"])
def test_record_is_to_blame_when_its_words_sound_like_an_outage(spark: Any, tmp_path: Path, text: str) -> None:
    from spark_jobs.spark.failures import root_cause, translate

    failed = failure_of(spark, tmp_path, text)
    assert translate(failed) is None
    assert text in root_cause(failed)


def test_unresolved_schema_id_is_recognised_when_a_record_imitates_it(spark: Any, tmp_path: Path) -> None:
    from spark_jobs.spark.failures import UNRESOLVED, unresolved_id

    assert unresolved_id(failure_of(spark, tmp_path, f"{UNRESOLVED}: 7")) == 7
    assert unresolved_id(failure_of(spark, tmp_path, "tidemark: a schema id is not resolved yet: 7")) is None


def test_full_disk_is_named_when_a_file_of_the_sink_s_own_cannot_be_written(spark: Any, tmp_path: Path) -> None:
    from spark_jobs.spark.failures import translate

    # The quarantine's files are written by pyarrow, in the driver.
    full = OSError(errno.ENOSPC, "Error writing bytes to file. Detail: [errno 28] No space left on device")
    meaning = translate(failure_of(spark, tmp_path, "a record", raised=full))
    assert meaning is not None
    assert meaning.message.startswith("No space left on device: ")
