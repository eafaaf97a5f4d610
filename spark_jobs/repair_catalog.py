"""Makes the catalog agree with the ledger: registered revisions, no unknown partitions, declared columns.

    spark-submit spark_jobs/repair_catalog.py --plan FILE

The plan is a JSON list of `CatalogChange`s; what was registered since stays, and so do partitions of an interval that
is being published.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from include.catalog.changes import CatalogChange
from spark_jobs.publication.repair import repair
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", required=True, type=Path)
    arguments = parser.parse_args(argv)
    changes = [CatalogChange(**each) for each in json.loads(arguments.plan.read_text())]
    repair(build_session("repair catalog", catalog=True), changes)
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
