"""A served view that is declared anew while older code still runs: a driver, or an interval that was being built."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.doctor.served_views import check_served_views
from include.erasure.check import remaining
from include.errors import ServiceUnreachable, TidemarkError
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


@pytest.fixture
def reader(code: Code) -> Iterator[str]:
    """A role of PostgreSQL that may read the view, and some columns of the stream's table."""
    role, table = f"reader_{code.table}", code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    asked(f"CREATE ROLE {role}; GRANT SELECT ON live.{table} TO {role} WITH GRANT OPTION")
    asked(f"GRANT SELECT (zip_code, count) ON {table} TO {role}; GRANT SELECT ON proved.{table} TO PUBLIC")
    yield role
    asked(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def rights(code: Code, role: str) -> tuple[bool, ...]:
    """Whether the role may let others read the view, and read the stream's table's counts and the partial values."""
    may_read = f"has_column_privilege('{role}', '{code.table}', 'count', 'SELECT')"
    ((of_view, *others),) = asked(
        f"SELECT has_table_privilege('{role}', 'live.{code.table}', 'SELECT WITH GRANT OPTION'), {may_read}, "
        f"has_table_privilege('{role}', 'proved.{code.table}', 'SELECT'), "
        f"has_table_privilege('{role}', '{code.table}', 'SELECT')"
    )
    return (of_view, *others)


def test_rights_stay_as_they_were_granted_when_tables_and_view_are_made_anew(code: Code, reader: str) -> None:
    by_default = f"ALTER DEFAULT PRIVILEGES {{}} SELECT ON TABLES {{}} {reader}"
    assert rights(code, reader) == (True, True, True, False)
    assert follow_ledger(code.with_measure().pipeline) == []
    assert rights(code, reader) == (True, True, True, False)
    asked(by_default.format("GRANT", "TO"))
    merge(code.with_key().shape, [("1", "in", *WINDOW, 5)], 100, replace=True)
    assert asked(f"SELECT kind, count FROM live.{code.table}") == [("in", 5)]
    assert rights(code, reader) == (True, True, True, False)
    # Relations that were not there have what is granted by default.
    asked(f"DROP TABLE proved.{code.table} CASCADE")
    follow_ledger(code.with_key().pipeline)
    assert rights(code, reader) == (False, True, True, False)
    asked(by_default.format("REVOKE", "FROM"))


def test_view_on_the_served_one_stays_when_only_the_query_behind_it_is_another(code: Code) -> None:
    table = code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    (digest,) = asked(f"SELECT obj_description('live.{table}'::regclass)")
    asked(f"CREATE VIEW mine_{table} AS SELECT zip_code, count FROM live.{table}")
    # As an earlier version of the code made it.
    asked(f"COMMENT ON VIEW live.{table} IS 'Tidemark 0'")
    assert follow_ledger(code.pipeline) == []
    assert asked(f"SELECT obj_description('live.{table}'::regclass)") == [digest]
    assert asked(f"SELECT * FROM mine_{table}") == [("1", 5)]


@pytest.mark.parametrize("relation", ["live.{}", "proved.{}"])
def test_view_of_others_stays_and_publications_go_on_when_the_columns_behind_it_change(
    code: Code, relation: str
) -> None:
    later, table = code.with_measure(), code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    asked(f"CREATE VIEW mine_{table} AS SELECT zip_code, count FROM {relation.format(table)}")
    for _ in range(2):
        (line,) = follow_ledger(later.pipeline)
        assert f"live.{table} is left as it is: view mine_{table} depends on it; drop" in line
        (found,) = check_served_views(later.pipeline)
        assert (found.what, found.repair) == (line, "")
    assert f"registered values in PostgreSQL: {line}" in remaining(later.pipeline)
    # The base of the new generation adds the measure to the stream's table.
    merge(later.shape, [("1", *WINDOW, 6, 60)], 100, replace=True)
    merge(later.shape, [("2", *WINDOW, 7, 70)], 101)
    assert asked(f"SELECT zip_code, count FROM live.{table} ORDER BY 1") == [("1", 6), ("2", 7)]
    assert asked(f"SELECT count(*) FROM mine_{table}")[0][0] in (0, 2)
    asked(f"DROP VIEW mine_{table}")
    assert follow_ledger(later.pipeline) == []
    assert asked(f"SELECT zip_code, people FROM live.{table} ORDER BY 1") == [("1", 60), ("2", 70)]


OF_OTHERS = {
    "view": "CREATE MATERIALIZED VIEW mine_{0} AS SELECT zip_code, count FROM live.{0}",
    "on the table": "CREATE VIEW mine_{0} AS SELECT zip_code FROM {0}",
    "by its type": "CREATE FUNCTION mine_{0}(live.{0}) RETURNS text LANGUAGE sql AS 'SELECT $1.zip_code'",
}


@pytest.mark.parametrize("kind", OF_OTHERS)
def test_base_with_another_key_is_refused_when_objects_of_others_depend_on_the_table_or_its_view(
    code: Code, kind: str
) -> None:
    later, table = code.with_key(), code.table
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    asked(OF_OTHERS[kind].format(table))
    with pytest.raises(TidemarkError, match=f" mine_{table}.* depends on the table {table} or its view"):
        merge(later.shape, [("1", "in", *WINDOW, 5)], 100, replace=True)
    assert asked(f"SELECT zip_code, count FROM live.{table}") == [("1", 5)]
    asked(f"DROP {'FUNCTION' if 'type' in kind else 'MATERIALIZED VIEW' if kind == 'view' else 'VIEW'} mine_{table}")
    merge(later.shape, [("1", "in", *WINDOW, 5)], 100, replace=True)
    assert asked(f"SELECT kind, count FROM live.{table}") == [("in", 5)]


def test_readers_and_the_stream_go_on_when_a_view_of_other_columns_loads_its_history(
    code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, seen = code.table, []
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    asked(
        f"INSERT INTO proved.tidemark_positions (table_name, offsets) VALUES ('{table}', '{{}}') ON CONFLICT DO NOTHING"
    )

    def load(*_: object, **__: object) -> None:
        seen.append(asked(f"SET lock_timeout = '1s'; SELECT count FROM live.{table}"))
        merge(code.shape, [("1", *WINDOW, 6)], 8)

    monkeypatch.setattr("include.serving.follow._load", load)
    assert follow_ledger(code.with_measure().pipeline) == []
    assert seen == [[(5,)]]
    assert asked(f"SELECT count, people FROM live.{table}") == [(6, None)]


def test_view_is_left_as_it_is_until_the_next_publication_when_an_open_transaction_reads_it(
    code: Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, table = code.with_measure(), code.table
    loads: list[str] = []
    merge(code.shape, [("1", *WINDOW, 5)], 7)
    follow_ledger(code.pipeline)
    monkeypatch.setattr("include.serving.dependents.CHANGE_SECONDS", 0.3)
    monkeypatch.setattr("include.serving.follow._load", lambda *_: loads.append("all history"))
    with transaction("") as reading:
        reading.execute(f"SET application_name = 'dashboard'; SELECT count, pg_backend_pid() FROM live.{table}")
        ((_, pid),) = reading.fetchall()
        (line,) = follow_ledger(later.pipeline)
        assert f"live.{table} is left as it is: another transaction holds it: process {pid} (dashboard, user " in line
        assert f"SELECT pg_terminate_backend({pid})" in line
        assert loads == []
        with pytest.raises(ServiceUnreachable, match="another transaction holds a served table or view"):
            merge(later.shape, [("1", *WINDOW, 6, 60)], 100, replace=True)
        merge(code.shape, [("1", *WINDOW, 6)], 8)
        assert asked(f"SELECT count FROM live.{table}") == [(6,)]
    assert follow_ledger(later.pipeline) == []
    assert loads == ["all history"]
    assert asked(f"SELECT count, people FROM live.{table}") == [(6, None)]


def shape_as_stored(code: Code) -> Shape:
    with transaction("") as cursor:
        stored, difference = ensure(cursor, code.shape)
    assert not difference
    return stored
