"""Changes of wiki pages: every change archived by date and server, edits counted per user in 10-minute windows."""

from __future__ import annotations

from include.pipelines.spec import (
    AdditiveView,
    Archive,
    CompactedTopic,
    EventTimeWithin,
    Json,
    KafkaTopics,
    MaxBytes,
    Pipeline,
    Required,
    TimeWindow,
    Top,
)

META = """
    uri: STRING, request_id: STRING, id: STRING, domain: STRING, stream: STRING, dt: TIMESTAMP,
    topic: STRING, partition: INT, offset: BIGINT
"""

# What `mediawiki/recentchange` declares. The parameters of a log entry are an object, a list or a string.
CHANGE = f"""
    `$schema` STRING, meta STRUCT<{META}>, id BIGINT, type STRING, namespace INT, title STRING, title_url STRING,
    comment STRING, parsedcomment STRING, timestamp BIGINT, user STRING, bot BOOLEAN, minor BOOLEAN,
    patrolled BOOLEAN, length STRUCT<old: BIGINT, new: BIGINT>, revision STRUCT<old: BIGINT, new: BIGINT>,
    notify_url STRING, server_url STRING, server_name STRING, server_script_path STRING, wiki STRING,
    log_id BIGINT, log_type STRING, log_action STRING, log_action_comment STRING, log_params STRING
"""

PIPELINE = Pipeline(
    name="wiki_changes",
    description="Wiki pages: every change archived by date and server, edits counted per user in 10-minute windows",
    source=KafkaTopics(subscribe=("wiki-changes",)),
    decoder=Json(schema=CHANGE),
    archive=Archive(
        rows="changes",
        columns=f"""
            changed_at TIMESTAMP, server_name STRING, wiki STRING, type STRING, namespace INT, title STRING,
            title_url STRING, comment STRING, parsedcomment STRING, user STRING, bot BOOLEAN, minor BOOLEAN,
            patrolled BOOLEAN, id BIGINT, length STRUCT<old: BIGINT, new: BIGINT>,
            revision STRUCT<old: BIGINT, new: BIGINT>, notify_url STRING, server_url STRING,
            server_script_path STRING, log_id BIGINT, log_type STRING, log_action STRING,
            log_action_comment STRING, log_params STRING, schema_uri STRING, meta STRUCT<{META}>
        """,
        event_time="changed_at",
        subject="user",
        partition_by={"server": "server_name"},
        rules=(
            Required("meta.id"),
            Required("changed_at"),
            # As far ahead as the live view waits for late rows: no change closes the window in which it arrives.
            EventTimeWithin(behind="30d", ahead="10m"),
            # MediaWiki's own limit for a name. It becomes part of a key, and Kafka limits the size of a record.
            MaxBytes("user", 255),
        ),
        description="one row per change, canary events of the service left out",
    ),
    views=(
        AdditiveView(
            name="user_edits",
            rows="edits",
            aggregate="user_edits",
            key=("user", "bot", "window"),
            measures=("count",),
            columns="user STRING, bot BOOLEAN, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, count BIGINT",
            window="window",
            windows=TimeWindow("10m"),
            speed=CompactedTopic("wiki-user-edits", watermark="10m"),
            description="edits and new pages per user and 10 minutes of the change",
        ),
    ),
    reports=(Top("Top 10 users by edits", view="user_edits", measure="count", by=("user",), rows=10),),
)
