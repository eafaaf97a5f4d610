"""Which micro-batches of a speed view other code counted: bases, and generations before, on a real PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.ledger.archive.other_code import other_code
from include.ledger.database import session
from include.ledger.models import MicroBatch
from include.ledger.streams.generations import StreamGeneration
from tests.support.committed import DAY, add_batch, span

pytestmark = pytest.mark.services

VIEW, CODE, OTHER = "hourly_counts", "abc", "def"


def commit_view(pipeline: str, generation: int, batch: int, offsets: tuple[int, int], code: str | None) -> int:
    """Commit a micro-batch of the speed view, or its base (-1), and return its version."""
    version = StreamGeneration(pipeline, generation, {}, {}).version(batch)
    query_id = f"{pipeline}-g{generation}" if batch >= 0 else f"base-{pipeline}-g{generation}"
    facts = {"query_id": query_id, "committed_at": DAY, "decoder_version": code}
    with session() as ledger:
        add_batch(ledger, pipeline, version, span(*offsets), query=VIEW, **facts)
    return version


def is_other(pipeline: str, version: int, begin: int = 0, until: int = 10) -> bool:
    """Whether other code than the current one counted some of the offsets."""
    window = (DAY, DAY + timedelta(hours=1))
    return other_code(
        pipeline, VIEW, [span(begin, until)], window, version=version, landed_by="1", counted_by=CODE
    ).everywhere


@pytest.mark.parametrize("generation", [0, 2])
def test_base_is_of_other_code_only_when_other_code_is_noted(pipeline: str, generation: int) -> None:
    base = commit_view(pipeline, generation, -1, (0, 10), CODE)
    assert not is_other(pipeline, base)
    with session() as ledger:
        ledger.query(MicroBatch).filter_by(pipeline=pipeline).one().decoder_version = OTHER
    assert is_other(pipeline, base)


def test_base_is_of_the_code_that_counted_on_when_its_own_was_not_noted(pipeline: str) -> None:
    base = commit_view(pipeline, 1, -1, (0, 10), None)
    assert not is_other(pipeline, base)
    first = commit_view(pipeline, 1, 0, (10, 20), CODE)
    assert not is_other(pipeline, first)
    with session() as ledger:
        ledger.query(MicroBatch).filter_by(pipeline=pipeline, batch_id=first).one().decoder_version = OTHER
    # A later micro-batch of the current code makes neither the base nor the first one its own.
    last = commit_view(pipeline, 1, 1, (20, 30), CODE)
    assert is_other(pipeline, last)
    assert not is_other(pipeline, last, 20, 30)


def test_micro_batch_is_of_other_code_when_its_code_was_not_noted(pipeline: str) -> None:
    assert is_other(pipeline, commit_view(pipeline, 0, 0, (0, 10), None))


def test_earlier_generation_does_not_count_when_a_base_has_replaced_it(pipeline: str) -> None:
    before = commit_view(pipeline, 0, 0, (0, 10), OTHER)
    assert is_other(pipeline, before)
    base = commit_view(pipeline, 1, -1, (0, 10), CODE)
    assert not is_other(pipeline, base)
    assert not is_other(pipeline, commit_view(pipeline, 1, 0, (10, 20), CODE))
