"""Generations of a pipeline's stream in the ledger, and the versions that grow over them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from include import lake
from include.ledger.database import session
from include.ledger.models import Generation, MicroBatch
from include.offsets import TopicPartition, offsets_json, parse_offsets_json

_SPAN = 2**40


@dataclass(frozen=True)
class StreamGeneration:
    """A generation of a pipeline's stream: checkpoints and speed views that belong together."""

    pipeline: str
    number: int
    fingerprints: Mapping[str, Any]
    """By query that has started: what its checkpoint depends on."""
    positions: Mapping[str, str]
    """By query that has started: where it began, as the Spark Kafka source writes offsets."""

    def checkpoint(self, query: str) -> str:
        """URI of a query's checkpoint."""
        return lake.uri("checkpoints", self.pipeline, f"g{self.number}", query)

    def version(self, batch_id: int) -> int:
        """The version of what a micro-batch of a speed view emits: it grows over generations too.

        The base, with which a generation may begin, counts as micro-batch -1.
        """
        return self.number * _SPAN + batch_id

    def began_at(self, query: str) -> dict[TopicPartition, int]:
        """Where the query began in this generation; empty before its first start."""
        return parse_offsets_json(self.positions[query]) if query in self.positions else {}

    def has_started(self, query: str) -> bool:
        """Whether the query's checkpoint knows where the query began: Spark continues from it."""
        return lake.exists(f"{self.checkpoint(query)}/sources/0/0")


def _of(row: Generation) -> StreamGeneration:
    return StreamGeneration(row.pipeline, row.number, dict(row.fingerprints), dict(row.positions))


def _last(ledger: Session, pipeline: str) -> Generation | None:
    wanted = select(Generation).where(Generation.pipeline == pipeline)
    return ledger.scalar(wanted.order_by(Generation.number.desc()).limit(1))


def current(pipeline: str) -> StreamGeneration | None:
    """The pipeline's current generation; None before its first start."""
    with session() as ledger:
        row = _last(ledger, pipeline)
        return _of(row) if row else None


def current_or_first(pipeline: str, started_by: str) -> StreamGeneration:
    """The pipeline's current generation, made at the first start."""
    with session() as ledger:
        _lock(ledger, pipeline)
        row = _last(ledger, pipeline)
        if row is None:
            row = Generation(pipeline=pipeline, number=0, started_by=started_by, reason="first start")
            row.fingerprints, row.positions = {}, {}
            if ledger.scalar(select(MicroBatch.id).where(MicroBatch.pipeline == pipeline).limit(1)) is not None:
                # The ledger is older than generations: its checkpoints lie elsewhere and are not continued.
                row.number, row.reason = 1, "checkpoints from before there were generations"
            ledger.add(row)
            ledger.flush()
        return _of(row)


def open_next(ledger: Session, pipeline: str, started_by: str, reason: str) -> int:
    """Open the next generation; its number. The caller holds the pipeline's lease."""
    _lock(ledger, pipeline)
    last = _last(ledger, pipeline)
    row = Generation(pipeline=pipeline, number=last.number + 1 if last else 1, started_by=started_by, reason=reason)
    row.fingerprints, row.positions = {}, {}
    ledger.add(row)
    ledger.flush()
    return row.number


def note_start(
    generation: StreamGeneration, query: str, fingerprint: Mapping[str, Any], began_at: Mapping[TopicPartition, int]
) -> None:
    """Note what a query's checkpoint depends on and where it begins, at its first start in the generation."""
    with session() as ledger:
        row = ledger.get_one(Generation, (generation.pipeline, generation.number), with_for_update=True)
        row.fingerprints = {**row.fingerprints, query: dict(fingerprint)}
        row.positions = {**row.positions, query: offsets_json(began_at)}


def has_committed(generation: StreamGeneration, view: str) -> bool:
    """Whether a speed view's stream has committed a micro-batch in the generation (its base is none)."""
    with session() as ledger:
        wanted = select(MicroBatch.id).where(
            MicroBatch.pipeline == generation.pipeline,
            MicroBatch.query == view,
            MicroBatch.batch_id >= generation.version(0),
        )
        return ledger.scalar(wanted.limit(1)) is not None


def _lock(ledger: Session, pipeline: str) -> None:
    ledger.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"generation:{pipeline}"})
