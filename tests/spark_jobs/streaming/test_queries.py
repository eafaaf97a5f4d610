"""What a query's batch function failed with keeps its types: Spark itself hands back nothing but the text."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any

import pytest

from include.ledger.streams.generations import StreamGeneration
from include.settings import settings

pytestmark = pytest.mark.spark

NUMBERS = count()


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TIDEMARK_LAKE", f"{tmp_path.as_uri()}/lake")
    settings.cache_clear()
    yield
    settings.cache_clear()


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
        def run(query_id: str, checkpoint: str) -> None:
            if raised is not None:
                raise raised
            throwing.save()

        throwing = batch.select(F.raise_error(F.col("value"))).write.format("noop").mode("overwrite")
        queries._sinks_of("archive", batch, run)

    lines = spark.readStream.text(files.as_uri())
    query = queries._start(lines.writeStream, "archive", land)
    with suppress(StreamingQueryException):
        query.awaitTermination(60)
    failed = queries._failure("archive", query)
    assert failed is not None
    return failed


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
