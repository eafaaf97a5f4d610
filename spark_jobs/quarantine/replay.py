"""Replay of quarantined records by the current decoder and rules; what passes becomes rows of a later interval.

A replay may run beside a live stream without its lease: it moves no position and touches no offset range,
it only adds rows under coordinates that the stream has committed as quarantined.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from uuid import uuid4

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import lake, quarantine
from include.crash_points import crash_point
from include.errors import AnotherWriter, TidemarkError
from include.ledger import quarantine as ledger_quarantine
from include.ledger.held_locks import Check
from include.ledger.quarantine import LandedReplay, RecordKey
from include.ledger.streams import incarnations
from include.offsets import Coordinates, Fate, OffsetRange, TopicPartition
from include.pipelines.spec import Avro, Pipeline
from include.quarantine import Quarantined, Selection
from include.streams.event_time import check_event_time
from include.versions import decoder_version
from spark_jobs.archive.files import read_files, within
from spark_jobs.archive.landing_folder import read_back, write_landing
from spark_jobs.decoding.poison import MOST, POISON, find_poison, thrown_by, withhold
from spark_jobs.decoding.records import decode
from spark_jobs.spark.failures import SPARK_FAILURES
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.schemas import struct_of

AT_ONCE = 100_000
"""Records that are decoded and committed together: the driver's memory, and a transaction of the ledger, hold all of
them."""

_COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")
_KEPT = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP, key BINARY, "
    "value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def replay(spark: SparkSession, pipeline: Pipeline, selection: Selection, *, by: str) -> dict[str, int]:
    """Replay the selection and return counts: selected, replayed, empty, still_failing, already_replayed.

    Only one replay or discard of a pipeline runs at a time. It selects the pending records, lands their rows under
    their original coordinates and timestamps, and commits files, replays and failures in one transaction, of very many
    records in several. Before its commit a row is not part of the archive, and the unique key of `replays` lets a
    record through once. The next interval to be pinned delivers the rows (`include/ledger/quarantine/replays.py`).
    Raises AnotherWriter, and UsageError when the archived rows have another event time.
    """
    check_event_time(pipeline)
    with ledger_quarantine.deciding(pipeline.name) as check:
        decided = ledger_quarantine.decisions(pipeline.name)
        chosen = quarantine.select(pipeline.name, selection)
        tried = quarantine.pending(chosen, decided, selection)
        counts, committed = quarantine.initial_counts(chosen, decided, len(tried)), 0
        for together in _tried_together(pipeline, tried):
            try:
                landed = _replay(spark, pipeline, together, by, check)
            except TidemarkError as error:
                if committed:
                    error.message += f"; of the selection, {committed} records before these were committed"
                raise
            committed += len(together)
            for fate in landed.fates.values():
                counts["replayed" if fate == Fate.ARCHIVED else "empty"] += 1
            counts["still_failing"] += len(landed.failures)
    return counts


def _without_namesakes(pipeline: Pipeline, tried: Sequence[Quarantined]) -> list[list[Quarantined]]:
    """Split the records so that coordinates are unique: a topic that was created again has others at its offsets."""
    by_topic: dict[object, list[Quarantined]] = defaultdict(list)
    were_recreated = bool(incarnations.closed(pipeline.name))
    for each in tried:
        by_topic[(each.key.topic, each.key.topic_id) if were_recreated else None].append(each)
    return list(by_topic.values())


def _tried_together(pipeline: Pipeline, tried: Sequence[Quarantined]) -> Iterator[list[Quarantined]]:
    """Yield the records in groups that are replayed and committed one after the other.

    Records that made other code throw are tried last, so few at once that all of them may throw again.
    """
    version = decoder_version(pipeline.name)
    for alike in _without_namesakes(pipeline, tried):
        threw = [each for each in alike if _may_throw(each, version)]
        others = [each for each in alike if not _may_throw(each, version)]
        for group, most in ((others, AT_ONCE), (threw, MOST)):
            yield from (group[start : start + most] for start in range(0, len(group), most))


def _may_throw(record: Quarantined, version: str) -> bool:
    # A record that made this very code throw is not tried again: it would throw.
    return record.reason == POISON and record.decoder_version != version


def _replay(
    spark: SparkSession, pipeline: Pipeline, tried: Sequence[Quarantined], by: str, check: Check
) -> LandedReplay:
    """Land and commit a replay of records, of which no two have the same coordinates."""
    started = time.monotonic()
    number = ledger_quarantine.next_replay(pipeline.name)
    folder = lake.uri("landing", pipeline.name, f"replay-{number:09d}-{uuid4().hex[:8]}")
    version = decoder_version(pipeline.name)
    try:
        landed = _land(spark, pipeline, tried, folder)
        # Without the lock, the records may have been erased or discarded meanwhile.
        check()
    except BaseException:
        lake.delete(folder)
        raise
    crash_point("replay_landed")
    # From here on the folder stays: an unconfirmed commit may have succeeded.
    seconds = time.monotonic() - started
    try:
        ledger_quarantine.record_replay(pipeline.name, number, landed, by=by, decoder_version=version, seconds=seconds)
    except AnotherWriter:
        # Nothing was committed, and the rows may be of an erased record.
        lake.delete(folder)
        raise
    crash_point("replay_committed")
    return landed


def _land(spark: SparkSession, pipeline: Pipeline, tried: Sequence[Quarantined], folder: str) -> LandedReplay:
    """Decode the records, write those that pass, and count what the files really hold."""
    kept = _read(spark, tried)
    pipeline, version = _not_failing_fast(pipeline), decoder_version(pipeline.name)
    poison = {
        each.key.coordinates: "it makes the decoder throw"
        for each in tried
        if each.reason == POISON and not _may_throw(each, version)
    }

    def decoded(ranges: Sequence[OffsetRange], known: Mapping[Coordinates, str]) -> DataFrame:
        return decode(pipeline, _as_records(kept.where(within(ranges))), withhold(known))

    spanned = _spanned(tried)
    try:
        _write(pipeline, decoded(spanned, poison), folder)
    except SPARK_FAILURES:
        more = find_poison(
            spanned,
            lambda ranges: thrown_by(decoded(ranges, poison)),
            lambda ranges: thrown_by(kept.where(within(ranges))),
        )
        if not more:
            raise
        _write(pipeline, decoded(spanned, {**poison, **more}), folder)
    return _read_landed(pipeline, folder, {each.key.coordinates: each.key for each in tried})


def _not_failing_fast(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with a decoder that leaves in quarantine what it cannot decode: it lies there already."""
    decoder = pipeline.decoder
    if isinstance(decoder, Avro) and decoder.mode == "FAILFAST":
        return replace(pipeline, decoder=replace(decoder, mode="PERMISSIVE"))
    return pipeline


