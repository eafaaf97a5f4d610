"""Home cameras: every camera state archived, person sightings counted per zip code and hour."""

from __future__ import annotations

from pathlib import Path

from include.pipelines.spec import (
    AdditiveView,
    Archive,
    CompactedTopic,
    EventTimeWithin,
    Json,
    KafkaTopics,
    Listing,
    MaxBytes,
    Pipeline,
    Reference,
    Required,
    Threshold,
    TimeWindow,
)

CAMERA = """
    device_id STRING, software_version STRING, structure_id STRING, where_id STRING, where_name STRING,
    name STRING, name_long STRING, is_online BOOLEAN, is_streaming BOOLEAN, is_audio_input_enable BOOLEAN,
    last_is_online_change TIMESTAMP, is_video_history_enabled BOOLEAN, web_url STRING, app_url STRING,
    is_public_share_enabled BOOLEAN, activity_zones ARRAY<STRUCT<name: STRING, id: STRING>>,
    public_share_url STRING, snapshot_url STRING,
    last_event STRUCT<has_sound: BOOLEAN, has_motion: BOOLEAN, has_person: BOOLEAN, start_time: TIMESTAMP,
        end_time: TIMESTAMP, urls_expire_time: TIMESTAMP, web_url: STRING, app_url: STRING, image_url: STRING,
        animated_image_url: STRING, activity_zone_ids: ARRAY<STRING>>
"""

# Other devices have only their ids here: they are not archived, but a message in which they
# are not maps of objects is not a message of this pipeline. What a product type holds is up to the company.
NEST_LOG = f"""
    metadata STRUCT<access_token: STRING, client_version: INT>,
    devices STRUCT<
        thermostats: MAP<STRING, STRUCT<device_id: STRING>>,
        smoke_co_alarms: MAP<STRING, STRUCT<device_id: STRING>>,
        cameras: MAP<STRING, STRUCT<{CAMERA}>>,
        companyName: STRUCT<product_type: STRING>>,
    structures MAP<STRING, STRUCT<structure_id: STRING, name: STRING>>
"""

PIPELINE = Pipeline(
    name="nest_cameras",
    description="Home cameras: every state archived, person sightings counted per zip code and hour",
    source=KafkaTopics(subscribe=("nest-logs",)),
    decoder=Json(schema=NEST_LOG),
    archive=Archive(
        rows="cameras",
        columns=CAMERA,
        event_time="last_event.start_time",
        subject="device_id",
        rules=(
            Required("device_id"),
            MaxBytes("device_id", 200),
            Required("last_event.start_time"),
            # A message states each camera's last event again, and each of their days is a table partition of the
            # interval; far ahead it would move the watermark.
            EventTimeWithin(behind="90d", ahead="1h"),
        ),
        description="one row per camera of a message, all camera fields",
    ),
    references={
        "device_locations": Reference(
            Path(__file__).parent / "nest_cameras.device_locations.csv",
            columns="device_id STRING, zip_code STRING",
            key=("device_id",),
        )
    },
    views=(
        AdditiveView(
            name="hourly_counts",
            rows="sightings",
            aggregate="hourly_counts",
            key=("zip_code", "window"),
            measures=("count",),
            columns="zip_code STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT",
            window="window",
            windows=TimeWindow("1h"),
            speed=CompactedTopic("nest-camera-stats", watermark="1h"),
            description="person sightings per zip code and hour of the event, one for each message that states it",
        ),
    ),
    reports=(
        Threshold("Busy hours", view="hourly_counts", measure="count", above=1000),
        Listing(
            "Cameras offline",
            rows="offline_cameras",
            columns=("device_id", "name_long", "where_name", "structure_id", "last_is_online_change"),
            key=("device_id",),
            notify="nest-camera-offline",
            up="is_online",
        ),
    ),
)
