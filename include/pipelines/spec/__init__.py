"""The vocabulary of a pipeline's declaration: frozen dataclasses, checked when they are created.

A declaration holds facts and names; the functions that it names live in
`spark_jobs/transforms/<pipeline>.py`, its suite in `expectations/<pipeline>.py`.
"""

from __future__ import annotations

from include.pipelines.spec.archive import (
    EVENT_TIMES,
    Archive,
    Between,
    EventTimeWithin,
    Fits,
    MaxBytes,
    Required,
    Retention,
    Rule,
    SafeValue,
)
from include.pipelines.spec.decoders import Avro, Csv, Decoder, Json, KafkaDeserializer, Text, UserDefined
from include.pipelines.spec.names import IDENTITY, KAFKA_COLUMNS, OWN_COLUMNS, check_topic
from include.pipelines.spec.outputs import DatabaseTable, Flags, KafkaTopic, Limit, Rows
from include.pipelines.spec.pipeline import Pipeline
from include.pipelines.spec.references import CatalogTable, JdbcQuery, LakePath, Reference
from include.pipelines.spec.reports import Grid, Listing, Report, Threshold, Top
from include.pipelines.spec.sources import PRODUCER_OPTIONS, KafkaTopics
from include.pipelines.spec.views import (
    AdditiveView,
    CompactedTopic,
    Console,
    JdbcTable,
    KafkaMessages,
    Sink,
)
from include.times import Schedule, TimeWindow, every, hourly

__all__ = [
    "EVENT_TIMES",
    "IDENTITY",
    "KAFKA_COLUMNS",
    "OWN_COLUMNS",
    "PRODUCER_OPTIONS",
    "AdditiveView",
    "Archive",
    "Avro",
    "Between",
    "CatalogTable",
    "CompactedTopic",
    "Console",
    "Csv",
    "DatabaseTable",
    "Decoder",
    "EventTimeWithin",
    "Fits",
    "Flags",
    "Grid",
    "JdbcQuery",
    "JdbcTable",
    "Json",
    "KafkaDeserializer",
    "KafkaMessages",
    "KafkaTopic",
    "KafkaTopics",
    "LakePath",
    "Limit",
    "Listing",
    "MaxBytes",
    "Pipeline",
    "Reference",
    "Report",
    "Required",
    "Retention",
    "Rows",
    "Rule",
    "SafeValue",
    "Schedule",
    "Sink",
    "Text",
    "Threshold",
    "TimeWindow",
    "Top",
    "UserDefined",
    "check_topic",
    "every",
    "hourly",
]
