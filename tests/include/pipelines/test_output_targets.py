"""Where the rows of an output go, by its declaration, and when that is another place than before."""

from __future__ import annotations

import pytest

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
