"""GPS positions of vehicles, Avro of three schema versions: all archived, counted per device and hour."""

from __future__ import annotations

from pathlib import Path

from include.pipelines.spec import (
    AdditiveView,
    Archive,
    Avro,
    Between,
    CompactedTopic,
    EventTimeWithin,
    Grid,
    KafkaTopics,
    Listing,
    Pipeline,
    Required,
    TimeWindow,
    Top,
)

VERSIONS = tuple((Path(__file__).parent / f"gps_positions.v{number}.avsc").read_text() for number in (1, 2, 3))
"""The versions of the subject: 2 adds `accuracy`, whole metres with a default, and 3 makes it a fraction."""

POSITION = """
    timestamp TIMESTAMP, deviceId BIGINT, latitude DOUBLE, longitude DOUBLE, altitude DOUBLE, speed DOUBLE,
    accuracy DOUBLE
"""

PIPELINE = Pipeline(
    name="gps_positions",
    description="GPS positions of vehicles, Avro with a schema registry, counted per device and hour",
    source=KafkaTopics(subscribe=("gps",)),
    decoder=Avro(subject="gps-value", schema=VERSIONS[-1]),
    archive=Archive(
        rows="positions",
        columns=POSITION,
        event_time="timestamp",
        rules=(
            Required("timestamp"),
            Required("deviceId"),
            Between("latitude", -90, 90),
            Between("longitude", -180, 180),
            Between("altitude", -1_000, 20_000),
            Between("speed", 0, 500),
            Between("accuracy", -1, 1_000_000),
            EventTimeWithin(behind="30d", ahead="1h"),
        ),
        description="one row per position; altitude and accuracy in metres, speed in km/h",
        delta=True,
    ),
    views=(
        AdditiveView(
            name="hourly_counts",
            rows="counted_positions",
            aggregate="hourly_counts",
            key=("deviceId", "window"),
            measures=("positions", "moving"),
            columns="deviceId BIGINT, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, positions BIGINT, moving BIGINT",
            window="window",
            windows=TimeWindow("1h"),
            speed=CompactedTopic("gps-hourly-counts", watermark="1h"),
            description="positions per device and hour, and how many of them in motion",
        ),
    ),
    reports=(
        Grid("Where vehicles were", x="longitude", y="latitude"),
        Top("Busiest devices", view="hourly_counts", measure="positions", by=("deviceId",), rows=10),
        Listing(
            "Imprecise devices",
            rows="imprecise_devices",
            columns=("deviceId", "positions", "imprecise"),
            key=("deviceId",),
        ),
    ),
)
