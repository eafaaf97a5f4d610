"""Generate positions of vehicles whose devices are of three ages; each age writes its own schema version."""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import fastavro

from include.pipelines.gps_positions import PIPELINE, VERSIONS
from include.pipelines.spec import Avro
from include.schemas.registry import registry

DEVICES = 200

_PARSED = tuple(fastavro.parse_schema(json.loads(version)) for version in VERSIONS)

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999
"""Beginning of year 1 and end of year 9999, in milliseconds since 1970."""


def version_of(device: int) -> int:
    """Return the index of the schema version that a device writes: 50 % the first, 30 % the second, 20 % the third."""
    return 0 if device % 10 < 5 else 1 if device % 10 < 8 else 2


def encode(schema_id: int, version: int, record: dict[str, Any]) -> bytes:
    """Return the record in wire format: a zero byte, the schema id, the Avro record in that version."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, _PARSED[version], record)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


class Vehicles:
    """Generates messages with the given schema ids, one per version."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def message(self, moment: datetime, rng: random.Random) -> tuple[bytes, bytes]:
        """Return key and value of a position at `moment`. A third of vehicles send two thirds; a tenth stand still."""
        device, record = self._position(moment, rng)
        return str(device).encode(), self._value(device, record)

    def bad_messages(self, moment: datetime, rng: random.Random) -> list[tuple[str, bytes]]:
        """Return well-formed Avro messages that break a rule of the pipeline, as (reason, value)."""
        device, good = self._position(moment, rng)

        def changed(**changes: object) -> bytes:
            return self._value(device, {**good, **changes})

        return [
            ("out_of_range", changed(latitude=math.nan)),
            ("out_of_range", changed(latitude=90.01)),
            ("out_of_range", changed(longitude=-math.inf)),
            ("out_of_range", changed(altitude=math.inf)),
            ("out_of_range", changed(speed=-1.0)),
            ("event_time_out_of_bounds", changed(timestamp=FIRST)),
            ("event_time_out_of_bounds", changed(timestamp=LAST)),
            ("event_time_out_of_bounds", changed(timestamp=-(2**63))),
        ]

    def _value(self, device: int, record: dict[str, Any]) -> bytes:
        version = version_of(device)
        accuracy = record["accuracy"] if version == 2 else round(record["accuracy"])
        return encode(self._ids[version], version, {**record, "accuracy": accuracy})

    def _position(self, moment: datetime, rng: random.Random) -> tuple[int, dict[str, Any]]:
        device = rng.randrange(DEVICES // 3) if rng.random() < 0.5 else rng.randrange(DEVICES)
        stands = device % 10 == 9
        return device, {
            "timestamp": int(moment.timestamp() * 1000),
            "deviceId": device,
            "latitude": 45.78 + rng.gauss(0, 0.4),
            "longitude": 3.08 + rng.gauss(0, 0.6),
            "altitude": 300.0 + rng.random() * 900,
            "speed": 0.0 if stands else rng.random() * 130,
            "accuracy": rng.choice((2.5, 4.5, 8.0)) if device % 37 else 80.0,
        }


def connect() -> Vehicles:
    """Register missing schema versions and return a generator with their ids. Raise ServiceUnreachable."""
    assert isinstance(PIPELINE.decoder, Avro)
    return Vehicles(registry().register(PIPELINE.decoder.subject, VERSIONS))
