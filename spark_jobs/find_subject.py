"""Finds the records whose archive rows hold one of the asked keys; read only.

spark-submit spark_jobs/find_subject.py --pipeline NAME --asked FILE --result FILE

Both files are JSON and private: what is asked for are keys of persons (`include/erasure/find.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from include.pipelines import load_pipeline
from spark_jobs.erasure.find import find_subject
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    """Arguments to exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--asked", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    found = find_subject(build_session(f"search {pipeline.name}"), pipeline, json.loads(arguments.asked.read_text()))
    arguments.result.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
