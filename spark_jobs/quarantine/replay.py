"""Quarantined records through the current decoder and rules; what passes becomes rows of a later interval.

A replay may run beside a live stream without its lease: it moves no position and touches no offset range,
it only adds rows under coordinates that the stream has committed as quarantined. Two replays are kept
apart by a lock that lasts as long as the one transaction in which a replay selects, lands and commits.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlalchemy.orm import Session

from include import lake, quarantine
from include.crash_points import crash_point
from include.ledger import quarantine as ledger_quarantine
from include.ledger.database import session
from include.ledger.models import LandingFile, MicroBatch, Replay
from include.ledger.quarantine import REPLAY, Decisions, RecordKey
from include.offsets import Coordinates, OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from include.quarantine import Quarantined, Selection
from include.versions import decoder_version
from spark_jobs.archive.files import read_files, within
from spark_jobs.decoding.poison import find_poison, thrown_by
from spark_jobs.decoding.records import ARCHIVED, POISON, QUARANTINED, decode, withhold
from spark_jobs.spark.failures import SPARK_FAILURES
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.schemas import struct_of

_COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")
_KEPT = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP, key BINARY, "
    "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


@dataclass
class _Landed:
    """What became of the records that were tried, and the files of those with rows."""

    outcomes: dict[Coordinates, str] = field(default_factory=dict)
    failures: dict[Coordinates, tuple[str, str]] = field(default_factory=dict)
    """Reason and detail of those that still fail."""
    files: list[LandingFile] = field(default_factory=list)


def replay(spark: SparkSession, pipeline: Pipeline, selection: Selection, *, by: str) -> dict[str, int]:
    """Replay the selection and return counts: selected, replayed, empty, still_failing, already_replayed.

    In one transaction of the ledger: the lock; selection of what is still to be delivered; rows under
    their original coordinates and timestamps to landing files; files, replays and findings noted. Until
    that commits nothing of it is part of the archive, and the unique key of `replays` lets a record
    through once. The next interval to be pinned delivers the rows (`include/ledger/quarantine.py`).
    """
    started = time.monotonic()
    with session() as ledger:
        ledger_quarantine.lock(ledger, pipeline.name)
        decided = ledger_quarantine.decisions(ledger, pipeline.name)
        chosen = quarantine.select(ledger, pipeline.name, selection)
        tried = quarantine.pending(chosen, decided, selection)
        counts = quarantine.counts_of_nothing(chosen, decided, len(tried))
        if not tried:
            return counts
        keys = {each.key.coordinates: each.key for each in tried}
        number = ledger_quarantine.next_replay(ledger, pipeline.name)
        folder = lake.uri("landing", pipeline.name, f"replay-{number:09d}-{uuid4().hex[:8]}")
        try:
            landed = _land(spark, pipeline, tried, folder)
            crash_point("replay_landed")
            _commit(ledger, pipeline, number, landed, keys, by, time.monotonic() - started)
            _note_failures(ledger, pipeline, landed, keys, decided, by)
            ledger.flush()
        except BaseException:
            lake.delete(folder)
            raise
    crash_point("replay_committed")
    for outcome in landed.outcomes.values():
        counts["replayed" if outcome == ARCHIVED else "empty"] += 1
    return {**counts, "still_failing": len(landed.failures)}


def _land(spark: SparkSession, pipeline: Pipeline, tried: Sequence[Quarantined], folder: str) -> _Landed:
    """Decode the records and write what passes; files hold whatever they hold, so they are counted."""
    kept = _read(spark, tried)
    # Under the very code that it made throw, a record need not be tried: it throws.
    version = decoder_version(pipeline.name)
    poison = {
        each.key.coordinates: "it makes the decoder throw"
        for each in tried
        if each.reason == POISON and each.decoder_version == version
    }

    def decoded(ranges: Sequence[OffsetRange], known: Mapping[Coordinates, str]) -> DataFrame:
        return decode(pipeline, _as_records(kept.where(within(ranges))), withhold(known))

    spanned = _spanned(tried)
    try:
        _write(decoded(spanned, poison), folder)
    except SPARK_FAILURES:
        found = find_poison(spanned, lambda ranges: thrown_by(decoded(ranges, poison)))
        if not found:
            raise
        lake.delete(folder)
        _write(decoded(spanned, {**poison, **found}), folder)
    return _count(pipeline, folder)


def _read(spark: SparkSession, tried: Sequence[Quarantined]) -> DataFrame:
    """The records whole."""
    files = read_files(spark, sorted({each.path for each in tried}), struct_of(_KEPT))
    names = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"
    wanted = frame_of(spark, sorted({each.key.coordinates for each in tried}), names)
    return files.join(F.broadcast(wanted), list(wanted.columns), "left_semi")


def _as_records(kept: DataFrame) -> DataFrame:
    """Named as Spark's Kafka source names them."""
    return kept.withColumnsRenamed({f"kafka_{name}": name for name in ("topic", "partition", "offset", "timestamp")})


