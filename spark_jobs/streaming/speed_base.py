"""The base of a speed view: what was archived before the generation's stream began, aggregated once.

A new stream has no state and counts the records from the archive's position on. Everything below that position is in
the base, and the sink emits the sum of base and state. Because the base is computed from the archive, it also holds
what an older generation dropped as late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from include import lake
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.intervals.references import taken_contents
from include.ledger.archive import micro_batches
from include.ledger.archive.committed import first_committed_offsets
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.streams import writers
from include.ledger.streams.generations import StreamGeneration
from include.offsets import OffsetRange
from include.pipelines.spec import EVENT_TIMES, AdditiveView, Pipeline
from include.streams.checkpoints import checkpoint_uri, has_started
from include.streams.start import StreamStart
from include.versions import view_version
from spark_jobs.archive.reader import read_archived_by_event_time
from spark_jobs.decoding.records import load_references
from spark_jobs.sinks.speed_view import Target
from spark_jobs.spark.log import log_of
from spark_jobs.views.aggregate import aggregate_view
from spark_jobs.views.measures import declared_measures
from spark_jobs.views.stored_base import StoredBase, day_of
from spark_jobs.views.values import key_json


def load_base(
    spark: SparkSession,
    pipeline: Pipeline,
    view: AdditiveView,
    lease: writers.Lease,
    start: StreamStart,
    targets: Sequence[Target],
) -> StoredBase | None:
    """Return the view's base in this generation, made at the view's first start in it; None when it began without one.

    Raise TidemarkError when its files are not those that were written: too small sums would replace right ones.

    The base does not count until its row is in the ledger, so after an earlier crash it is made again. The archive
    query must not run yet: what is archived now is what lies below. Where only the view had committed anything, the
    base is empty: the state below its position is that of an older generation. So it is where nothing was committed
    and a later generation begins: the topic may have values of a ledger that is lost, which are to be deleted.
    """
    generation = start.generation
    query_id = f"base-{pipeline.name}-{view.name}-g{generation.number}"
    token = micro_batches.token_of(query_id, generation.version(-1))
    if token is None:
        if has_started(generation, view.name) or (generation.number == 0 and not _has_read(pipeline, view)):
            return None
        # Before the base is: the next driver may have other code, or another content of a reference.
        start.note_base(view.name)
        token = lease.token
        location = _location(generation, view, token)
        log_of(pipeline.name, view.name).info("computed from the archive")
        lake.delete(location)
        StoredBase.write(_aggregate(spark, pipeline, view), location)
        crash_point("base_written")
        began = time.monotonic()
        for target in targets:
            target.replace(StoredBase(spark, view, location).every(), generation.version(-1))
        crash_point("base_emitted")
        _commit(pipeline, view, lease, query_id, generation, seconds=time.monotonic() - began)
    base = StoredBase(spark, view, location := _location(generation, view, token))
    if damage := base.damage():
        raise TidemarkError(
            f"the base of the speed view {view.name} is gone: {location}: {damage}",
            remedy=f'./tidemark new-generation {pipeline.name} --reason "…"',
            pipeline=pipeline.name,
        )
    return base


def _has_read(pipeline: Pipeline, view: AdditiveView) -> bool:
    return bool(micro_batches.positions(pipeline.name) or micro_batches.positions(pipeline.name, view.name))


def _location(generation: StreamGeneration, view: AdditiveView, token: int) -> str:
    # With the fencing token: a driver that lost its lease writes elsewhere.
    return f"{checkpoint_uri(generation, view.name)}.base-{token}"


def _aggregate(spark: SparkSession, pipeline: Pipeline, view: AdditiveView) -> DataFrame:
    rows = read_archived_by_event_time(spark, pipeline, *EVENT_TIMES)
    aggregated = aggregate_view(pipeline, view, rows, load_references(spark, pipeline))
    values = declared_measures(pipeline, view, aggregated)
    return values.select(key_json(view).alias("key"), *view.measures, day_of(view))


def _commit(
    pipeline: Pipeline,
    view: AdditiveView,
    lease: writers.Lease,
    query_id: str,
    generation: StreamGeneration,
    *,
    seconds: float,
) -> None:
    """Move the view to the archive's position, as a micro-batch before its first.

    `seconds`: how long ago its first value was written.
    """
    stored = micro_batches.stored_topics(pipeline.name)
    first = first_committed_offsets(pipeline.name)
    ranges = [
        OffsetRange(tp, first.get(tp, at), at, stored[tp.topic])
        for tp, at in sorted(micro_batches.positions(pipeline.name).items())
    ]
    version = view_version(pipeline.code, view.name, taken_contents(pipeline))
    batch = BatchCommit(pipeline.name, view.name, query_id, generation.version(-1), ranges, seconds=seconds)
    micro_batches.move_query(lease, replace(batch, decoder_version=version))
