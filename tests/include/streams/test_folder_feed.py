"""A folder whose files were noted under another spelling, without a ledger."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from include.ledger.streams import lines
from include.ledger.streams.lines import NotedFile
from include.pipelines.spec.lines import parse_line_source
from include.streams.line_feeds import feed_of

AT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.mark.parametrize("before", ["file://{0}", "file:{0}", "file://{0}/.", "file://localhost{0}", "file:///.{0}"])
def test_only_new_files_are_noted_when_the_folder_was_written_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    folder = tmp_path / "hits of ü"
    folder.mkdir()
    for name in ("read before", "new"):
        (folder / name).write_bytes(b"x\n")
        os.utime(folder / name, (AT.timestamp(), AT.timestamp()))
    known = {f"{before.format(folder)}/{quote('read before')}": (2, AT)}
    noted: list[NotedFile] = []
    monkeypatch.setattr(lines, "noted", lambda _: known)
    monkeypatch.setattr(lines, "note_files", lambda _, files: noted.extend(files))
    lease: Any = SimpleNamespace(pipeline="isp_hits_files")
    source: Any = parse_line_source(folder.as_uri())
    feed_of(source, lease, until_end=True).feed()
    assert [each.location for each in noted] == [f"{folder.as_uri()}/new"]
