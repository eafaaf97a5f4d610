"""The oracle of gps_positions: values as another library reads them, and which of them are plausible."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

import fastavro

from include.pipelines.gps_positions import VERSIONS
from include.schemas.registry import SchemaRegistry
from tests.support.audit import Coordinates, Fates, Record

NEWEST = fastavro.parse_schema(json.loads(VERSIONS[-1]))


def decoded_by_another_library(registry: SchemaRegistry) -> Callable[[bytes | None], dict[str, Any] | None]:
    """Return values as fastavro reads them with their own schemas, resolved to the newest; None for invalid ones."""
    schemas: dict[int, Any] = {}

    def decode(value: bytes | None) -> dict[str, Any] | None:
        if value is None or len(value) < 5 or value[0] or len(value) > 1_048_576:
            return None
        schema_id, body = int.from_bytes(value[1:5], "big"), io.BytesIO(value[5:])
        if schema_id not in schemas:
            found = registry.schema(schema_id)
            schemas[schema_id] = fastavro.parse_schema(json.loads(found.schema)) if found else None
        if schemas[schema_id] is None:
            return None
        try:
            record: dict[str, Any] = fastavro.schemaless_reader(body, schemas[schema_id], NEWEST)
        except (EOFError, ValueError, IndexError):
            return None
        return record if not body.read() else None

    return decode


def is_plausible(record: dict[str, Any], arrived: int) -> bool:
    behind = arrived - record["timestamp"]
    return (
        all(math.isfinite(record[name]) for name in ("latitude", "longitude", "altitude", "speed"))
        and abs(record["latitude"]) <= 90
        and abs(record["longitude"]) <= 180
        and -1_000 <= record["altitude"] <= 20_000
        and 0 <= record["speed"] <= 500
        and -3_600_000 <= behind <= 30 * 86_400_000
    )


def fates_by(registry: SchemaRegistry) -> Callable[[dict[Coordinates, Record]], Fates]:
    """What the audit expects of records whose schemas are in that registry."""
    decode = decoded_by_another_library(registry)

    def fates_of(records: dict[Coordinates, Record]) -> Fates:
        decoded = {c: decode(record.value) for c, record in records.items()}
        good = {c: row for c, row in decoded.items() if row is not None and is_plausible(row, records[c].timestamp)}
        return Fates({(*c, 0): row for c, row in good.items()}, set(good), set(), records.keys() - good.keys())

    return fates_of
