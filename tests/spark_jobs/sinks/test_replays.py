"""A micro-batch that the ledger already has: only a replay of it is passed over. Checkpoints as Spark writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import UsageError
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.streams import lines, writers
from include.ledger.streams.generations import SPAN, StreamGeneration
from include.ledger.streams.writers import Lease
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.lines.line_sinks import LineLandingSink, LineViewSink
from spark_jobs.sinks.landing import LandingSink
from spark_jobs.sinks.speed_view import SpeedViewSink

TP = TopicPartition("nest-logs", 0)
LEASE = Lease("nest_cameras", 1, "test")
NUMBER = 2
"""Of the generation: a view commits under numbers that grow over generations."""


@dataclass
class Written:
    """What stands for a micro-batch's rows, and how often its state was written."""

    states: int = 0
    rows: Any = field(init=False)

    def __post_init__(self) -> None:
        self.rows = SimpleNamespace(sparkSession=None, write=self)

    def format(self, _: str) -> Written:
        return self

    def mode(self, _: str) -> Written:
        return self

    def save(self) -> None:
        self.states += 1


def plan(checkpoint: Path, *ends: str) -> None:
    """Write the plans of micro-batches as Spark does, which ended there."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    for batch, end in enumerate(ends):
        (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{end}')


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger in which each query has committed [0, 4) and [4, 9), a view under numbers of its generation."""
    spans = {batch: span for first in (0, NUMBER * SPAN) for batch, span in ((first, (0, 4)), (first + 1, (4, 9)))}
    monkeypatch.setattr(micro_batches, "is_committed", lambda _, batch: batch in spans)
    monkeypatch.setattr(micro_batches, "committed_ranges", lambda _, batch: [OffsetRange(TP, *spans[batch])])
    monkeypatch.setattr(lines, "committed_span", lambda _, batch: spans[batch])
    monkeypatch.setattr(writers, "renew", lambda _: False)


Run = Callable[[Any, int], None]


def kafka_sinks(pipeline: Pipeline, checkpoint: Path) -> tuple[Run, Run]:
    plan(checkpoint, '{"nest-logs":{"0":4}}', '{"nest-logs":{"0":9}}')
    (checkpoint / "sources" / "0").mkdir(parents=True)
    (checkpoint / "sources" / "0" / "0").write_text('\0v1\n{"nest-logs":{"0":0}}')
    generation, where = StreamGeneration(pipeline.name, NUMBER, {}, {}), checkpoint.as_uri()
    archive = LandingSink(pipeline, LEASE, "id", where, "v", lambda _: None)
    view = SpeedViewSink(pipeline, pipeline.views[0], LEASE, generation, None, "id", where, "v", [])
    return archive.land, view.emit


def line_sinks(pipeline: Pipeline, checkpoint: Path) -> tuple[Run, Run]:
    plan(checkpoint, '{"file":4}', '{"file":9}')
    generation, where = StreamGeneration(pipeline.name, NUMBER, {}, {}), checkpoint.as_uri()
    # As in a driver that starts later: the archive's position is beyond both.
    archive = LineLandingSink(pipeline, LEASE, "id", where, "v", 9, lambda *_: None)
    view = LineViewSink(pipeline, pipeline.views[0], LEASE, generation, None, "id", where, "v", [])
    return archive.land, view.emit


@pytest.mark.parametrize(
    ("sinks", "later", "planned", "committed"),
    [
        (kafka_sinks, '{"nest-logs":{"0":12}}', r"nest-logs-0 \[4, 12\)", r"nest-logs-0 \[4, 9\)"),
        (line_sinks, '{"file":12}', "files after 4 up to 12", "files after 4 up to 9"),
    ],
)
def test_only_a_replay_is_passed_over_when_the_ledger_has_the_micro_batch(
    tmp_path: Path,
    sinks: Callable[[Pipeline, Path], tuple[Run, Run]],
    later: str,
    planned: str,
    committed: str,
) -> None:
    pipeline = load_pipeline("nest_cameras")
    land, emit = sinks(pipeline, tmp_path / "checkpoint")
    written = Written()
    # As after a driver that was killed between the ledger's commit and Spark's: the plan is still there.
    for batch in (0, 1):
        land(written.rows, batch)
        emit(written.rows, batch)
    assert written.states == 2

    # As Spark plans in an older copy of the checkpoint, which ended before.
    (tmp_path / "checkpoint" / "offsets" / "1").write_text(f"v1\n{{}}\n{later}")
    for run, query in ((land, ARCHIVE), (emit, pipeline.views[0].name)):
        match = f"micro-batch 1 of {query} is planned with {planned}, but the ledger has it with {committed}: "
        with pytest.raises(UsageError, match=match) as refused:
            run(written.rows, 1)
        assert "./tidemark new-generation nest_cameras --reason" in str(refused.value)
    assert written.states == 2
