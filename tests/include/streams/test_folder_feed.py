"""Which files of a folder are noted and under which names, without a ledger."""

from __future__ import annotations

import logging
import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest

from include import lake
from include.errors import TidemarkError, UsageError
from include.lake import Entry, filesystem, object_store
from include.ledger.streams import lines
from include.ledger.streams.lines import NotedFile
from include.pipelines.spec.lines import SocketLines, TextFiles, parse_line_source
from include.streams.line_feeds import feed_of

AT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[NotedFile]:
    """The files that a feed notes; none was noted before."""
    found: list[NotedFile] = []
    monkeypatch.setattr(lines, "noted", lambda _: {})
    monkeypatch.setattr(lines, "note_files", lambda _, files: found.extend(files))
    return found


def lease() -> Any:
    return SimpleNamespace(pipeline="isp_hits_files")


def feed(folder: Path) -> None:
    source: Any = parse_line_source(folder.as_uri())
    feed_of(source, lease(), until_end=True).feed()


def test_pipe_and_socket_are_passed_over_when_they_lie_in_the_folder(tmp_path: Path, noted: list[NotedFile]) -> None:
    """They have no bytes to read, and would be gone when their turn comes."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        (tmp_path / "hits").write_bytes(b"x\n")
        feed(tmp_path)
    assert [each.location for each in noted] == [f"{tmp_path.as_uri()}/hits"]


@pytest.mark.parametrize("before", ["file://{0}", "file:{0}", "file://{0}/.", "file://localhost{0}", "file:///.{0}"])
def test_only_new_files_are_noted_when_the_folder_was_written_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: list[NotedFile], before: str
) -> None:
    folder = tmp_path / "hits of ü"
    folder.mkdir()
    for name in ("read before", "new"):
        (folder / name).write_bytes(b"x\n")
        os.utime(folder / name, (AT.timestamp(), AT.timestamp()))
    known = {f"{before.format(folder)}/{quote('read before')}": (2, AT)}
    monkeypatch.setattr(lines, "noted", lambda _: known)
    feed(folder)
    assert [each.location for each in noted] == [f"{folder.as_uri()}/new"]


def test_file_of_a_bucket_is_noted_by_the_name_that_it_is_read_by_when_it_has_a_blank_or_a_colon(
    monkeypatch: pytest.MonkeyPatch, noted: list[NotedFile]
) -> None:
    entries = [Entry(name, False, True, 2, AT) for name in ("hits 2026-11-20T05:00.json", "50%25")]
    monkeypatch.setattr(lake, "is_folder", lambda _: True)
    monkeypatch.setattr(lake, "list_entries", lambda *_, **__: entries)
    feed_of(TextFiles("s3a://bucket/in"), lease(), until_end=True).feed()
    monkeypatch.setattr(object_store, "_store", lambda _: None)
    assert sorted(filesystem(file.location)[1] for file in noted) == sorted(f"bucket/in/{e.name}" for e in entries)


def test_stream_waits_for_files_when_a_folder_in_a_bucket_has_none(
    monkeypatch: pytest.MonkeyPatch, noted: list[NotedFile]
) -> None:
    """A folder of a bucket is there while a file is in it."""
    monkeypatch.setattr(lake, "is_folder", lambda _: False)
    monkeypatch.setattr(lake, "list_entries", lambda *_, **__: [])
    monkeypatch.setattr(lake, "exists", lambda location: location == "s3a://bucket")
    feed_of(TextFiles("s3a://bucket/in"), lease(), until_end=True).feed()
    assert noted == []
    with pytest.raises(UsageError, match="there is no bucket s3a://none"):
        feed_of(TextFiles("s3a://none/in"), lease(), until_end=True)


def test_file_that_was_put_back_is_taken_as_unchanged_when_its_time_is_what_the_error_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: list[NotedFile]
) -> None:
    (tmp_path / "hits").write_bytes(b"x\n")
    at = AT.replace(microsecond=123456)
    monkeypatch.setattr(lines, "noted", lambda _: {f"{tmp_path.as_uri()}/hits": (2, at)})
    os.utime(tmp_path / "hits", (AT.timestamp(), AT.timestamp()))
    feed(tmp_path)
    os.utime(tmp_path / "hits", (AT.timestamp() + 1, AT.timestamp() + 1))
    with pytest.raises(TidemarkError, match="hits was changed after it was noted"):
        feed(tmp_path)
    assert noted == []


def test_folders_are_counted_once_when_they_are_passed_over(
    tmp_path: Path, noted: list[NotedFile], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("date=2026-11-20", "date=2026-11-21", "_temporary"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hits").write_bytes(b"x\n")
    (tmp_path / "hits").write_bytes(b"x\n")
    with caplog.at_level(logging.WARNING, "tidemark"):
        feed(tmp_path)
    [told] = [each.getMessage() for each in caplog.records]
    assert told == f"{tmp_path.as_uri()}: folders in it are passed over, with all files in them: 2"
    assert len(noted) == 1


@pytest.mark.parametrize("from_folder", [True, False])
def test_place_is_named_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_folder: bool) -> None:
    monkeypatch.setattr(lines, "noted", lambda _: {})
    source: Any = TextFiles(tmp_path.as_uri()) if from_folder else SocketLines("127.0.0.1", 1)
    failing = feed_of(source, lease(), until_end=True)
    monkeypatch.setattr(failing, "feed", Mock(side_effect=PermissionError(13, "Permission denied")))
    failing.run()
    with pytest.raises(TidemarkError, match="Permission denied") as failed:
        failing.check()
    assert failed.value.remedy == f"check {tmp_path.as_uri() if from_folder else lake.root()}"
