"""What is of one view, report or pipeline is of no other: a declaration that shares it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.errors import PipelinesClash, UsageError
from include.pipelines import check_apart, load_pipeline
from include.pipelines.spec import (
    AdditiveView,
    CompactedTopic,
    DatabaseTable,
    JdbcTable,
    KafkaTopic,
    KafkaTopics,
    Pipeline,
    Rows,
)
from include.serving.shape import served_shapes
from tests.conftest import SetSettings
from tests.support.shipped import SHIPPED, all_pipelines

NEST, ISP, AUCTION = (load_pipeline(name) for name in ("nest_cameras", "isp_hits", "auction_bids"))


def renamed(pipeline: Pipeline, name: str, topic: str) -> Any:
    """The pipeline's first view by another name, written to another topic."""
    view = pipeline.views[0]
    return replace(view, name=name, speed=replace(view.speed, topic=topic))


OF_ONE: dict[str, tuple[Pipeline, dict[str, Any], str]] = {
    "view": (NEST, {"views": (*NEST.views, renamed(NEST, NEST.views[0].name, "other"))}, "two views have the name"),
    **{
        f"view {name}": (
            NEST,
            {"views": (renamed(NEST, name, "other"),), "reports": ()},
            f"the view '{name}' has the name of a query of Tidemark's own",
        )
        for name in ("archive", "flags", "replay")
    },
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
    "table of two outputs": (
        ISP,
        {"outputs": (Rows("a", to=DatabaseTable()), Rows("b", to=DatabaseTable(table="isp_hits_a")))},
        "the output 'b' goes to the table isp_hits_a of serving, which the output 'a' writes",
    ),
    "table of a view and an output": (
        ISP,
        {"outputs": (Rows("raw", to=DatabaseTable(table="isp_hits_by_zip")),)},
        "the output 'raw' goes to the table isp_hits_by_zip of serving, which the view 'by_zip' writes",
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
    with pytest.raises(PipelinesClash, match="nest and nest_cameras both write the table nest_cameras_counts") as clash:
        check_apart([one, other])
    assert clash.value.pipelines == ("nest", "nest_cameras")


def test_pipelines_are_refused_when_the_delta_view_of_one_has_the_table_of_the_other() -> None:
    nest = replace(NEST, archive=replace(NEST.archive, delta=True))
    other = replace(AUCTION, name="nest_cameras_delta")
    for pipelines in ([nest, other], [other, nest]):
        with pytest.raises(PipelinesClash, match="both write the table nest_cameras_delta"):
            check_apart(pipelines)
    check_apart([replace(NEST, archive=replace(NEST.archive, delta=False)), other])


@pytest.mark.parametrize("changes", [{"outputs": (Rows("clean", to=KafkaTopic("auction-flags")),)}])
def test_pipelines_are_refused_when_one_writes_a_topic_that_the_other_reads_back(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="both write the topic auction-flags"):
        check_apart([replace(ISP, **changes), AUCTION])


def selling(pipeline: Pipeline, source: KafkaTopics, to: DatabaseTable, name: str = "sold") -> Pipeline:
    """The pipeline with another source and an output to a table."""
    return replace(pipeline, source=source, outputs=(Rows(name, to=to),))


SHOP = DatabaseTable("shop", table="sold")
HITS = KafkaTopics(subscribe=("hits", "more-hits"))
WITH_A_COMMON_TOPIC = {
    "one set": (HITS, HITS, "the topic hits"),
    "sets": (HITS, KafkaTopics(subscribe=("others", "more-hits")), "the topic more-hits"),
    "an assignment": (KafkaTopics(assign={"hits": (3,)}), HITS, "the topic hits"),
    "assignments": (KafkaTopics(assign={"hits": (0, 1)}), KafkaTopics(assign={"hits": (1, 2)}), "the topic hits"),
    "a pattern": (HITS, KafkaTopics(pattern="more-.*"), "the topic more-hits"),
    "a pattern first": (KafkaTopics(pattern="more-.*"), HITS, "the topic more-hits"),
    "a pattern and an assignment": (KafkaTopics(assign={"hits": (0,)}), KafkaTopics(pattern="hit."), "the topic hits"),
    "one pattern": (KafkaTopics(pattern="hit."), KafkaTopics(pattern="hit."), "topics like hit."),
}


@pytest.mark.parametrize("case", WITH_A_COMMON_TOPIC)
def test_pipelines_are_refused_when_they_read_one_topic_and_write_one_table_of_a_database(case: str) -> None:
    one, other, common = WITH_A_COMMON_TOPIC[case]
    with pytest.raises(PipelinesClash) as refused:
        check_apart([selling(ISP, one, SHOP), selling(NEST, other, SHOP)])
    assert refused.value.pipelines == ("isp_hits", "nest_cameras")
    text = f"outputs of isp_hits and nest_cameras both write the table sold of shop, and both read {common}"
    assert text in str(refused.value)
    assert "a table of its own in include/pipelines/nest_cameras.py" in str(refused.value)


def test_pipelines_are_refused_when_one_names_the_table_that_the_other_has_by_default() -> None:
    one, other = selling(ISP, HITS, DatabaseTable()), selling(NEST, HITS, DatabaseTable(table="isp_hits_sold"))
    with pytest.raises(UsageError, match="both write the table isp_hits_sold of serving"):
        check_apart([one, other])


def test_pipelines_are_refused_when_an_output_of_one_has_the_table_of_a_view_of_the_other() -> None:
    apps = replace(NEST, name="apps", views=(), reports=(), outputs=(Rows("eu_by_v", to=DatabaseTable()),))
    apps_eu = replace(NEST, name="apps_eu", views=(served("by_v"),), reports=())
    for pipelines in ([apps, apps_eu], [apps_eu, apps]):
        with pytest.raises(UsageError, match="both write the table apps_eu_by_v of serving"):
            check_apart(pipelines)
    # In another database, or without a table of the view, they do not meet.
    check_apart([replace(apps, outputs=(Rows("eu_by_v", to=DatabaseTable("shop")),)), apps_eu])
    check_apart([apps, replace(apps_eu, views=(replace(served("by_v"), sinks=()),))])


def served(name: str) -> AdditiveView:
    """A view with a table in PostgreSQL."""
    view: AdditiveView = renamed(NEST, name, f"topic-of-{name}")
    return replace(view, sinks=(JdbcTable(),))


LONGEST = "v" * (63 - len("nest_cameras_"))


@pytest.mark.parametrize(
    ("long", "words"),
    [
        ({"views": (served(f"{LONGEST}v"),), "reports": ()}, f"the view '{LONGEST}v' has the table nest_cameras_v"),
        ({"outputs": (Rows(f"{LONGEST}v", to=DatabaseTable()),)}, f"the output '{LONGEST}v' has the table nest_cam"),
    ],
    ids=["view", "output"],
)
def test_declaration_is_refused_when_postgresql_would_cut_the_name_of_its_table(
    long: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=rf"{words}.*64 characters.*63"):
        replace(NEST, **long)


def test_declaration_is_accepted_when_no_name_of_a_table_in_postgresql_is_cut() -> None:
    # Of the longer ones, the output's table has a name of its own, and the view's is in the catalog alone.
    named = Rows(f"{LONGEST}w", to=DatabaseTable(table="named"))
    unserved = replace(served(f"{LONGEST}v"), sinks=())
    longest = replace(NEST, views=(served(LONGEST), unserved), reports=(), outputs=(named,))
    assert len(longest.live_tables["nest_cameras_" + LONGEST]) == 50
    assert list(served_shapes(longest)) == [LONGEST]


def test_view_without_a_table_is_not_served_when_postgresql_would_cut_its_name(
    set_settings: SetSettings,
) -> None:
    set_settings(TIDEMARK_SERVE="all")
    views = tuple(replace(served(name), sinks=()) for name in (LONGEST, f"{LONGEST}v"))
    assert list(served_shapes(replace(NEST, views=views, reports=()))) == [LONGEST]


@pytest.mark.parametrize(
    ("source", "to"),
    [
        (HITS, DatabaseTable("shop", table="sold_too")),
        (HITS, DatabaseTable("another", table="sold")),
        (HITS, DatabaseTable("shop")),
        (KafkaTopics(subscribe=("others",)), SHOP),
        # Only a part of the name matches.
        (KafkaTopics(pattern="hit"), SHOP),
    ],
)
def test_pipelines_are_accepted_when_their_rows_cannot_meet_in_one_table(
    source: KafkaTopics, to: DatabaseTable
) -> None:
    check_apart([selling(ISP, HITS, SHOP), selling(NEST, source, to)])


def test_pipelines_are_accepted_when_they_write_one_table_from_different_partitions_of_a_topic() -> None:
    one, other = (KafkaTopics(assign={"hits": numbers}) for numbers in ((0, 1), (2, 3)))
    check_apart([selling(ISP, one, SHOP), selling(NEST, other, SHOP)])


def test_declared_pipelines_share_nothing_and_those_that_are_shipped_are_among_them() -> None:
    assert {each.name for each in all_pipelines()} >= set(SHIPPED)
