"""What is of one view, report or pipeline is of no other: a declaration that shares it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import all_pipelines, check_apart, load_pipeline
from include.pipelines.spec import CompactedTopic, KafkaTopic, Pipeline, Rows

NEST, ISP, AUCTION = (load_pipeline(name) for name in ("nest_cameras", "isp_hits", "auction_bids"))


def renamed(pipeline: Pipeline, name: str, topic: str) -> Any:
    """The pipeline's first view by another name, written to another topic."""
    view = pipeline.views[0]
    return replace(view, name=name, speed=replace(view.speed, topic=topic))


OF_ONE: dict[str, tuple[Pipeline, dict[str, Any], str]] = {
    "view": (NEST, {"views": (*NEST.views, renamed(NEST, NEST.views[0].name, "other"))}, "two views have the name"),
    "report": (NEST, {"reports": (*NEST.reports, NEST.reports[0])}, "two reports have the name"),
    "topic of two views": (
        NEST,
        {"views": (*NEST.views, renamed(NEST, "other", NEST.views[0].speed.topic))},
        "the view hourly_counts and the view other write the topic nest-camera-stats",
    ),
    "topic of a view and an output": (
        NEST,
        {"outputs": (Rows("clean", to=KafkaTopic(NEST.views[0].speed.topic)),)},
        "write the topic nest-camera-stats",
    ),
    "topic of flags and an output": (
        AUCTION,
        {"outputs": (Rows("clean", to=KafkaTopic("auction-flags")),)},
        "flags and the output 'clean' write the topic auction-flags",
    ),
}


@pytest.mark.parametrize("case", OF_ONE)
def test_declaration_is_refused_when_two_of_its_parts_share_a_name(case: str) -> None:
    pipeline, changes, words = OF_ONE[case]
    with pytest.raises(UsageError, match=words):
        replace(pipeline, **changes)


def test_pipelines_are_refused_when_a_view_of_one_has_the_table_of_the_other() -> None:
    one = replace(NEST, name="nest", views=(renamed(NEST, "cameras_counts", "nest-counts"),), reports=())
    other = replace(NEST, views=(renamed(NEST, "counts", "nest-camera-counts"),), reports=())
    assert isinstance(one.views[0].speed, CompactedTopic)
    with pytest.raises(UsageError, match="nest and nest_cameras both write the table nest_cameras_counts"):
        check_apart([one, other])


@pytest.mark.parametrize("changes", [{"outputs": (Rows("clean", to=KafkaTopic("auction-flags")),)}])
def test_pipelines_are_refused_when_one_writes_a_topic_that_the_other_reads_back(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="both write the topic auction-flags"):
        check_apart([replace(ISP, **changes), AUCTION])


def test_shipped_pipelines_share_nothing() -> None:
    assert len(all_pipelines()) == 5
