"""Tables in which nothing was ever registered are made anew when they cannot follow their declaration."""

from __future__ import annotations

from include.catalog.declared import check_storage
from include.catalog.unregistered import built_otherwise
from include.errors import AnotherWriter
from include.ledger.columns.unregistered import files_of_build, waiting_files
from include.ledger.intervals import locks
from include.pipelines.spec import Pipeline
from include.times import Interval
from spark_jobs.publication.catalog import Catalog
from spark_jobs.spark.log import log_of


def check_build(pipeline: Pipeline, interval: Interval, build: int) -> None:
    """Raise AnotherWriter for a build whose files the declared tables cannot have: earlier code built it."""
    if others := built_otherwise(pipeline, files_of_build(build)):
        raise AnotherWriter(
            f"{interval} was built before {others[0].table} was declared as it is, with other columns or in another "
            "format; nothing was registered",
            remedy="run the interval again",
            pipeline=pipeline.name,
        )


def make_anew(catalog: Catalog) -> None:
    """Drop the tables that `check_storage` returns, alone, and create them as they are declared.

    Such a table has no partition, and no files but those of builds. Raises AnotherWriter while a build is published
    whose files fit only the table of before: it may be registered at any moment.
    """
    pipeline = catalog.pipeline
    with locks.making_tables(pipeline.name):
        # Another publication may have made them, and registered in them.
        anew = check_storage(pipeline)
        waiting = built_otherwise(pipeline, waiting_files(anew))
        if published := locks.with_publications(pipeline.name, {each.interval for each in waiting}):
            raise AnotherWriter(
                f"lake.{anew[0]} is to be made anew as it is declared now, and {min(published)} is being published as "
                "it was declared before",
                remedy="let that end, then run this again",
                pipeline=pipeline.name,
            )
        for table in anew:
            catalog.drop_table(table)
            log_of(pipeline.name).info("lake.%s, in which nothing is registered, is made anew", table)
        catalog.create_tables()
