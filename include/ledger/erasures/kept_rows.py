"""Every file that may hold rows of a pipeline's archive: landing, and revisions in whatever state.

A row holds the name of its topic, not which incarnation of it. For landing files the micro-batches know that, for a
revision the interval that built it, except for rows that replays delivered: those also lie in the replays' own files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from include.ledger.archive.landing_files import topic_ids_of_files
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.archive.positions import stored_topics
from include.ledger.database import session
from include.ledger.intervals.revisions import as_built
from include.ledger.intervals.states import RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.models import IntervalRange, IntervalRow, LandingFileRow, MicroBatch, Replay, Revision
from include.ledger.quarantine import REPLAY, RecordKey
from include.ledger.quarantine.decisions import key_of
from include.ledger.streams.incarnations import closed
from include.offsets import Fate


@dataclass(frozen=True)
class KeptRows:
    """Files whose rows come from the same incarnations of topics."""

    topic_ids: Mapping[str, str]
    """Topics with Kafka's ids."""
    paths: Sequence[str]


def landed_rows(pipeline: str) -> list[KeptRows]:
    """Return the archived landing files that exist, those of replays too; paths below the lake."""
    paths = _landing_paths(pipeline)
    if not closed(pipeline):
        return [KeptRows(stored_topics(pipeline), paths)]
    return _grouped((path, topic_ids) for path, topic_ids in topic_ids_of_files(paths).items())


def revised_rows(pipeline: str, revisions: Mapping[int, Sequence[str]]) -> list[KeptRows]:
    """Return the files of revisions, which are given by the number of their interval."""
    topic_ids: dict[int, dict[str, str]] = {each: {} for each in revisions}
    wanted = select(IntervalRange.interval_id, IntervalRange.topic, IntervalRange.topic_id)
    with session() as ledger:
        of_pipeline = wanted.join(IntervalRow, IntervalRow.id == IntervalRange.interval_id)
        for interval, topic, topic_id in ledger.execute(of_pipeline.where(IntervalRow.pipeline == pipeline)):
            topic_ids.setdefault(interval, {})[topic] = topic_id
    return _grouped((path, topic_ids[each]) for each, paths in revisions.items() for path in paths)


def replayed_records(pipeline: str) -> frozenset[RecordKey]:
    """Return the quarantined records of which replays have landed rows."""
    with session() as ledger:
        rows = ledger.scalars(select(Replay).where(Replay.pipeline == pipeline, Replay.fate == Fate.ARCHIVED))
        return frozenset(map(key_of, rows))


def _grouped(files: Iterable[tuple[str, Mapping[str, str]]]) -> list[KeptRows]:
    by_topics: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for path, topic_ids in files:
        by_topics.setdefault(tuple(sorted(topic_ids.items())), []).append(path)
    return [KeptRows(dict(topics), sorted(paths)) for topics, paths in sorted(by_topics.items())]


def _landing_paths(pipeline: str) -> list[str]:
    wanted = (
        select(LandingFileRow.path)
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(
            MicroBatch.pipeline == pipeline,
            MicroBatch.query.in_((ARCHIVE, REPLAY)),
            LandingFileRow.fate == Fate.ARCHIVED,
            LandingFileRow.removed_at.is_(None),
        )
        .distinct()
    )
    with session() as ledger:
        return sorted(ledger.scalars(wanted))


def revisions_kept(table: str) -> list[tuple[int, BuiltRevision]]:
    """Return the revisions of a table that are not removed, each after the number of its interval."""
    wanted = select(Revision).where(Revision.table_name == table, Revision.state != RevisionState.REMOVED)
    with session() as ledger:
        return [
            (row.interval_id, as_built(row))
            for row in ledger.scalars(wanted.order_by(Revision.table_partition, Revision.id))
        ]
