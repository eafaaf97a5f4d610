"""Positions of vehicles with devices of three ages: each age writes a schema version of its own."""

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
"""The beginning of year 1 and the end of 9999, milliseconds since 1970."""


def version_of(device: int) -> int:
    """Index of the version that a device writes: half of them the first, three tenths the second."""
    return 0 if device % 10 < 5 else 1 if device % 10 < 8 else 2


def encode(schema_id: int, version: int, record: dict[str, Any]) -> bytes:
    """A value in the wire format: a zero byte, the schema id, the record in that version."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, _PARSED[version], record)
    return b"\0" + schema_id.to_bytes(4, "big") + body.getvalue()


class Vehicles:
    """Makes messages with these schema ids, one per version."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def message(self, moment: datetime, rng: random.Random) -> tuple[bytes, bytes]:
        """Key and value of one position at `moment`; a third of the vehicles sends half of them, a tenth stands."""
        device, record = self._position(moment, rng)
        return str(device).encode(), self._value(device, record)

    def bad_messages(self, moment: datetime, rng: random.Random) -> list[tuple[str, bytes]]:
        """Ways in which a position can be bad beyond its form: reason and value."""
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
    """Register the versions, if need be, and make messages with their ids. Raises ServiceUnreachable."""
    assert isinstance(PIPELINE.decoder, Avro)
    return Vehicles(registry().register(PIPELINE.decoder.subject, VERSIONS))
