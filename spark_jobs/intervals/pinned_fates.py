"""Fates are pinned by landing: a record that landed in quarantine stays there, whatever the code would now make of it.

A replay is the only way out, and it delivers the rows in another interval, so every row identity exists once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from include.ledger.quarantine import discarded, pinned_fates
from include.offsets import OffsetRange
from include.pipelines.spec import Avro, KafkaDeserializer, Pipeline, UserDefined
from include.schemas.writer_schemas import UNKNOWN_SCHEMA
from spark_jobs.archive.files import read_quarantined, unless_too_many
from spark_jobs.decoding.reasons import because
from spark_jobs.spark.frames import frame_of

_PASSING = {Avro: UNKNOWN_SCHEMA, KafkaDeserializer: "undecodable", UserDefined: "undecodable"}
"""By decoder, the reason for which the same code may decode a record later: it asks what may know more by then."""

_SHORT_OF_MEMORY = r"^(java\.lang\.OutOfMemoryError|MemoryError)\b"
"""Beginning of a detail that need not be about its record: another one, or another query, may have taken the memory."""

_COORDINATES = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"


def withhold_quarantined(
    spark: SparkSession,
    pipeline: Pipeline,
    ranges: Sequence[OffsetRange],
    topic_ids: Mapping[str, str],
    otherwise: Sequence[OffsetRange],
    records: DataFrame,
) -> tuple[DataFrame, Column | None]:
    """Return the records, and the column `withheld` of those that `decode` must not decode.

    Diverted records would throw, and replayed ones belong to another interval. In the parts that other code decoded
    (`otherwise`) every quarantined record stays quarantined, as does one whose reason may have passed, such as a schema
    that the registry did not know then. All others are decoded again, to be compared: also those that a decoder of the
    user's own had no memory for, unless a person has discarded them.
    """
    known = pinned_fates(pipeline.name, ranges, topic_ids)
    passing = _PASSING.get(type(pipeline.decoder))
    if not known and not otherwise and passing is None:
        return records, None
    held = frame_of(spark, known, _COORDINATES)
    if passing is not None:
        may_pass = (F.col("reason") == passing) & ~F.col("detail").rlike(_SHORT_OF_MEMORY)
        held = held.unionByName(read_quarantined(spark, pipeline, ranges, may_pass)).distinct()
        if given_up := discarded(pipeline.name, ranges, topic_ids):
            of_reason = read_quarantined(spark, pipeline, ranges, F.col("reason") == passing)
            stay = of_reason.join(frame_of(spark, given_up, _COORDINATES), of_reason.columns, "leftsemi")
            held = held.unionByName(stay).distinct()
    if otherwise:
        held = held.unionByName(read_quarantined(spark, pipeline, otherwise)).distinct()
    held = held.withColumn("held", F.lit(True))
    at = [F.col(name) == F.col(f"kafka_{name}") for name in ("topic", "partition", "offset")]
    read = ranges if passing is not None else otherwise
    marked = records.join(unless_too_many(held, pipeline, read, len(known)), at, "left")
    return marked, F.when(F.col("held"), because("quarantined", "it landed in quarantine"))
