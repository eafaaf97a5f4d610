"""A part of a declaration that is of another class, or a number that counts nothing, is refused when it is declared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import (
    CatalogTable,
    CompactedTopic,
    Console,
    JdbcTable,
    KafkaDeserializer,
    KafkaMessages,
    KafkaTopic,
    KafkaTopics,
    Pipeline,
    Reference,
    Required,
    Retention,
    Rows,
    Schedule,
    Text,
    Threshold,
    TimeWindow,
    Top,
    every,
    hourly,
)

NEST: Any = load_pipeline("nest_cameras")
VIEW: Any = NEST.views[0]
FLAGS: Any = load_pipeline("auction_bids").flags

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "schedule as text": (
        lambda: replace(NEST, schedule="15m"),
        "the schedule is '15m' — write every(\"15m\") or hourly()",
    ),
    "schedule without brackets": (
        lambda: replace(NEST, schedule=hourly),
        "the schedule is hourly without its brackets — write every(",
    ),
    "deadline": (lambda: Schedule(timedelta(hours=1), registered_within=_any("20m")), "registered_within is '20m'"),
    "retention": (lambda: replace(NEST, retention="7d"), "retention is '7d' — write Retention(landing="),
    "slots": (lambda: replace(NEST, spark_slots=0), "spark_slots is 0 — write a whole number from 1 on"),
    "slots as text": (lambda: replace(NEST, spark_slots="2"), "spark_slots is '2' — write a whole"),
    "restart": (lambda: replace(NEST, restarts_on_new_code="no"), "restarts_on_new_code is 'no' — write True or"),
    "source": (lambda: replace(NEST, source="door-bells"), "the source is 'door-bells' — write KafkaTopics(…)"),
    "decoder": (lambda: replace(NEST, decoder=Text), "the decoder is Text without its brackets — write Json(…) or"),
    "archive": (lambda: replace(NEST, archive=None), "the archive is None — write Archive(…)"),
    "flags": (lambda: replace(NEST, flags="bids"), "flags is 'bids' — write Flags(…)"),
    "references": (lambda: replace(NEST, references=[_reference()]), "references is a list — write {"),
    "reference": (lambda: replace(NEST, references={"p": "x.csv"}), "the reference p is 'x.csv' — write Reference(…)"),
    "path of a reference": (
        lambda: Reference(_any("a.csv"), "a STRING"),
        "the path of a reference is 'a.csv' — write Path(__file__).with_name(",
    ),
    "jar": (
        lambda: replace(NEST, decoder=KafkaDeserializer(_any("a.jar"), "Meter", "a STRING")),
        "the jar of KafkaDeserializer is 'a.jar' — write Path(__file__).with_name(",
    ),
    "source of a reference": (
        lambda: Reference(columns="a STRING", source=_any("lake.x")),
        "the source of a reference is 'lake.x' — write CatalogTable(…) or LakePath(…) or JdbcQuery(…)",
    ),
    "view": (lambda: replace(NEST, views=("x",)), "one of views is 'x' — write AdditiveView(…)"),
    "report": (lambda: replace(NEST, reports=(Threshold,)), "one of reports is Threshold without its brackets"),
    "output": (lambda: replace(NEST, outputs=(KafkaTopic("x"),)), "one of outputs is a KafkaTopic — write Rows(…)"),
    "target": (lambda: Rows("x", to=_any("topic")), "the target of the output x is 'topic' — write KafkaTopic(…) or"),
    "rule": (lambda: replace(NEST.archive, rules=(Required,)), "one of rules is Required without its brackets"),
    "sink": (lambda: replace(VIEW, sinks=(JdbcTable,)), "one of sinks of the view hourly_counts is JdbcTable without"),
    "speed": (lambda: replace(VIEW, speed="counts"), "speed of the view hourly_counts is 'counts' — write Compacted"),
    "windows": (
        lambda: replace(VIEW, windows="1h"),
        "windows of the view hourly_counts is '1h' — write TimeWindow(\"1h\")",
    ),
    "offsets of a micro-batch": (
        lambda: KafkaTopics(subscribe=("a",), max_offsets_per_trigger=0),
        "max_offsets_per_trigger of the source is 0 — write a whole number from 1 on",
    ),
    "topic of the source": (
        lambda: KafkaTopics(subscribe=("a",), topic_partitions=0),
        "topic_partitions of the source is 0",
    ),
    "topic of a view": (lambda: CompactedTopic("a", topic_partitions=0), "topic_partitions of a is 0"),
    "topic of a sink": (lambda: KafkaMessages("a", topic_partitions=-1), "topic_partitions of a is -1"),
    "topic of an output": (lambda: KafkaTopic("a", topic_partitions=0), "topic_partitions of a is 0"),
    "topic of flags": (lambda: replace(FLAGS, topic_partitions=0), f"topic_partitions of {FLAGS.topic} is 0"),
    "rows of a report": (lambda: Top("T", "v", "m", ("k",), rows=0), "rows of the report 'T' is 0"),
    "rows of a console": (lambda: Console(rows=0), "rows of Console is 0"),
    "rows of a reference": (
        lambda: Reference(columns="a STRING", source=CatalogTable("x"), max_rows=0),
        "max_rows of a reference is 0",
    ),
    "snapshots": (lambda: Retention(snapshots=_any(True)), "snapshots of Retention is True"),
}


def _any(value: Any) -> Any:
    return value


def _reference() -> Reference:
    return Reference(Path("a.csv"), "a STRING")


@pytest.mark.parametrize("case", WRONG)
def test_declaration_is_refused_when_a_part_is_of_another_class_or_counts_nothing(case: str) -> None:
    declare, said = WRONG[case]
    with pytest.raises(UsageError, match=re.escape(said)):
        declare()


def test_declaration_is_accepted_when_its_parts_are_of_any_class_that_is_offered() -> None:
    declared = replace(
        NEST,
        schedule=every("6h", registered_within="1h"),
        retention=Retention(snapshots=1),
        spark_slots=2,
        decoder=Text(),
        references={"p": _reference()},
        views=[replace(VIEW, sinks=(JdbcTable(), Console()), windows=TimeWindow("10m"))],
        reports=(),
        outputs=(Rows("x", KafkaTopic("x")),),
    )
    assert isinstance(declared, Pipeline)
