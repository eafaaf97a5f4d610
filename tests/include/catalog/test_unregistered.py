"""A table in which nothing was ever registered follows any declaration: real ledger, the catalog's table is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from include.catalog import Storage, declared, unregistered
from include.catalog.columns import declared_types
from include.catalog.declared import check_storage
from include.doctor import tables
from include.errors import AnotherWriter, UsageError
from include.ledger.intervals import attempts, locks
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.publication import unregistered as publication
from tests.support.attempts import begin_attempt, begin_to_register, hour, note_build, register

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("postgres")]

Tell = Callable[..., None]


@pytest.fixture
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    nest = load_pipeline("nest_cameras")
    name = f"n{crc32(request.node.name.encode())}"
    return replace(nest, name=name, views=(), flags=None, reports=())


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline) -> Tell:
    """Let the catalog have the pipeline's table with these types, partition columns, format and partitions."""

    def catalog(
        *,
        partition_by: tuple[str, ...] = ("date", "interval"),
        file_format: str = "parquet",
        partitions: Any = (),
        **more: str,
    ) -> None:
        types = {**declared_types(pipeline)[pipeline.table], **more}
        fields = [{"name": name, "type": kind} for name, kind in types.items()]
        stored = Storage(file_format, json.dumps({"type": "struct", "fields": fields}), partition_by)
        monkeypatch.setattr(declared.catalog, "storage", lambda _: stored)
        monkeypatch.setattr(tables, "storage", lambda _: stored)
        monkeypatch.setattr(unregistered.catalog, "partitions", lambda _: dict.fromkeys(partitions))

    return catalog


def test_table_is_to_be_made_anew_when_nothing_was_registered_in_it(pipeline: Pipeline, tell: Tell) -> None:
    built = note_build(attempt := begin_attempt(pipeline.name))
    for shape in ({"gone": "int"}, {"partition_by": ("interval",)}, {"file_format": "orc"}):
        tell(**shape)
        assert check_storage(pipeline) == [pipeline.table]
    (found,) = tables._columns(pipeline, pipeline.table)
    assert (found.kind, found.repair) == ("catalog lags the declaration", "follow the declaration")
    assert "nothing was ever registered in it" in found.what

    # A publication that was killed may have pointed at it.
    begin_to_register(attempt, built)
    with pytest.raises(UsageError, match="has registered orc files"):
        check_storage(pipeline)
    (found,) = tables._columns(pipeline, pipeline.table)
    assert (found.kind, found.repair) == ("columns that files do not fit", "")


@pytest.mark.parametrize("shape", [{"partitions": ("date=2026-11-20/interval=1",)}, {"partition_by": ("day",)}])
def test_table_is_refused_when_it_has_partitions_or_is_not_one_that_tidemark_made(
    pipeline: Pipeline, tell: Tell, shape: dict[str, Any]
) -> None:
    tell(gone="int", **shape)
    with pytest.raises(UsageError, match="with other columns: gone int is not declared any more"):
        check_storage(pipeline)


def test_table_is_refused_when_files_were_registered_in_it(pipeline: Pipeline, tell: Tell) -> None:
    tell(gone="int")
    register(attempt := begin_attempt(pipeline.name), note_build(attempt))
    with pytest.raises(UsageError, match="with other columns: gone int is not declared any more"):
        check_storage(pipeline)


def test_archive_is_refused_when_rows_have_landed_with_other_columns(
    pipeline: Pipeline, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unregistered.micro_batches, "positions", lambda _: {"archive": 1})
    tell(gone="int")
    said = f"nothing is registered in lake.{pipeline.table} yet, but rows have landed with other columns: gone int"
    with pytest.raises(UsageError, match=said):
        check_storage(pipeline)
    # Landing files have neither.
    tell(partition_by=("interval",), file_format="orc")
    assert check_storage(pipeline) == [pipeline.table]


class Tables:
    """Stands for the catalog: what is dropped and created."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.done = pipeline, list[str]()

    def drop_table(self, table: str) -> None:
        self.done.append(f"drop {table}")

    def create_tables(self) -> None:
        self.done.append("create")


def test_table_is_made_anew_alone_when_no_build_for_the_former_one_is_being_published(
    pipeline: Pipeline, tell: Tell
) -> None:
    tell(gone="int")
    before = {pipeline.table: {**declared_types(pipeline)[pipeline.table], "gone": "int"}}
    note_build(attempt := begin_attempt(pipeline.name), columns=before)
    note_build(begin_attempt(pipeline.name, hour(1)), columns=declared_types(pipeline))
    catalog: Any = Tables(pipeline)
    with locks.publishing(pipeline.name, hour(1)):
        with (
            locks.publishing(pipeline.name, hour(0)),
            pytest.raises(AnotherWriter, match="is being published as it was declared before"),
        ):
            publication.make_anew(catalog)
        assert catalog.done == []
        publication.make_anew(catalog)
    assert catalog.done == [f"drop {pipeline.table}", "create"]
    # That build waited, for a person for instance.
    build = attempt_build(attempt)
    with pytest.raises(AnotherWriter, match=f"was built before {pipeline.table} was declared as it is"):
        publication.check_build(pipeline, hour(0), build)
    publication.check_build(replace(pipeline, archive=with_column(pipeline, "gone INT")), hour(0), build)


def attempt_build(attempt: int) -> int:
    build = attempts.load_attempt(attempt).build
    assert build is not None
    return build


def with_column(pipeline: Pipeline, column: str) -> Any:
    return replace(pipeline.archive, columns=f"{pipeline.archive.columns}, {column}")


def test_build_is_refused_when_its_files_have_another_format_or_partition_columns(pipeline: Pipeline) -> None:
    attempt = begin_attempt(pipeline.name, hour(2))
    note_build(attempt, columns=declared_types(pipeline))
    build = attempt_build(attempt)
    publication.check_build(pipeline, hour(2), build)
    as_orc = replace(pipeline.archive, file_format="orc")
    with pytest.raises(AnotherWriter):
        publication.check_build(replace(pipeline, archive=as_orc), hour(2), build)
    by_device = replace(pipeline.archive, partition_by={"device": "device_id"})
    with pytest.raises(AnotherWriter):
        publication.check_build(replace(pipeline, archive=by_device), hour(2), build)
