"""What explain says of files: real files and ledger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from include import pipelines
from include.errors import UsageError
from include.intervals.explanation import explain
from tests.conftest import Home
from tests.support.proved import PIPELINE, register_hour

pytestmark = pytest.mark.services

PARTITION = "date=2026-11-20/interval=2026-11-20T05"


def test_hash_differs_when_a_file_was_altered_that_has_the_same_length_and_footer(postgres: Home) -> None:
    register_hour(0)
    (before,) = explain(PIPELINE, PARTITION)["files"]
    assert before["differs"] == []
    assert before["now"]["sha256"] == before["sha256"]

    folder = explain(PIPELINE, PARTITION)["location"]
    file = Path(folder.removeprefix("file://")) / before["name"]
    content = bytearray(file.read_bytes())
    # Behind the magic number: a byte of the first column's pages.
    content[40] ^= 0xFF
    file.write_bytes(content)
    (after,) = explain(PIPELINE, PARTITION)["files"]
    assert after["differs"] == ["sha256"]
    assert after["now"]["rows"] == before["now"]["rows"]


def test_partition_is_explained_when_its_view_is_no_longer_declared(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_hour(1)
    with pytest.raises(UsageError, match="unknown table 'never_was'"):
        explain("never_was", PARTITION)
    monkeypatch.setattr(pipelines, "declarations", lambda: SimpleNamespace(loaded=(), refused={}))
    assert explain(PIPELINE, PARTITION.replace("T05", "T06"))["interval"]["state"] == "registered"
