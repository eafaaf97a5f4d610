"""Which rows a run changed: damaged registered files are not read, for the run is to replace them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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
    run: Any = SimpleNamespace(spark=None, pipeline=pipeline, pinned=SimpleNamespace(ranges=()))
    [difference] = compare_revisions(run, [old], [new])
    assert (difference.from_revision, difference.to_revision) == (old.revision, "r-new")
    assert (difference.added, difference.removed, difference.changed) == (None, None, None)
