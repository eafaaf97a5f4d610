"""Which rows a run changed, without reading damaged registered files, and without naming what was erased."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.ledger.database import session
from include.ledger.intervals import attempts
from include.ledger.models import Erasure
from include.offsets import OffsetRange
from include.pipelines import load_pipeline
from spark_jobs.intervals.revision_comparison import compare_revisions
from tests.conftest import Home
from tests.support.attempts import begin_attempt, hour
from tests.support.proved import PIPELINE, built_revision, rows_of

pytestmark = pytest.mark.services


@pytest.mark.parametrize(("number", "content"), [(0, "other bytes"), (1, "cut off")])
def test_counts_are_null_when_a_registered_file_is_damaged_and_its_rows_differ(
    postgres: Home, number: int, content: str
) -> None:
    pipeline = load_pipeline(PIPELINE)
    attempt = begin_attempt(PIPELINE, hour(number))
    old = built_revision(attempt, rows_of(()))
    new = replace(old, revision="r-new", content_hash="v2:4567")
    [name] = old.files
    file = Path(old.location.removeprefix("file://")) / name
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] if content == "cut off" else bytes(255 - each for each in whole))
    # Whoever reads the files needs Spark.
    run: Any = SimpleNamespace(spark=None, pipeline=pipeline, pinned=attempts.load_attempt(attempt).pinned)
    [difference] = compare_revisions(run, [old], [new])
    assert (difference.from_revision, difference.to_revision) == (old.revision, "r-new")
    assert (difference.added, difference.removed, difference.changed) == (None, None, None)


def test_no_changed_row_is_named_when_a_replay_had_delivered_an_erased_record_to_the_interval(
    postgres: Home, spark: Any
) -> None:
    pipeline = load_pipeline(PIPELINE)
    attempts_of_hour = [begin_attempt(PIPELINE, hour(2)), begin_attempt(PIPELINE, hour(2))]
    pinned = attempts.load_attempt(attempts_of_hour[0]).pinned
    # The record lies in another interval's ranges: its row is here only because a replay was delivered here.
    replayed = OffsetRange(pinned.ranges[0].topic_partition, 3, 4, "id")
    old, new = (
        built_revision(attempt, rows_of(ranges, 1))
        for attempt, ranges in zip(attempts_of_hour, ([*pinned.ranges, replayed], pinned.ranges), strict=True)
    )
    new = replace(new, content_hash="v2:4567")
    run: Any = SimpleNamespace(spark=spark, pipeline=pipeline, pinned=pinned)
    [named] = compare_revisions(run, [old], [new])
    assert (named.removed, len(named.examples)) == (1, 1)
    with session() as ledger:
        ledger.add(
            Erasure(
                pipeline=PIPELINE, columns=["device_id"], reason="asked", begun_by="me@here", salt="00" * 16,
                key_hashes=[], counts={}, intervals=[pinned.id], last_build=0,
            )
        )  # fmt: skip
    [unnamed] = compare_revisions(run, [old], [new])
    assert (unnamed.removed, unnamed.examples) == (1, ())
