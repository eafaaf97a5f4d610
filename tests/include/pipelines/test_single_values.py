"""Where several are declared, one without its comma is refused: Python takes a text for its letters."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import (
    Flags,
    KafkaMessages,
    KafkaTopic,
    KafkaTopics,
    Listing,
    Required,
    Top,
)

NEST: Any
NEST, AUCTION = load_pipeline("nest_cameras"), load_pipeline("auction_bids")
VIEW: Any = NEST.views[0]
RULE: Any = Required("device_id")
SINK: Any = KafkaMessages("door")
ASSIGNED: Any = {"door-bells": 3}

TEXTS: dict[str, tuple[Callable[[Any], object], str]] = {
    "subscribe": (lambda text: KafkaTopics(subscribe=text), "subscribe"),
    "assign": (lambda text: KafkaTopics(assign={"door-bells": text}), "assign['door-bells']"),
    "rules": (lambda text: replace(NEST.archive, rules=text), "rules"),
    "views": (lambda text: replace(NEST, views=text), "views"),
    "reports": (lambda text: replace(NEST, reports=text), "reports"),
    "outputs": (lambda text: replace(NEST, outputs=text), "outputs"),
    "key": (lambda text: replace(VIEW, key=text), "key of the view hourly_counts"),
    "measures": (lambda text: replace(VIEW, measures=text), "measures of the view hourly_counts"),
    "sinks": (lambda text: replace(VIEW, sinks=text), "sinks of the view hourly_counts"),
    "row_topics": (lambda text: KafkaMessages(messages="made", row_topics=text), "row_topics"),
    "row_topics of an output": (lambda text: KafkaTopic(row_topics=text), "row_topics"),
    "key of an output": (lambda text: KafkaTopic("clean", key=text), "key"),
    "by": (lambda text: Top("Largest", "hourly_counts", "count", by=text), "by of the report 'Largest'"),
    "columns of a listing": (lambda text: Listing("Hot", "rows", columns=text), "columns of the report 'Hot'"),
    "key of a listing": (lambda text: Listing("Hot", "rows", ("a",), key=text), "key of the report 'Hot'"),
    "learned_from": (lambda text: replace(flags(), learned_from=text), "learned_from of the flags"),
    "columns of flags": (lambda text: replace(flags(), columns=text), "columns of the flags"),
}


def flags() -> Flags:
    """The flags of a shipped pipeline."""
    assert AUCTION.flags is not None
    return AUCTION.flags


@pytest.mark.parametrize("case", TEXTS)
def test_text_is_refused_when_its_comma_is_missing(case: str) -> None:
    declare, what = TEXTS[case]
    with pytest.raises(UsageError, match=re.escape(f'{what} is text: write ("door",)')):
        declare("door")


SINGLE: dict[str, tuple[Callable[[], object], str]] = {
    "view": (lambda: replace(NEST, views=VIEW), "views is a single AdditiveView: write (AdditiveView(…),)"),
    "report": (lambda: replace(NEST, reports=NEST.reports[0]), "reports is a single Threshold"),
    "rule": (lambda: replace(NEST.archive, rules=RULE), "rules is a single Required"),
    "sink": (lambda: replace(VIEW, sinks=SINK), "is a single KafkaMessages"),
    "topic partition": (lambda: KafkaTopics(assign=ASSIGNED), "assign['door-bells'] is a single int: write (3,)"),
}


@pytest.mark.parametrize("case", SINGLE)
def test_object_is_refused_when_its_comma_is_missing(case: str) -> None:
    declare, said = SINGLE[case]
    with pytest.raises(UsageError, match=re.escape(said)):
        declare()


def test_list_is_accepted_in_place_of_a_tuple() -> None:
    topics: Any = ["door-bells"]
    assert KafkaTopics(subscribe=topics).reads("door-bells")
