"""Queries over lines have their source, a Python process each, before the next one starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.lines.line_stream import with_source


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
