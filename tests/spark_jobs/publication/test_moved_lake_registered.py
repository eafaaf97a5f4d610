"""What an interval registers that is run again in a lake that was moved; the catalog is a dictionary."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from include import lake
from include.intervals.lake_of_ledger import revisions_elsewhere
from include.ledger.intervals import attempts, builds, revisions
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.reconciliation import ReconciliationCounts
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.register import register
from spark_jobs.reconciliation.interval_run import IntervalRun
from tests.conftest import Home, settings_of
from tests.support.attempts import begin_attempt, hour
from tests.support.ledger_world import MemoryCatalog
from tests.support.proved import PIPELINE, built_revision, rows_of

pytestmark = pytest.mark.services


def run_again(entries: dict[tuple[str, str], str]) -> BuiltRevision:
    """Build and register an hour whose rows are always the same; the catalog's entries are the dictionary."""
    pipeline, world = load_pipeline(PIPELINE), cast(Any, SimpleNamespace(catalog=entries))
    attempt = begin_attempt(PIPELINE, hour(0))
    spec = attempts.load_attempt(attempt)
    built = built_revision(attempt, rows_of(spec.pinned.ranges))
    fates = {each.topic_partition: FateCounts(95, 2, 3, 0) for each in spec.pinned.ranges}
    records = RecordCounts(in_ranges=200, archived=190, empty=4, quarantined=6)
    builds.note_build(spec, [built], BuildFindings(spec.pinned.ranges, fates, records, ReconciliationCounts()))
    run = IntervalRun(world, pipeline, attempts.load_attempt(attempt))
    catalog = cast(Catalog, MemoryCatalog(world, pipeline))
    register(run, catalog, [built], Validation(True, PIPELINE), lambda: None)
    return built


def test_interval_moves_to_the_new_lake_when_it_is_run_again_and_the_old_place_is_still_there(postgres: Home) -> None:
    entries: dict[tuple[str, str], str] = {}
    first = run_again(entries)
    # In the same lake, an equal build changes nothing.
    assert not lake.exists(run_again(entries).location)
    assert entries == {(PIPELINE, first.partition): first.location}

    here = postgres.path / "copied"
    shutil.copytree(Path(postgres.lake), here)
    with settings_of(postgres, TIDEMARK_LAKE=here.as_uri()):
        assert "outside of the lake" in revisions_elsewhere(load_pipeline(PIPELINE))
        moved = run_again(entries)
        (registered,) = revisions.registered(PIPELINE)
    assert moved.location.startswith(here.as_uri())
    assert registered.location == moved.location
    assert lake.exists(moved.location)
    assert entries == {(PIPELINE, first.partition): moved.location}
