"""Where the rows of an output go, by its declaration, and when that is another place than before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from include.errors import ServiceUnreachable, UsageError
from include.ledger.archive.row_outputs import Unsent
from include.ledger.streams.writers import Lease
from include.outputs.table import OutputTable
from include.pipelines import load_pipeline
from include.pipelines.spec import DatabaseTable, KafkaTopic, Rows
from include.pipelines.spec.outputs import is_same_target, target_of
from tests.conftest import SetSettings


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


UNFIT = ("ctid", "xmax", "ä" * 32)
"""Columns that no table of PostgreSQL can have: two of its own names, and 64 bytes."""


@pytest.mark.parametrize("column", UNFIT, ids=["own", "as well", "long"])
def test_column_of_an_output_is_refused_when_no_table_of_postgresql_can_have_it(column: str) -> None:
    isp = load_pipeline("isp_hits")
    words = f"isp_hits: the table of the output clean has the column {column}, whose name "
    archive = replace(isp.archive, columns=f"{isp.archive.columns}, {column} STRING")
    with pytest.raises(UsageError, match=words):
        replace(isp, archive=archive, outputs=(Rows("clean", to=DatabaseTable()),))
    output = Rows("clean", to=DatabaseTable(), rows="made", columns=f"a STRING, {column} STRING")
    with pytest.raises(UsageError, match=words):
        replace(isp, outputs=(output,))
    # Another database may have it, and so may messages.
    for to in (DatabaseTable("shop"), KafkaTopic("clean")):
        assert replace(isp, outputs=(replace(output, to=to),)).outputs


@pytest.mark.parametrize("column", UNFIT, ids=["own", "as well", "long"])
def test_output_writes_nothing_when_its_connection_leads_to_postgresql_which_cannot_have_its_columns(
    column: str, tmp_path: Path, set_settings: SetSettings
) -> None:
    to, lease, unsent = DatabaseTable("shop"), Lease("isp_hits", 1, ""), Unsent(1, (), {}, 0)
    output = Rows("clean", to=to, rows="made", columns=f"a STRING, {column} STRING")
    isp = replace(load_pipeline("isp_hits"), outputs=(output,))
    file = tmp_path / "jdbc.properties"
    # Nobody listens there.
    for kind, raised in (("postgresql", UsageError), ("mariadb", ServiceUnreachable)):
        file.write_text(f"shop.url=jdbc:{kind}://127.0.0.1:9/hits\n")
        file.chmod(0o600)
        set_settings(TIDEMARK_JDBC_PROPERTIES=str(file))
        with pytest.raises(raised, match=f"has the column {column}, whose" if raised is UsageError else "MariaDB at"):
            OutputTable(isp, output, to, lease, lambda: None).merge([], unsent)
