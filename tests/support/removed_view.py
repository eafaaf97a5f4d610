"""Intervals of a pipeline, of which code that no longer declares the views publishes what code with them began.

spark-submit tests/support/removed_view.py SCENARIO PIPELINE FILE OTHER ATTEMPT…

Writes to FILE, as JSON, the error of each publication by its name; an empty text for one that succeeded. The scenarios:
`begun` takes three attempts, `dropped` one. OTHER is an attempt that comes later, of another interval or of the same.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from include.catalog import DATABASE
from include.errors import TidemarkError
from include.ledger.intervals import builds, revisions
from include.ledger.intervals.attempts import load_attempt
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import Validation
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.intervals.build import build
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publish import publish_run, publishing_session
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.entry import run_entry


@dataclass
class Deployments:
    """A pipeline with its views, and as it is declared later, without."""

    spark: SparkSession
    before: Pipeline

    @property
    def now(self) -> Pipeline:
        return replace(self.before, views=(), reports=())

    def build(self, pipeline: Pipeline, attempt: int) -> None:
        build(IntervalRun(self.spark, pipeline, load_attempt(attempt)))
        self.spark.catalog.clearCache()

    def publish(self, pipeline: Pipeline, attempt: int) -> str:
        """Return the error; an empty text without one."""
        try:
            publish_run(IntervalRun(self.spark, pipeline, load_attempt(attempt)))
        except (TidemarkError, PySparkException, StopIteration) as error:
            return f"{type(error).__name__} {getattr(error, 'exit_code', 1)}: {error}"
        return ""

    def begin_registration(self, attempt: int) -> list[BuiltRevision]:
        """Build with the views and note what registering changes, as a publication does that is killed then."""
        self.build(self.before, attempt)
        spec = load_attempt(attempt)
        built = revisions.of_build(spec.build or 0)
        builds.begin_registration(spec, Validation(True, self.before.name), Changes(tuple(built)))
        return built


def begun(code: Deployments, other: int, waiting: int, killed: int, killed_later: int) -> dict[str, str]:
    """The views are taken out while a build waits, a registration is noted, and another has pointed at a view."""
    code.build(code.now, other)
    code.build(code.before, waiting)
    errors = {"waiting": code.publish(code.now, waiting)}
    code.begin_registration(killed)
    built = code.begin_registration(killed_later)
    catalog = Catalog(code.spark, code.before)
    catalog.create_tables()
    for revision in built:
        if revision.table != code.before.table:
            catalog.point_at(revision)
    errors["other"] = code.publish(code.now, other)
    code.build(code.now, waiting)
    errors["waiting again"] = code.publish(code.now, waiting)
    return errors


def dropped(code: Deployments, later: int, registered: int) -> dict[str, str]:
    """The views' tables are dropped, then an old interval is published again, and a later attempt built."""
    code.build(code.before, registered)
    errors = {"registered": code.publish(code.before, registered)}
    for view in code.before.views:
        code.spark.sql(f"DROP TABLE {DATABASE}.{code.before.view_table(view)}")
    errors["registered again"] = code.publish(code.now, registered)
    code.build(code.now, later)
    errors["later"] = code.publish(code.now, later)
    return errors


SCENARIOS: dict[str, Callable[..., dict[str, str]]] = {"begun": begun, "dropped": dropped}


def main(argv: list[str]) -> int:
    scenario, pipeline, file, *attempts = argv
    code = Deployments(publishing_session("removed view"), load_pipeline(pipeline))
    Path(file).write_text(json.dumps(SCENARIOS[scenario](code, *map(int, attempts))))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
