"""Changes of the Hive catalog outside of a publication: one Spark application makes them all."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from include.pipelines import load_pipeline
from include.spark.run import run_job
from include.spark.submission import submission

CatalogRepair = Literal["point the catalog", "drop from the catalog", "follow the declaration", "put into Delta"]
"""What is done: a partition points at its registered revision, or is dropped; a table gets its declared columns; the
Delta table of an archive gets the rows of registered intervals that it lacks."""


@dataclass(frozen=True)
class CatalogChange:
    """A change of one table of a pipeline."""

    pipeline: str
    table: str
    partition: str
    """Empty for a change of the whole table."""
    repair: CatalogRepair


def change_catalog(changes: Sequence[CatalogChange], name: str) -> int:
    """Have a Spark application of this name make the changes (`spark_jobs/repair_catalog.py`); return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps([asdict(each) for each in changes]))
        delta = any(load_pipeline(each).archive.delta for each in {each.pipeline for each in changes})
        return run_job(submission("repair_catalog", "--plan", str(plan), name=name, delta=delta))
