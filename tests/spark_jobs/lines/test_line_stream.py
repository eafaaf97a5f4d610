"""Queries over lines: which code may begin them; each has its source, a Python process, before the next one starts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery

from include.errors import UsageError
from include.ledger.streams.generations import StreamGeneration
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from include.pipelines.spec.lines import TextFiles
from spark_jobs.lines import line_stream
from spark_jobs.lines.line_stream import _begin, with_source


class _Reader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"line": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        return iter(()), start

    def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:  # noqa: N802
        return iter(())


class _Source(DataSource):
    """A source whose Python process notes that it was started."""

    @classmethod
    def name(cls) -> str:
        return "noting"

    def schema(self) -> str:
        return "line INT"

    def simpleStreamReader(self, schema: Any) -> _Reader:  # noqa: N802
        Path(self.options["note"]).touch()
        return _Reader()


class _Broken(_Source):
    @classmethod
    def name(cls) -> str:
        return "broken"

    def simpleStreamReader(self, schema: Any) -> _Reader:  # noqa: N802
        raise ValueError("no such feed")


def started(spark: Any, folder: Path, source: str) -> StreamingQuery:
    lines = spark.readStream.format(source).option("note", str(folder / "note")).load()
    writer = lines.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query: StreamingQuery = writer.start()
    return query


@pytest.fixture
def sources(spark: Any) -> Any:
    spark.dataSource.register(_Source)
    spark.dataSource.register(_Broken)
    return spark


def test_source_has_its_process_when_the_query_is_returned(sources: Any, tmp_path: Path) -> None:
    query = started(sources, tmp_path, "noting")
    assert with_source(query) is query
    try:
        assert (tmp_path / "note").exists()
        assert not query.status["message"].startswith("Initializing")
    finally:
        query.stop()


def test_query_that_failed_is_returned_too_when_its_source_cannot_be_made(sources: Any, tmp_path: Path) -> None:
    query = with_source(started(sources, tmp_path, "broken"))
    assert "no such feed" in str(query.exception())


def test_code_may_be_corrected_until_a_view_has_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = load_pipeline("nest_cameras")
    name = pipeline.views[0].name
    generation = StreamGeneration(pipeline.name, 0, {name: {"window length": "1 day"}}, {})
    checkpoints: list[str] = []
    noted: list[str] = []
    for check in (
        "check_lake",
        "check_references",
        "check_own_topics",
        "check_compacted_topics",
        "create_written_topics",
    ):
        monkeypatch.setattr(line_stream, check, lambda *_: None)
    monkeypatch.setattr(line_stream, "check_checkpoints", lambda *_: None)
    monkeypatch.setattr(line_stream, "note_compacted_topics", lambda _, noted: noted)
    monkeypatch.setattr(line_stream.lines, "note_source", lambda *_: None)
    monkeypatch.setattr(line_stream.generations, "current_or_first", lambda *_: generation)
    monkeypatch.setattr(line_stream.generations, "has_committed", lambda *_: False)
    monkeypatch.setattr(line_stream.generations, "note_start", lambda _, query, *__: noted.append(query))
    monkeypatch.setattr(line_stream, "checkpoint_id", lambda _: checkpoints[0] if checkpoints else None)
    begin = partial(_begin, pipeline, TextFiles("file:///lines"), Lease(pipeline.name, 7, "here"))
    # Its plan was refused.
    assert begin() == generation
    assert noted == [name]
    checkpoints.append("id")
    with pytest.raises(UsageError, match="window length: 1 day → 1 hour"):
        begin()
