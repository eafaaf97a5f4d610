"""Lines instead of Kafka, without services: how a source is written, under which names it runs, how a file is read."""

from __future__ import annotations

import gzip
import os
import pickle
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from include import pipelines
from include.errors import PipelinesClash, TidemarkError, UsageError
from include.ledger.streams.lines import NotedFile
from include.pipelines import Declarations, as_lines, check_lines_apart, load_line_pipeline, load_pipeline
from include.pipelines.spec import AdditiveView, DatabaseTable, JdbcTable, KafkaTopic, Rows
from include.pipelines.spec.lines import SocketLines, TextFiles, parse_line_source
from include.streams.stopping import request_stop
from spark_jobs.lines.line_stream import run_line_stream

AT = datetime(2026, 11, 20, 5, tzinfo=UTC)


def test_source_is_a_socket_or_a_folder_when_its_uri_says_so() -> None:
    assert parse_line_source("socket://127.0.0.1:9999") == SocketLines("127.0.0.1", 9999)
    assert parse_line_source("socket://[::1]:9999") == SocketLines("::1", 9999)
    assert parse_line_source("file:///in/coming/") == TextFiles("file:///in/coming")
    assert parse_line_source("s3a://bucket/in") == TextFiles("s3a://bucket/in")


@pytest.mark.parametrize(
    "text",
    [
        *("file:///data/hits", "file:///data//hits/", "file:/data/hits", "file:///data/./hits", "FILE:///data/hits"),
        *("file://localhost/data/hits", "file:///data/h%69ts", "file:////data/hits", "file:///data/in/../hits"),
    ],
)
def test_folder_is_the_same_source_when_it_is_written_otherwise(text: str) -> None:
    assert parse_line_source(text) == TextFiles("file:///data/hits")


def test_folder_keeps_its_name_when_it_has_characters_that_uris_escape() -> None:
    for text in ("file:///in/h ü", "file:///in/h%20%C3%BC"):
        assert parse_line_source(text) == TextFiles("file:///in/h%20%C3%BC")
    assert parse_line_source("file:///in/50%2525") == TextFiles("file:///in/50%2525")
    # Of an object store, other texts are other folders.
    assert parse_line_source("s3a://bucket/in//h%69ts") == TextFiles("s3a://bucket/in//h%69ts")


@pytest.mark.parametrize(
    "text",
    [
        "file://data/hits",
        "",
        "/in",
        "in",
        "socket://host",
        "socket://:1",
        "socket://h:99999",
        "socket://h:1/x",
        "http://[",
        "file:x",
    ],
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


def test_lines_are_refused_when_another_pipeline_is_declared_by_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    declared, names = load_pipeline("isp_hits"), pipelines.pipeline_names()
    assert as_lines(declared, "files").name == "isp_hits_files"
    monkeypatch.setattr(pipelines, "pipeline_names", lambda: (*names, "isp_hits_files"))
    # Of the other source, the name is free.
    assert as_lines(declared, "socket").name == "isp_hits_socket"
    for begin_or_stop in (lambda: as_lines(declared, "files"), lambda: request_stop("isp_hits", "file:///in")):
        with pytest.raises(UsageError, match=r"isp_hits_files is the name .* include/pipelines/isp_hits_files\.py"):
            begin_or_stop()


def served(view: AdditiveView, name: str) -> AdditiveView:
    return replace(view, name=name, speed=replace(view.speed, topic=f"topic-of-{name}"), sinks=(JdbcTable(),))


def test_lines_are_refused_when_another_declaration_writes_their_topic_or_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    isp, nest = load_pipeline("isp_hits"), load_pipeline("nest_cameras")
    hits = replace(isp, views=(served(isp.views[0], "hits"),), reports=())
    both = replace(hits, views=(*hits.views, served(isp.views[0], "files_hits")))
    topic = replace(nest, outputs=(Rows("clean", to=KafkaTopic("topic-of-hits-files")),))
    table = replace(nest, outputs=(Rows("clean", to=DatabaseTable(table="isp_hits_files_hits")),))
    for declared, others, words in (
        (both, [both], "isp_hits_files and isp_hits both write the table isp_hits_files_hits of serving"),
        (hits, [hits, topic], "isp_hits_files and nest_cameras both write the topic topic-of-hits-files"),
        (hits, [hits, table], "isp_hits_files and nest_cameras both write the table isp_hits_files_hits of serving"),
        (hits, [hits, nest], ""),
    ):
        found = Declarations(tuple(others), {})
        monkeypatch.setattr(pipelines, "declarations", lambda found=found: found)
        with pytest.raises(PipelinesClash, match=words) if words else nullcontext():
            check_lines_apart(as_lines(declared, "files"))
    monkeypatch.setattr(pipelines, "declarations", lambda: Declarations((both,), {}))
    with pytest.raises(PipelinesClash, match="the table isp_hits_files_hits of serving"):
        run_line_stream(lambda: pytest.fail("a session"), both, TextFiles("file:///in"), until_caught_up=True)


def test_lines_are_refused_with_the_length_when_their_name_is_too_long() -> None:
    isp = load_pipeline("isp_hits")
    named = replace(isp, name="p" * 56, views=(), reports=(), outputs=())
    assert len(as_lines(named, "socket").name) == 63
    with pytest.raises(UsageError, match=r"pipeline 'p+_socket' has 64 characters.* — a name of at most 63"):
        as_lines(replace(named, name="p" * 57), "socket")


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


def test_line_is_cut_and_the_next_one_read_when_it_is_longer_than_any_decoder_takes(tmp_path: Path) -> None:
    """An executor would need the memory for it, with each restart again."""
    from spark_jobs.lines.line_source import read_file

    path = tmp_path / "x"
    given = [b"y" * length + end for length in (4, 5, 6, 7, 17, 5) for end in (b"\n", b"\r\n")]
    path.write_bytes(b"".join([*given, b"z" * 12]))
    table = pa.Table.from_batches(read_file(NotedFile(path.as_uri(), 0, AT, "x"), longest=5))
    lengths = [4, 4, 5, 5, *[6] * 6, 5, 5, 6]
    assert [len(value) for value in table["value"].to_pylist()] == lengths
    assert table["line"].to_pylist() == list(range(1, len(lengths) + 1))


def test_no_lines_are_read_when_a_file_is_empty(tmp_path: Path) -> None:
    from spark_jobs.lines.line_source import read_file

    path = tmp_path / "x"
    path.touch()
    assert pa.Table.from_batches(read_file(NotedFile(path.as_uri(), 0, AT, "x"))).num_rows == 0


def test_files_of_a_task_are_read_one_after_the_other_when_they_are_small(tmp_path: Path) -> None:
    from spark_jobs.lines.line_source import LinePart, LineReader

    noted = []
    for name, content in (("a", b"1\n2"), ("empty", b""), ("b", b"3\n")):
        (tmp_path / name).write_bytes(content)
        os.utime(tmp_path / name, (AT.timestamp(), AT.timestamp()))
        noted.append(NotedFile((tmp_path / name).as_uri(), len(content), AT, name))
    part = LinePart(tuple(noted))
    rows = pa.Table.from_batches(LineReader("isp_hits_files", 0).read(pickle.loads(pickle.dumps(part)))).to_pylist()
    assert [(row["name"], row["line"], row["value"]) for row in rows] == [
        ("a", 1, b"1"),
        ("a", 2, b"2"),
        ("b", 1, b"3"),
    ]
    (tmp_path / "b").write_bytes(b"4\n5\n")
    with pytest.raises(TidemarkError, match="b was changed after it was noted"):
        list(LineReader("isp_hits_files", 0).read(part))
