"""Quarantine files and where their records come from."""

from __future__ import annotations

from include.ledger.quarantine import Origin, QuarantineFile
from include.offsets import TopicPartition


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
