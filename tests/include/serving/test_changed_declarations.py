"""A served view that is declared anew while older code still runs: a driver, or an interval that was being built."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.doctor.served_views import check_served_views
from include.errors import TidemarkError
from include.monitor.streams.answer_page import answer_page
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, JdbcTable, Pipeline
from include.serving import transaction
from include.serving.follow import follow_ledger
from include.serving.live_rows import merge
from include.serving.relations import ensure
from include.serving.shape import Shape, shape_of
from tests.conftest import Home
from tests.support.served import asked

pytestmark = pytest.mark.services

DAY = datetime(2026, 11, 18, 5, tzinfo=UTC)
WINDOW = (DAY, DAY + timedelta(hours=1))


@dataclass(frozen=True)
class Code:
    """What a process has loaded."""

    pipeline: Pipeline

    @property
    def shape(self) -> Shape:
        return shape_of(self.pipeline, self.pipeline.views[0])

    @property
    def table(self) -> str:
        return self.shape.table

    def declaring(self, **changes: Any) -> Code:
        view: AdditiveView = replace(self.pipeline.views[0], **changes)
        return Code(replace(self.pipeline, views=(view,)))

    def with_key(self) -> Code:
        """Return later code, in which the view's key has one more column."""
        view = self.pipeline.views[0]
        return self.declaring(key=("zip_code", "kind", "window"), columns=f"{view.columns}, kind STRING")

    def with_measure(self) -> Code:
        """Return later code, in which the view has one more measure."""
        view = self.pipeline.views[0]
        return self.declaring(measures=("count", "people"), columns=f"{view.columns}, people BIGINT")


@pytest.fixture
def code(postgres: Home, request: pytest.FixtureRequest) -> Code:
    declared = load_pipeline("nest_cameras")
    view = replace(declared.views[0], sinks=(JdbcTable(),))
    name = f"t{zlib.crc32(request.node.name.encode())}"
    return Code(replace(declared, name=name, views=(view,), references={}, reports=(), declared_as=""))


def test_rows_of_a_generation_stay_when_code_of_before_it_publishes_and_writes(code: Code) -> None:
    later, table = code.with_key(), code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    merge(later.shape, [("1", "in", *WINDOW, 3), ("1", "out", *WINDOW, 2)], 100, replace=True)
    rows = [("1", "in", 3), ("1", "out", 2)]
    (line,) = follow_ledger(code.pipeline)
    assert f"live.{table} is left as it is" in line
    assert f'./tidemark new-generation {code.pipeline.name} --reason "…"' in line
    (found,) = check_served_views(code.pipeline)
    assert (found.what, found.repair) == (line, "")
    assert asked(f"SELECT zip_code, kind, count FROM {table} ORDER BY kind") == rows
    merge(code.shape, [("1", *WINDOW, 6)], 8)
    assert asked(f"SELECT zip_code, kind, count FROM {table} ORDER BY kind") == rows
    assert asked(f"SELECT zip_code, kind, count FROM live.{table} ORDER BY kind") == rows
    assert follow_ledger(later.pipeline) == []


def test_rows_and_registered_values_stay_when_later_code_publishes_before_its_generation_began(code: Code) -> None:
    later, table = code.with_key(), code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    asked(f"INSERT INTO proved.{table} VALUES ('1', %s, %s, 4, 1)", WINDOW)
    for version in (8, 9):
        assert len(follow_ledger(later.pipeline)) == 1
        merge(code.shape, [("2", *WINDOW, version)], version)
    found = asked(f"SELECT zip_code, count, proved_count FROM live.{table} ORDER BY zip_code")
    assert found == [("1", 5, 4), ("2", 9, None)]
    merge(later.shape, [("1", "in", *WINDOW, 5)], 100, replace=True)
    assert asked(f"SELECT zip_code, kind, count, proved_count FROM live.{table}") == [("1", "in", 5, None)]
    assert follow_ledger(later.pipeline) == []


