"""Prints a source's records as they come, each decoded or with the reason why not.

python spark_jobs/tail_topic.py --pipeline NAME --last N [--once] [--json]
"""

from __future__ import annotations

import argparse
import sys

from include.pipelines import load_pipeline
from spark_jobs.live.tail import TopicTail, print_records
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--last", required=True, type=int)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    tail = TopicTail(build_session(f"tail {pipeline.name}"), pipeline, arguments.last)
    return print_records(tail, once=arguments.once, as_json=arguments.json)


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
