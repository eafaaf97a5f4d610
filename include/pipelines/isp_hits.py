"""Hits of internet providers' users: archived by zip code and date, counted by zip code and by provider."""

from __future__ import annotations

from include.pipelines.spec import (
    AdditiveView,
    Archive,
    CompactedTopic,
    Console,
    EventTimeWithin,
    JdbcTable,
    Json,
    KafkaMessages,
    KafkaTopics,
    Listing,
    MaxBytes,
    Pipeline,
    Required,
    Threshold,
    TimeWindow,
)

HIT = "zipcode STRING, hittime TIMESTAMP, isp STRING, user STRING"

REGIONS = ("isp-hits-east", "isp-hits-west")
"""Topics of the two halves of the country, by the first digit of the zip code."""

PIPELINE = Pipeline(
    name="isp_hits",
    description="Hits of internet providers' users, counted per zip code and provider, in windows and in all",
    source=KafkaTopics(subscribe=("isp-hits",)),
    decoder=Json(schema=HIT),
    archive=Archive(
        rows="hits",
        columns=HIT,
        event_time="hittime",
        subject="user",
        partition_by={"zip": "zipcode"},
        rules=(
            Required("zipcode"),
            Required("hittime"),
            MaxBytes("isp", 200),
            EventTimeWithin(behind="30d", ahead="1h"),
        ),
        description="one row per hit, partitioned by zip code and date",
    ),
    views=(
        AdditiveView(
            name="by_zip",
            rows="counted_hits",
            aggregate="hits_by_zip",
            key=("zipcode", "window"),
            measures=("hits",),
            columns="zipcode STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, hits BIGINT",
            window="window",
            windows=TimeWindow("10m", slide="5m", start="2m"),
            # As long as hits may lie ahead: none closes the window in which it arrives.
            speed=CompactedTopic("isp-hits-by-zip", watermark="1h"),
            sinks=(
                JdbcTable(),
                KafkaMessages(topic="isp-hits-changes"),
                KafkaMessages(messages="regional_messages", row_topics=REGIONS),
            ),
            description="hits per zip code in windows of 10 minutes, every 5 minutes from 2 past the hour",
        ),
        AdditiveView(
            name="by_isp",
            rows="hits_of_providers",
            aggregate="hits_by_isp",
            key=("isp", "window"),
            measures=("hits",),
            columns="isp STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, hits BIGINT",
            window="window",
            windows=TimeWindow("1d"),
            speed=CompactedTopic("isp-hits-by-isp", watermark="1h"),
            mode="complete",
            sinks=(JdbcTable(), Console(rows=10)),
            description="hits per internet provider and day, of hits that name one",
        ),
        AdditiveView(
            name="zip_totals",
            rows="counted_hits",
            aggregate="total_by_zip",
            key=("zipcode",),
            measures=("hits",),
            columns="zipcode STRING, hits BIGINT",
            speed=CompactedTopic("isp-hits-zip-totals"),
            max_keys=50_000,
            sinks=(JdbcTable(),),
            description="hits per zip code since the beginning",
        ),
        AdditiveView(
            name="isp_totals",
            rows="hits_of_providers",
            aggregate="total_by_isp",
            key=("isp",),
            measures=("hits",),
            columns="isp STRING, hits BIGINT",
            speed=CompactedTopic("isp-hits-isp-totals"),
            max_keys=5_000,
            mode="complete",
            sinks=(JdbcTable(),),
            description="hits per internet provider since the beginning, of hits that name one",
        ),
    ),
    reports=(
        Threshold("Busy zip codes", view="by_zip", measure="hits", above=300),
        Listing("Users by zip code", rows="users_by_zip", columns=("zipcode", "users", "hits")),
    ),
    restarts_on_new_code=True,
)
