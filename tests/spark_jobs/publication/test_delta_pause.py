"""What a publication trusts of the Delta view when the table was not declared for a while; without Spark."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from include.pipelines import load_pipeline
from spark_jobs.publication import delta


@pytest.mark.parametrize(("is_left_out", "trusted"), [(True, None), (False, 7)])
def test_all_rows_are_put_into_the_table_when_an_interval_was_registered_without_it(
    monkeypatch: pytest.MonkeyPatch, is_left_out: bool, trusted: int | None
) -> None:
    put: list[int | None] = []

    def put_rows(_run: Any, of: int | None) -> int:
        put.append(of)
        return 9

    monkeypatch.setattr(delta.revisions, "is_left_out_of_delta", lambda _: is_left_out)
    monkeypatch.setattr(delta.attempts, "publishing_delta", lambda _: nullcontext())
    monkeypatch.setattr(delta, "ensure_table", lambda *_: None)
    monkeypatch.setattr(delta, "pinned_version", lambda *_: 7)
    monkeypatch.setattr(delta, "_put_rows", put_rows)
    monkeypatch.setattr(delta, "pin_view", lambda *_: None)
    monkeypatch.setattr(delta.builds, "note_delta", lambda *_: None)
    run: Any = SimpleNamespace(spark=None, pipeline=load_pipeline("isp_hits"), attempt=None)
    delta.publish_delta(run)
    assert put == [trusted]


def test_rows_of_another_pipeline_are_left_out_when_all_are_put_into_the_table_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A view of it had the archive's table before."""
    asked: list[tuple[str, str | None]] = []

    def registered(table: str, partition: str | None = None, *, pipeline: str | None = None) -> list[Any]:
        assert partition is None
        asked.append((table, pipeline))
        return []

    monkeypatch.setattr(delta.revisions, "registered", registered)
    monkeypatch.setattr(delta, "_replace", lambda *_: None)
    nothing: Any = None
    delta.restore_rows(nothing, load_pipeline("isp_hits"), {})
    assert asked == [("isp_hits", "isp_hits")]
