"""Lines instead of Kafka, without services: how a source is written, under which names it runs, how a file is read."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from include.errors import UsageError
from include.ledger.streams.lines import NotedFile
from include.pipelines import load_line_pipeline, load_pipeline
from include.pipelines.spec.lines import SocketLines, TextFiles, parse_line_source

AT = datetime(2026, 11, 20, 5, tzinfo=UTC)


def test_source_is_a_socket_or_a_folder_when_its_uri_says_so() -> None:
    assert parse_line_source("socket://127.0.0.1:9999") == SocketLines("127.0.0.1", 9999)
    assert parse_line_source("socket://[::1]:9999") == SocketLines("::1", 9999)
    assert parse_line_source("file:///in/coming/") == TextFiles("file:///in/coming")
    assert parse_line_source("s3a://bucket/in") == TextFiles("s3a://bucket/in")


@pytest.mark.parametrize(
    "text",
    ["", "/in", "in", "socket://host", "socket://:1", "socket://h:99999", "socket://h:1/x", "http://[", "file:x"],
)
def test_source_is_refused_when_it_is_written_otherwise(text: str) -> None:
    with pytest.raises(UsageError, match="is not a source of lines"):
        parse_line_source(text)


def test_pipeline_has_names_of_its_own_for_all_that_it_writes_when_it_reads_lines() -> None:
    declared, lines = load_pipeline("isp_hits"), load_line_pipeline("isp_hits_socket")
    assert lines is not None
    assert (lines.name, lines.code) == ("isp_hits_socket", "isp_hits")
    assert set(lines.tables).isdisjoint(declared.tables)

    def topics(pipeline: object) -> set[str]:
        views = pipeline.views  # type: ignore[attr-defined]
        sinks = {topic for view in views for sink in view.sinks for topic in getattr(sink, "topics", ())}
        return sinks | {view.speed.topic for view in views}

    assert topics(lines) == {f"{topic}-socket" for topic in topics(declared)}
    assert (lines.decoder, lines.archive) == (declared.decoder, declared.archive)


def test_pipeline_cannot_read_lines_when_its_messages_are_binary() -> None:
    with pytest.raises(UsageError, match="binary messages"):
        load_line_pipeline("gps_positions_files")


def test_name_of_lines_is_refused_when_offsets_are_needed() -> None:
    with pytest.raises(UsageError, match=r"no interval can be pinned over them.* — produce the lines into Kafka"):
        load_pipeline("isp_hits_files")
    for name in ("isp_hits_topics", "files", "_files"):
        assert load_line_pipeline(name) is None
        with pytest.raises(UsageError, match="unknown pipeline"):
            load_pipeline(name)


@pytest.mark.parametrize("compressed", [False, True])
def test_lines_are_numbered_and_their_bytes_kept_when_a_file_is_read(tmp_path: Path, compressed: bool) -> None:
    from spark_jobs.lines.line_source import read_file

    content = b"a\r\nb\rc\n\n\xff\xfe\n\xef\xbb\xbf" + b"y\n" * 2500 + b"last"
    path = tmp_path / ("x.gz" if compressed else "x")
    path.write_bytes(gzip.compress(content) if compressed else content)
    noted = NotedFile(path.as_uri(), path.stat().st_size, AT, "the source", first_line=7)
    table = pa.Table.from_batches(read_file(noted))
    assert table["value"].to_pylist() == [b"a", b"b\rc", b"", b"\xff\xfe", b"\xef\xbb\xbfy", *[b"y"] * 2499, b"last"]
    assert table["line"].to_pylist() == list(range(7, 7 + table.num_rows))
    assert set(table["name"].to_pylist()) == {"the source"}
    assert set(table["arrived_at"].to_pylist()) == {AT}


def test_no_lines_are_read_when_a_file_is_empty(tmp_path: Path) -> None:
    from spark_jobs.lines.line_source import read_file

    path = tmp_path / "x"
    path.touch()
    assert pa.Table.from_batches(read_file(NotedFile(path.as_uri(), 0, AT, "x"))).num_rows == 0
