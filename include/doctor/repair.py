"""Mends what ledger, catalog and files disagree about, the ledger being right.

Files that nobody knows are moved aside, never deleted; the catalog is changed by one Spark application
(`spark_jobs/repair_catalog.py`). What only a new build can mend is left to the interval that its remedy names.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from include import lake
from include.doctor.disagreement import Disagreement
from include.errors import TidemarkError
from include.lake.scan import below_lake
from include.ledger.archive import landing
from include.offsets import OffsetRange
from include.pipelines import load_pipeline
from include.spark.run import run_job
from include.spark.submission import submission

LOST_AND_FOUND = "lost+found"
"""Folder of the lake for files that nobody knows."""


def plan(found: Sequence[Disagreement]) -> list[str]:
    """What `mend` will do, a line each."""
    return [f"{each.mend}: {each.what}" for each in found if each.mend]


def mend(found: Sequence[Disagreement], progress: Callable[[str], None]) -> None:
    """Do what can be done. Raises TidemarkError when the catalog could not be changed."""
    aside = lake.uri(LOST_AND_FOUND, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))
    for each in found:
        if each.mend == "move aside" and lake.exists(each.location):
            target = f"{aside}/{below_lake(each.location)}"
            lake.move(each.location, target)
            progress(f"moved to {target}")
    for pipeline in sorted({each.pipeline for each in found if each.mend == "read from revisions"}):
        _forget_landing(pipeline, [each for each in found if each.pipeline == pipeline], progress)
    catalog = [each for each in found if each.mend in ("point the catalog", "drop from the catalog")]
    if catalog:
        _repair_catalog(catalog)


def _forget_landing(pipeline: str, found: Sequence[Disagreement], progress: Callable[[str], None]) -> None:
    """Let lost landing files be read from the registered revisions, where these are undamaged."""
    wanted = {each.micro_batch for each in found if each.mend == "read from revisions"}
    settled = landing.settled_batches(pipeline, datetime.now(UTC), (landing.ARCHIVED,))
    for batch in sorted(wanted & settled.keys()):
        ranges: list[OffsetRange] = [each for each in settled[batch] if len(each)]
        damages = [holding.damage() for holding in landing.holdings(pipeline, load_pipeline(pipeline).table, ranges)]
        if any(damages):
            progress(f"{pipeline}: micro-batch {batch} is left: {next(filter(None, damages))}")
            continue
        landing.mark_removed([batch])
        progress(f"{pipeline}: the rows of micro-batch {batch} are read from the registered revisions now")


def _repair_catalog(found: Sequence[Disagreement]) -> None:
    changes = [
        {"pipeline": each.pipeline, "table": each.table, "partition": each.partition, "mend": each.mend}
        for each in found
    ]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(changes))
        if code := run_job(submission("repair_catalog", "--plan", str(file), name="repair catalog")):
            error = TidemarkError(f"repairing the catalog ended with exit code {code}", remedy="read the lines above")
            error.exit_code = code
            raise error
