"""The continuous job of a pipeline: the archive query and its speed queries in one Spark application.

spark-submit spark_jobs/stream.py --pipeline NAME [--until-caught-up] [--from socket://HOST:PORT|FOLDER'S URI]
"""

from __future__ import annotations

import argparse
import os
import sys

from include.errors import ServiceUnreachable, TidemarkError
from include.ledger.streams import launches
from include.pipelines import load_pipeline
from include.pipelines.spec.lines import parse_line_source
from spark_jobs.lines.stream import run_line_stream
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.log import log_of
from spark_jobs.spark.session import build_session
from spark_jobs.streaming.flag_query import task_slots
from spark_jobs.streaming.kafka_stream import run_stream


def main(argv: list[str]) -> int:
    """Arguments to exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--until-caught-up", action="store_true")
    parser.add_argument("--from", dest="line_source")
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    if arguments.line_source:
        return run_line_stream(
            lambda: build_session(f"stream {pipeline.name} from lines"),
            pipeline,
            parse_line_source(arguments.line_source),
            until_caught_up=arguments.until_caught_up,
        )
    try:
        code = run_stream(
            lambda: build_session(f"stream {pipeline.name}", task_slots=task_slots(pipeline)),
            pipeline,
            until_caught_up=arguments.until_caught_up,
        )
    except TidemarkError as error:
        _note_end(error.exit_code)
        raise
    _note_end(code)
    return code


def _note_end(code: int) -> None:
    """Tell the ledger, for a driver that Airflow launched and nobody waits for."""
    launch = os.environ.get("TIDEMARK_LAUNCH")
    if launch:
        try:
            launches.note_end(launch, code)
        except ServiceUnreachable as error:
            log_of().warning("%s", error)


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
