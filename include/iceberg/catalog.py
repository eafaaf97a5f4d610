"""The Iceberg catalog: PyIceberg's SqlCatalog beside the Hive metastore's tables in PostgreSQL.

Its two tables are those that Iceberg's JDBC catalog reads, Trino's included. Metadata lies at
`<lake>/iceberg/<table>/metadata`; data files are those of the registered revisions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.exc import DBAPIError

from include import lake
from include.catalog import DATABASE
from include.errors import AnotherWriter, MetadataGone, ServiceUnreachable, UsageError, one_line
from include.iceberg.sql_catalog import Catalog
from include.lake import object_store
from include.ledger.connection import driver_options, remedy_of
from include.ledger.held_locks import held_by, held_lock
from include.pipelines.spec import Pipeline
from include.settings import settings

NAME = "tidemark"
"""The catalog's name, by which other engines' catalogs of the same tables find it."""

OWNER = "tidemark.pipeline"
"""Property of a table: the pipeline that declares it."""

_PATIENCE = timedelta(minutes=10)


@contextmanager
def opened() -> Iterator[SqlCatalog]:
    """Open the catalog, and create its tables and the namespace `lake` when they are missing.

    Raises ServiceUnreachable when PostgreSQL does not answer or goes away.
    """
    options = {name: str(value) for name, value in driver_options().items()}
    url = settings().database("catalog").update_query_dict(options)
    try:
        with held_lock(name := "iceberg-catalog", _PATIENCE) as is_alone:
            if not is_alone:
                raise AnotherWriter(f"another process opens the Iceberg catalog{held_by(name)}", remedy="try again")
            catalog = Catalog(
                NAME,
                uri=url.render_as_string(hide_password=False),
                warehouse=lake.uri("iceberg"),
                **{"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO", **_store()},
            )
            catalog.create_namespace_if_not_exists(DATABASE)
        try:
            yield catalog
        finally:
            catalog.engine.dispose()
    except DBAPIError as error:
        reason = one_line(str(error.orig))
        raise ServiceUnreachable(
            f"the Iceberg catalog in PostgreSQL at {settings().database_host()}: {reason}", remedy=remedy_of(reason)
        ) from None


def _store() -> dict[str, str]:
    kind = object_store.Patience
    found = {"s3.retry-strategy-impl": f"{kind.__module__}.{kind.__qualname__}"}
    if address := object_store.client_address():
        # PyIceberg does not read the variables: without these it sends the metadata to AWS.
        found |= {"s3.endpoint": address["endpoint_override"], "s3.region": address["region"]}
    return found


@contextmanager
def writing(pipeline: str) -> Iterator[None]:
    """Hold the lock on writing the pipeline's Iceberg tables; others wait. Raises AnotherWriter."""
    with held_lock(name := f"iceberg:{pipeline}", _PATIENCE) as is_alone:
        if not is_alone:
            raise AnotherWriter(
                f"another interval's publication writes its Iceberg tables{held_by(name)}",
                remedy="publish again",
                pipeline=pipeline,
            )
        yield


def find(catalog: SqlCatalog, pipeline: Pipeline, table: str) -> Table | None:
    """Return the Iceberg table; None without one. Raises UsageError when it is not the pipeline's.

    Raises MetadataGone.
    """
    try:
        loaded = catalog.load_table((DATABASE, table))
    except NoSuchTableError:
        return None
    except FileNotFoundError as error:
        raise metadata_gone(pipeline.name, table, error) from None
    if loaded.properties.get(OWNER) == pipeline.name and loaded.location() != location_of(table):
        raise MetadataGone(
            f"the Iceberg table {DATABASE}.{table} lies in another lake, or in this one by another spelling: "
            f"{loaded.location()}",
            remedy="set TIDEMARK_LAKE to the lake that it lies in, in the same spelling, and run it again; only if the "
            "lake was moved for good: ./tidemark doctor --repair, which makes the table anew without its history",
            pipeline=pipeline.name,
        )
    if loaded.properties.get(OWNER) != pipeline.name:
        raise UsageError(
            f"the Iceberg table {DATABASE}.{table} at {loaded.location()} is not one that Tidemark made",
            remedy="rename that table, or declare the pipeline without iceberg",
            pipeline=pipeline.name,
        )
    return loaded


def metadata_gone(pipeline: str, table: str, error: FileNotFoundError) -> MetadataGone:
    """Return the error of a table whose metadata is gone."""
    return MetadataGone(
        f"the Iceberg table {DATABASE}.{table}: its metadata is gone: {one_line(str(error.filename or error))}",
        remedy="put it back, or ./tidemark doctor --repair makes the table anew without its history; then run it again",
        pipeline=pipeline,
    )


def location_of(table: str) -> str:
    """Return where an Iceberg table has its metadata."""
    return lake.uri("iceberg", table)