def _spanned(tried: Sequence[Quarantined]) -> list[OffsetRange]:
    offsets: dict[TopicPartition, list[int]] = defaultdict(list)
    for each in tried:
        offsets[TopicPartition(each.key.topic, each.key.partition)].append(each.key.offset)
    return [OffsetRange(tp, min(found), max(found) + 1) for tp, found in sorted(offsets.items())]


def _write(decoded: DataFrame, folder: str) -> None:
    kept = decoded.drop("key", "value", "headers")
    kept.coalesce(1).write.partitionBy("fate", "date").parquet(folder)


def _count(pipeline: Pipeline, folder: str) -> _Landed:
    """What was written, read back; only files with rows are kept."""
    landed = _Landed()
    for found in lake.list_files(folder):
        location = f"{folder}/{found.name}"
        outcome = found.name.split("/", 1)[0].removeprefix("fate=")
        with lake.parquet_file(location) as file:
            table = file.read(columns=[*_COORDINATES, "kafka_element", "reason", "detail"])
            low, high = lake.column_bounds(file.metadata, pipeline.archive.event_time) or (None, None)
        for row in table.filter(pc.equal(table["kafka_element"], 0)).to_pylist():
            coordinates = (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])
            if outcome == QUARANTINED:
                landed.failures[coordinates] = (row["reason"], row["detail"] or "")
            else:
                landed.outcomes[coordinates] = outcome
        if outcome != ARCHIVED:
            lake.delete(location)
            continue
        landed.files.append(
            LandingFile(
                outcome=outcome,
                path=location.removeprefix(lake.root() + "/"),
                rows=table.num_rows,
                bytes=found.bytes,
                event_time_min=low,
                event_time_max=high,
            )
        )
    return landed


def _commit(
    ledger: Session,
    pipeline: Pipeline,
    number: int,
    landed: _Landed,
    keys: Mapping[Coordinates, RecordKey],
    by: str,
    seconds: float,
) -> None:
    """Write the replay's micro-batch, files and records; nothing when no record passed."""
    if not landed.outcomes:
        return
    version = decoder_version(pipeline.name)
    batch = MicroBatch(
        pipeline=pipeline.name,
        query=REPLAY,
        query_id=f"{REPLAY}:{pipeline.name}",
        batch_id=number,
        token=0,
        records=len(landed.outcomes),
        rows=sum(file.rows for file in landed.files),
        seconds=seconds,
        decoder_version=version,
    )
    ledger.add(batch)
    ledger.flush()
    for file in landed.files:
        file.micro_batch_id = batch.id
        ledger.add(file)
    for coordinates, outcome in sorted(landed.outcomes.items()):
        key = keys[coordinates]
        ledger.add(
            Replay(
                pipeline=pipeline.name,
                topic=key.topic,
                topic_id=key.topic_id,
                topic_partition=key.partition,
                record_offset=key.offset,
                outcome=outcome,
                replayed_by=by,
                decoder_version=version,
                micro_batch_id=batch.id,
            )
        )


def _note_failures(
    ledger: Session,
    pipeline: Pipeline,
    landed: _Landed,
    keys: Mapping[Coordinates, RecordKey],
    decided: Decisions,
    by: str,
) -> None:
    """Note what still fails; a finding that is the same as the last one is not repeated."""
    version = decoder_version(pipeline.name)
    for coordinates, (reason, detail) in sorted(landed.failures.items()):
        last = decided.findings.get(keys[coordinates])
        if last is None or (last.reason, last.detail, last.decoder_version) != (reason, detail, version):
            ledger_quarantine.add_note(
                ledger,
                pipeline.name,
                keys[coordinates],
                kind="failed",
                by=by,
                reason=reason,
                detail=detail,
                decoder_version=version,
            )
