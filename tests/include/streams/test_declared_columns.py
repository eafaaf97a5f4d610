"""A declaration that registered files cannot follow is refused before a stream lands by it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from include.catalog import Storage, declared, renames
from include.catalog.columns import declared_types
from include.errors import ServiceUnreachable, UsageError
from include.ledger.intervals.revisions import RegisteredRevision
from include.ledger.streams import generations as ledger_generations
from include.ledger.streams import writers
from include.pipelines import load_pipeline
from include.streams import generations, new_code, start

PIPELINE = load_pipeline("isp_hits")
TABLE = "isp_hits_by_zip"
OTHER = "lake.isp_hits has registered files with other columns: gone int is not declared any more"


def storage(**more: str) -> Callable[[str], Storage | None]:
    """A catalog in which the archive's table has these columns besides the declared ones."""
    partitions = (*PIPELINE.archive.partition_columns, "interval")
    types = {**declared_types(PIPELINE)[PIPELINE.table], **more}
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    stored = Storage("parquet", json.dumps({"type": "struct", "fields": fields}), partitions)
    return lambda table: stored if table == PIPELINE.table else None


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], Any]], None]:
    return lambda found: monkeypatch.setattr(declared.catalog, "storage", found)


class Reached(Exception):
    pass


@pytest.fixture(autouse=True)
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What comes after the check: Kafka's topics for a stream, the lease for a generation."""
    after: list[str] = []

    def reach(name: str) -> Callable[..., Any]:
        def noted(*_: object) -> None:
            after.append(name)
            raise Reached

        return noted

    monkeypatch.setattr(declared, "tables_with_rows", dict)
    monkeypatch.setattr(declared, "is_unregistered", lambda *_: False)
    monkeypatch.setattr(declared.partition_sources, "sources", lambda _: {"zip": "zipcode"})
    monkeypatch.setattr(renames, "retired_names", lambda *_: {})
    monkeypatch.setattr(start, "check_lake", lambda _: None)
    monkeypatch.setattr(start, "check_references", reach("stream"))
    monkeypatch.setattr(generations, "check_version", lambda: None)
    monkeypatch.setattr(writers, "live_writer", reach("generation"))
    monkeypatch.setattr(ledger_generations, "current", lambda _: None)
    monkeypatch.setattr(ledger_generations, "event_time", lambda _: None)
    monkeypatch.setattr(new_code, "contents_of_generation", lambda _: {})
    return after


ACTIONS: dict[str, Callable[[], object]] = {
    "stream": lambda: start.begin(PIPELINE),
    "generation": lambda: generations.new_generation(PIPELINE, reason="a test", started_by="test@host"),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_it_is_refused_when_registered_files_have_a_column_that_was_taken_out(
    catalog: Callable[..., None], reached: list[str], action: str
) -> None:
    catalog(storage(gone="integer"))
    with pytest.raises(UsageError, match=OTHER) as refused:
        ACTIONS[action]()
    assert "take the change back" in str(refused.value)
    assert reached == []


def test_new_code_does_not_fit_when_registered_files_have_a_column_that_it_does_not_declare(
    catalog: Callable[..., None],
) -> None:
    catalog(storage(gone="integer"))
    assert OTHER in new_code.fit_now(PIPELINE).needs
    catalog(storage())
    assert new_code.fit_now(PIPELINE).needs == ""


@pytest.mark.parametrize("action", ACTIONS)
def test_it_is_refused_when_registered_partitions_have_values_of_another_column(
    catalog: Callable[..., None], reached: list[str], action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog(storage())
    monkeypatch.setattr(declared.partition_sources, "sources", lambda _: {"zip": "isp"})
    said = "in partitions by other columns: zip had the values of isp, declared is zipcode"
    with pytest.raises(UsageError, match=said) as refused:
        ACTIONS[action]()
    assert "take the change back" in str(refused.value)
    assert reached == []
    assert said in new_code.fit_now(PIPELINE).needs
    # Nothing is registered yet, or the table was dropped.
    catalog(lambda _: None)
    with pytest.raises(Reached):
        ACTIONS[action]()


@pytest.mark.parametrize("action", ACTIONS)
def test_it_goes_on_with_a_warning_when_the_catalog_does_not_answer(
    catalog: Callable[..., None], reached: list[str], action: str, caplog: pytest.LogCaptureFixture
) -> None:
    def away(_: str) -> None:
        raise ServiceUnreachable("the catalog in PostgreSQL at ledger: away")

    catalog(away)
    with caplog.at_level(logging.WARNING, "tidemark"), pytest.raises(Reached):
        ACTIONS[action]()
    assert reached == [action]
    told = "neither the declared columns nor the tables' owners were compared with what is registered: the catalog"
    assert f"isp_hits: {told}" in caplog.text
    assert new_code.fit_now(PIPELINE).needs == ""


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], dict[str, list[str]]]:
    """Where the table of `by_zip` points, and which pipelines ever had rows in which table: `isp` in that one."""
    before = "file:///lake/tables/1"
    pointed_at, noted = {before}, {"isp": [TABLE]}
    revision = RegisteredRevision(TABLE, "interval=1", "1", before, 1, "hash", {}, interval_id=1)
    monkeypatch.setattr(declared, "tables_with_rows", lambda: noted)
    monkeypatch.setattr(declared, "registered", lambda table: [revision] if table == TABLE else [])
    monkeypatch.setattr(declared.catalog, "pointed_at", lambda tables: pointed_at if TABLE in tables else set())
    return pointed_at, noted


@pytest.mark.parametrize("action", ACTIONS)
def test_it_is_refused_when_its_table_still_has_partitions_of_another_pipeline(
    catalog: Callable[..., None],
    partitions: tuple[set[str], dict[str, list[str]]],
    reached: list[str],
    action: str,
) -> None:
    pointed_at, noted = partitions
    catalog(storage())
    with pytest.raises(UsageError, match=f"lake.{TABLE} has registered partitions of isp") as refused:
        ACTIONS[action]()
    assert refused.value.pipeline == "isp_hits"
    assert reached == []
    assert f"lake.{TABLE}" in new_code.fit_now(PIPELINE).needs

    # It has rows of its own, too: the view was moved before this was refused.
    noted["isp_hits"] = [TABLE]
    with pytest.raises(Reached):
        ACTIONS[action]()
    del noted["isp_hits"]
    # The table was dropped, and perhaps made anew.
    pointed_at.clear()
    with pytest.raises(Reached):
        ACTIONS[action]()


@pytest.mark.usefixtures("partitions")
def test_interval_is_refused_when_its_table_still_has_partitions_of_another_pipeline(
    catalog: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.intervals import build

    catalog(storage())
    monkeypatch.setattr(build, "await_ledger", lambda: None)
    with pytest.raises(UsageError, match=f"lake.{TABLE} has registered partitions of isp"):
        build.build(SimpleNamespace(pipeline=PIPELINE))  # type: ignore[arg-type]


@pytest.mark.usefixtures("partitions")
def test_generation_of_lines_is_opened_when_a_registered_table_has_the_name_of_their_view(
    catalog: Callable[..., None], reached: list[str]
) -> None:
    catalog(lambda _: None)
    lines = replace(PIPELINE, declared_as="isp")
    with pytest.raises(Reached):
        generations.new_generation(lines, reason="a test", started_by="test@host")
    assert reached == ["generation"]
