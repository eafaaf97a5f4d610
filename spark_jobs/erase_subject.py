"""The Spark part of an erasure: finds the records of persons, and erases them from the pipeline's Delta table.

    spark-submit spark_jobs/erase_subject.py --pipeline NAME --asked FILE --result FILE
    spark-submit spark_jobs/erase_subject.py --pipeline NAME --erasure ID --token TOKEN

The first form only reads. Both its files are JSON, and private, because they hold keys of persons
(`include/erasure/find.py`). While the second form runs, no stream may run: the command that starts it holds the
pipeline's lease (`include/erasure/run.py`), whose fencing token it is given.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--asked", type=Path)
    parser.add_argument("--result", type=Path)
    parser.add_argument("--erasure", type=int)
    parser.add_argument("--token", type=int)
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    if arguments.erasure is not None:
        from spark_jobs.erasure.delta import erase_from_delta

        lease = Lease(pipeline.name, arguments.token, "the command that started this")
        session = build_session(f"erase {pipeline.name}", catalog=True)
        erase_from_delta(session, pipeline, arguments.erasure, lease)
        return 0
    from spark_jobs.archive.files import while_files_stay
    from spark_jobs.erasure.find import find_subject

    session = build_session(f"search {pipeline.name}")
    with while_files_stay(pipeline.name):
        found = find_subject(session, pipeline, json.loads(arguments.asked.read_text()))
    arguments.result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