def test_registered_values_stay_when_a_driver_of_before_a_measure_goes_on(code: Code) -> None:
    later, table = code.with_measure(), code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(later.pipeline)
    asked(f"INSERT INTO proved.{table} VALUES ('1', %s, %s, 4, 40, 1)", WINDOW)
    merge(code.shape, [("1", *WINDOW, 6)], 8)
    assert follow_ledger(later.pipeline) == []
    found = asked(f"SELECT zip_code, count, people, proved_people, live_people FROM live.{table}")
    assert found == [("1", 6, None, 40, None)]
    # An interval's application of the older code, once the generation has begun.
    merge(later.shape, [("1", *WINDOW, 6, 60)], 100, replace=True)
    assert len(follow_ledger(code.pipeline)) == 1
    assert asked(f"SELECT count, people, proved_people FROM live.{table}") == [(6, 60, 40)]


def test_answer_reads_a_renamed_and_wider_measure_when_the_stream_has_it_by_its_old_name(code: Code) -> None:
    columns = code.pipeline.views[0].columns
    later = code.declaring(
        measures=("seen",), columns=columns.replace("count BIGINT", "seen DECIMAL(20,2)"), renamed={"seen": ("count",)}
    )
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(later.pipeline)
    merge(code.shape, [("2", *WINDOW, 6)], 8)
    assert asked(f"SELECT zip_code, seen FROM live.{code.table} ORDER BY zip_code") == [("1", 5), ("2", 6)]
    merge(later.shape, [("1", *WINDOW, 7)], 100, replace=True)
    assert asked(f"SELECT zip_code, seen, live_seen FROM live.{code.table}") == [("1", 7, 7)]
    assert follow_ledger(later.pipeline) == []


def test_measure_that_is_no_longer_declared_leaves_the_table_when_a_generation_begins(code: Code) -> None:
    wider, table = code.with_measure(), code.table
    merge(wider.shape, [("1", *WINDOW, 5, 50)], 7)
    follow_ledger(wider.pipeline)
    assert len(follow_ledger(code.pipeline)) == 1
    merge(code.shape, [("1", *WINDOW, 5)], 100, replace=True)
    assert follow_ledger(code.pipeline) == []
    assert asked(f"SELECT * FROM {table}") == [("1", *WINDOW, 5, 100)]
    assert asked(f"SELECT zip_code, count FROM live.{table}") == [("1", 5)]


def test_table_of_an_early_version_is_made_anew_when_the_key_is_another(code: Code) -> None:
    later, table = code.with_key(), code.table
    asked(
        f"CREATE TABLE {table} (zip_code text, window_start timestamptz, window_end timestamptz, "
        "count bigint NOT NULL, version bigint NOT NULL, PRIMARY KEY (zip_code, window_start, window_end))"
    )
    merge(later.shape, [("1", None, *WINDOW, 5)], 100, replace=True)
    assert asked(f"SELECT zip_code, kind, count FROM live.{table}") == [("1", None, 5)]


def test_micro_batch_is_refused_when_the_table_has_another_key_and_no_base_was_written(code: Code) -> None:
    later, table = code.with_key(), code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    for _ in range(2):
        with pytest.raises(TidemarkError, match=f"{table} has the key zip_code text") as told:
            merge(later.shape, [("1", "in", *WINDOW, 5)], 100)
        assert f"./tidemark new-generation {code.pipeline.name}" in told.value.remedy
    assert asked(f"SELECT zip_code, count, version FROM {table}") == [("1", 5, 7)]


def test_table_that_no_stream_has_written_follows_the_declaration_when_the_key_is_another(code: Code) -> None:
    later = code.with_key()
    follow_ledger(code.pipeline)
    assert follow_ledger(later.pipeline) == []
    merge(later.shape, [("1", "in", *WINDOW, 5)], 0)
    assert asked(f"SELECT zip_code, kind, count FROM live.{code.table}") == [("1", "in", 5)]


def test_page_is_refused_clearly_while_the_view_is_of_another_declaration(code: Code) -> None:
    later = code.with_key()
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    follow_ledger(later.pipeline)
    with pytest.raises(TidemarkError, match=r"is of another declaration, without kind — \./tidemark new-generation"):
        answer_page(later.pipeline, later.pipeline.views[0])


def test_layers_are_compared_by_a_measure_that_the_stream_has_when_another_is_declared_first(code: Code) -> None:
    view = code.pipeline.views[0]
    later = code.declaring(measures=("people", "count"), columns=f"{view.columns}, people BIGINT")
    merge(code.shape, [("1", *WINDOW, 6)], 7)
    follow_ledger(later.pipeline)
    assert shape_as_stored(later).counting == next(each for each in later.shape.measures if each.name == "count")
    registered = "INSERT INTO proved.{0} (zip_code, window_start, window_end, people, count, tidemark_interval)"
    asked(f"{registered.format(code.table)} VALUES ('1', %s, %s, 4, 4, 1)", WINDOW)
    assert asked(f"SELECT count, state FROM live.{code.table}") == [(6, "both")]
    asked(f"UPDATE {code.table} SET count = 3")
    assert asked(f"SELECT count, state FROM live.{code.table}") == [(4, "both")]


