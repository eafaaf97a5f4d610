"""Quarantine files and where their records come from."""

from __future__ import annotations

import pytest

from include.ledger import quarantine
from include.ledger.quarantine import Origin, QuarantineFile, records
from include.offsets import TopicPartition
from tests.support.committed import TP, commit


def test_origin_is_the_range_that_holds_the_offset_when_a_file_holds_many_micro_batches() -> None:
    tp = TopicPartition("t", 0)
    ranges = [Origin(1, 0, 10, "first", "a"), Origin(2, 10, 25, "first", "b"), Origin(3, 25, 30, "second", "b")]
    file = QuarantineFile("q", {tp: ranges})
    origins = [file.origin(tp, offset) for offset in (0, 9, 10, 24, 25, 29)]
    assert [origin.until_offset for origin in origins] == [10, 10, 25, 25, 30, 30]
    assert file.origin(tp, 30).decoder_version is None


def test_origin_is_unknown_when_the_record_is_of_a_micro_batch_that_was_not_asked_for() -> None:
    tp = TopicPartition("t", 0)
    file = QuarantineFile("q", {tp: [Origin(2, 10, 25, "first", "b"), Origin(4, 40, 50, "first", "b")]})
    assert [file.origin(tp, offset).topic_id for offset in (9, 10, 24, 25, 39, 40)] == [
        "", "first", "first", "", "", "first"
    ]  # fmt: skip


@pytest.mark.services
def test_origins_are_read_in_portions_when_there_are_many(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a busy year would not fit into memory."""
    for number in range(3):
        commit(pipeline, number, 10 * number, 10 * number + 10, quarantined=1)
    asked: list[list[str]] = []
    read = records._with_origins
    monkeypatch.setattr(records, "_AT_ONCE", 2)
    monkeypatch.setattr(records, "_with_origins", lambda name, paths, of: asked.append(paths) or read(name, paths, of))
    files = quarantine.files(pipeline)
    first = next(files)
    assert first.origin(TP, 5).from_offset == 0
    assert [len(paths) for paths in asked] == [2]
    rest = list(files)
    assert [len(paths) for paths in asked] == [2, 1]
    assert [first.path, *(file.path for file in rest)] == [path for paths in asked for path in paths]
