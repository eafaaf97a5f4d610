"""Schema drift of an interval: fields of its messages that their schema does not name."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.ledger import listings
from include.monitor.text import percent
from include.pipelines.spec import Json, Pipeline
from include.pipelines.spec.decoders import UNKNOWN_FIELDS
from spark_jobs.decoding.unknown_fields import paths

MOST = 100
"""Most paths that are reported; those with the most records come first."""

_PLACE = ("kafka_timestamp", "kafka_topic", "kafka_partition", "kafka_offset")


def find_drift(pipeline: Pipeline, rows: DataFrame, records: int) -> dict[str, Any]:
    """Return records with unknown fields among an interval's records with rows, and the paths of these fields.

    `rows` has the archive's columns. The first record of a path is the one with the smallest timestamp. Form:
    `{"records", "share", "paths": [{"path", "records", "share", "first": {"topic", "partition", "offset"}}],
    "further_paths"}`; empty where unknown fields are not kept.
    """
    if not isinstance(pipeline.decoder, Json) or not pipeline.keeps_unknown_fields:
        return {}
    drifted = rows.where(F.col(UNKNOWN_FIELDS).isNotNull()).select(*_PLACE, UNKNOWN_FIELDS).persist()
    try:
        drifting = drifted.count()
        by_path = drifted.select(
            F.struct(*_PLACE).alias("place"), paths(pipeline.decoder, F.col(UNKNOWN_FIELDS)).alias("paths")
        )
        counted = (
            by_path.select("place", F.explode("paths").alias("path"))
            .groupBy("path")
            .agg(F.count(F.lit(1)).alias("records"), F.min("place").alias("first"))
            .persist()
        )
        reported = counted.orderBy(F.desc("records"), "path").limit(MOST).collect()
        further = counted.count() - len(reported)
        counted.unpersist()
    finally:
        drifted.unpersist()
    return {
        "records": drifting,
        "share": _share(drifting, records),
        "paths": [_path(row, records) for row in reported],
        "further_paths": further,
    }


def drift_section(drift: dict[str, Any]) -> dict[str, Any]:
    """Return what was found as a section of the report."""
    columns = ["path", "records", "share", "first topic", "topic partition", "offset"]
    rows = [[each["path"], each["records"], percent(each["share"]), *each["first"].values()] for each in drift["paths"]]
    note = (
        f"in {drift['records']:,} records, {percent(drift['share'])} of those with rows; they are kept in "
        f"{UNKNOWN_FIELDS}, and a field that is declared gets a column of its own"
    )
    return {
        "title": "Fields that the schema does not name",
        "note": note,
        "columns": columns,
        "rows": rows,
        "truncated": drift["further_paths"],
    }


def _path(row: Any, records: int) -> dict[str, Any]:
    first = {
        "topic": row["first"].kafka_topic,
        "partition": row["first"].kafka_partition,
        "offset": row["first"].kafka_offset,
    }
    return {
        "path": listings.plain(row["path"]),
        "records": row["records"],
        "share": _share(row["records"], records),
        "first": first,
    }


def _share(part: int, whole: int) -> float:
    share = round(part / whole, 6) if whole else 0.0
    # Rounded neither to none nor to all.
    return min(max(share, 1e-6), 1 - 1e-6) if 0 < part < whole else share