OWN = (
    "version",
    "intervals",
    "p_count",
    "live_count",
    "state",
)
"""Names of columns that Tidemark adds to the relations of a view, or to queries of them."""


@pytest.mark.parametrize("name", OWN)
def test_view_is_served_when_its_key_has_the_name_of_a_column_that_tidemark_adds(code: Code, name: str) -> None:
    columns = code.pipeline.views[0].columns.replace("zip_code", name)
    named = code.declaring(key=(name, "window"), columns=columns)
    table, own = named.table, named.shape.own
    merge(named.shape, [("1", *WINDOW, 5), ("2", *WINDOW, 7)], 7)
    assert follow_ledger(named.pipeline) == []
    asked(
        f"INSERT INTO proved.{table} ({name}, window_start, window_end, count, {own('tidemark_interval')}) "
        "VALUES ('1', %s, %s, 4, 1)",
        WINDOW,
    )
    merge(named.shape, [("2", *WINDOW, 8)], 8)
    added = ", ".join(map(own, ("state", "proved_count", "live_count", "intervals", "version")))
    found = asked(f"SELECT {name}, count, {added} FROM live.{table} ORDER BY {name}")
    assert found == [("1", 5, "both", 4, 5, 1, 7), ("2", 8, "live", None, 8, 0, 8)]
    (page,) = answer_page(named.pipeline, named.pipeline.views[0], name, "2").rows
    assert page.key == ("2",)
    merge(named.shape, [("3", *WINDOW, 1)], 100, replace=True)
    assert asked(f"SELECT {name}, count FROM {table}") == [("3", 1)]


@pytest.mark.parametrize("measure", ["below", "until"])
def test_view_is_served_when_a_measure_makes_a_column_that_tidemark_has_for_the_position(
    code: Code, measure: str
) -> None:
    columns = code.pipeline.views[0].columns.replace("count ", f"{measure} ")
    named = code.declaring(measures=(measure,), columns=columns)
    merge(named.shape, [("1", *WINDOW, 5)], 7)
    assert follow_ledger(named.pipeline) == []
    found = asked(f"SELECT {measure}, live_{measure}, proved_{measure} FROM live.{named.table}")
    assert found == [(5, 5, None)]
    moved = f"proved_{measure}"
    position = [f"tidemark_{name}" if name == moved else name for name in ("proved_below", "proved_until")]
    assert asked(f"SELECT {', '.join(position)} FROM live.{named.table}") == [({}, None)]
    (page,) = answer_page(named.pipeline, named.pipeline.views[0], "zip_code", "1").rows
    assert page.key == ("1",)


def test_tables_of_two_views_are_apart_when_one_is_named_like_an_index_of_the_other(code: Code) -> None:
    view = code.pipeline.views[0]
    other = replace(view, name=f"{view.name}_by_window", speed=replace(view.speed, topic="another"))
    both = replace(code.pipeline, views=(view, other))
    for number, each in enumerate(both.views):
        merge(shape_of(both, each), [("1", *WINDOW, number)], 7)
    assert [asked(f"SELECT count FROM {both.view_table(each)}") for each in both.views] == [[(0,)], [(1,)]]


def test_total_is_served_when_its_key_has_the_name_of_a_column_that_tidemark_adds(code: Code) -> None:
    total = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
    columns = total.columns.replace("zipcode", "version")
    view = replace(total, key=("version",), columns=columns, sinks=(JdbcTable(),))
    named = Code(replace(code.pipeline, views=(view,)))
    merge(named.shape, [("1", 5)], 7)
    assert follow_ledger(named.pipeline) == []
    merge(named.shape, [("1", 6)], 8)
    assert asked(f"SELECT version, {view.measures[0]}, tidemark_version FROM live.{named.table}") == [("1", 6, 8)]


def shape_as_stored(code: Code) -> Shape:
    with transaction("") as cursor:
        stored, difference = ensure(cursor, code.shape)
    assert not difference
    return stored
