"""Where the rows of an output go, by its declaration, and when that is another place than before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import DatabaseTable, KafkaTopic, Rows
from include.pipelines.spec.outputs import is_same_target, target_of


def named(to: KafkaTopic | DatabaseTable) -> str:
    return target_of("hits", Rows("clean", to=to))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (KafkaTopic("a"), KafkaTopic("b")),
        (KafkaTopic("a"), KafkaTopic(row_topics=("a",))),
        (KafkaTopic("a"), DatabaseTable(table="a")),
        (KafkaTopic(row_topics=("a", "b")), KafkaTopic(row_topics=("b", "c"))),
        (DatabaseTable("shop"), DatabaseTable("store")),
        (DatabaseTable("shop"), DatabaseTable("shop", table="clean")),
    ],
)
def test_target_is_another_when_its_name_or_kind_is(
    before: KafkaTopic | DatabaseTable, now: KafkaTopic | DatabaseTable
) -> None:
    assert not is_same_target(named(before), named(now))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (KafkaTopic("a"), KafkaTopic("a", key=("zipcode",), topic_partitions=9, row_topics=("b",))),
        (KafkaTopic(row_topics=("a", "b")), KafkaTopic(row_topics=("b", "c", "a"))),
        (KafkaTopic(row_topics=("a", "b")), KafkaTopic(row_topics=("b",))),
        (DatabaseTable("shop"), DatabaseTable("shop", table="hits_clean")),
    ],
)
def test_target_is_the_same_when_rows_go_where_they_went(
    before: KafkaTopic | DatabaseTable, now: KafkaTopic | DatabaseTable
) -> None:
    assert is_same_target(named(before), named(now))


@pytest.mark.parametrize("name", ["kafka_topic", "KAFKA_OFFSET"])
def test_column_of_an_output_is_refused_when_each_row_has_it_anyway(name: str) -> None:
    with pytest.raises(UsageError, match=f"the output clean declares {name}, which each row has anyway"):
        Rows("clean", to=KafkaTopic("clean"), rows="made", columns=f"a STRING, {name} STRING")


def test_topic_s_id_is_a_column_of_a_table_s_own_and_free_in_messages() -> None:
    columns = "a STRING, Kafka_Topic_Id STRING"
    assert Rows("clean", to=KafkaTopic("clean"), rows="made", columns=columns).columns == columns
    with pytest.raises(UsageError, match="the output clean declares Kafka_Topic_Id, which each row has anyway"):
        Rows("clean", to=DatabaseTable(), rows="made", columns=columns)
    isp = load_pipeline("isp_hits")
    archive = replace(isp.archive, columns=f"{isp.archive.columns}, kafka_topic_id STRING")
    assert replace(isp, archive=archive, outputs=(Rows("clean", to=KafkaTopic("clean")),)).outputs
    with pytest.raises(UsageError, match="isp_hits: the table of the output clean has a column kafka_topic_id of its"):
        replace(isp, archive=archive, outputs=(Rows("clean", to=DatabaseTable()),))
