"""A reference's row makes what a speed view counted before the work of other code, on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from include import versions
from include.ledger.archive.other_code import other_code
from include.ledger.database import session
from include.pipelines import load_pipeline
from tests.support.committed import DAY, add_batch, span
from tests.support.versions import clear

pytestmark = pytest.mark.services

VIEW = "hourly_counts"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    clear()
    yield
    clear()


def commit_view(pipeline: str, version: str) -> None:
    """A micro-batch of the speed view."""
    with session() as ledger:
        add_batch(ledger, pipeline, 0, span(0, 10), query=VIEW, committed_at=DAY, decoder_version=version)


def test_interval_takes_differences_for_those_of_code_when_a_row_was_added_to_a_reference(
    pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nest = load_pipeline("nest_cameras")
    reference = nest.references["device_locations"]
    before = versions.view_version(nest.name, VIEW)
    commit_view(pipeline, before)

    added = tmp_path / "added.csv"
    added.write_bytes(reference.path.read_bytes() + b"cam-9999,10001\n")
    changed = replace(nest, references={"device_locations": replace(reference, path=added)})
    monkeypatch.setattr(versions, "load_pipeline", lambda name: changed)
    clear()
    after = versions.view_version(nest.name, VIEW)

    window = (DAY, DAY + timedelta(hours=1))
    touched = {
        code: other_code(pipeline, VIEW, [span(0, 10)], window, version=0, landed_by="1", counted_by=code).touches(
            *window
        )
        for code in (before, after)
    }
    # What is touched by other code is of class `code` (tests/spark_jobs/reconciliation/test_reconciliation.py).
    assert touched == {before: False, after: True}