def _read(spark: SparkSession, tried: Sequence[Quarantined]) -> DataFrame:
    """Return the complete records. Columns: `_KEPT`."""
    files = read_files(spark, sorted({each.path for each in tried}), struct_of(_KEPT))
    names = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"
    wanted = frame_of(spark, sorted({each.key.coordinates for each in tried}), names)
    return files.join(F.broadcast(wanted), list(wanted.columns), "left_semi")


def _as_records(kept: DataFrame) -> DataFrame:
    """Return the records with the column names of Spark's Kafka source."""
    return kept.withColumnsRenamed({f"kafka_{name}": name for name in ("topic", "partition", "offset", "timestamp")})


def _spanned(tried: Sequence[Quarantined]) -> list[OffsetRange]:
    offsets: dict[TopicPartition, list[int]] = defaultdict(list)
    for each in tried:
        offsets[TopicPartition(each.key.topic, each.key.partition)].append(each.key.offset)
    return [OffsetRange(tp, min(each), max(each) + 1) for tp, each in sorted(offsets.items())]


def _write(pipeline: Pipeline, decoded: DataFrame, folder: str) -> None:
    write_landing(pipeline, decoded.drop("key", "value", "headers").coalesce(1), folder)


def _read_landed(pipeline: Pipeline, folder: str, keys: Mapping[Coordinates, RecordKey]) -> LandedReplay:
    """Return what the written files really hold; only those with rows of the archive are kept."""
    landed = LandedReplay()
    for file, parquet in read_back(pipeline, folder):
        table = parquet.read(columns=[*_COORDINATES, "kafka_element", "reason", "detail"])
        for row in table.filter(pc.equal(table["kafka_element"], 0)).to_pylist():
            key = keys[row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]]
            if file.fate == Fate.QUARANTINED:
                landed.failures[key] = (row["reason"], row["detail"] or "")
            else:
                landed.fates[key] = file.fate
        if file.fate == Fate.ARCHIVED:
            landed.files.append(file)
        else:
            lake.delete_file(lake.uri(file.path))
    return landed
